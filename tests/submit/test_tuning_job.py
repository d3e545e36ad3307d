"""The job of a tuning: its arguments, its script, its answer, and which jobs are followed up. Without Slurm."""

import dataclasses
from pathlib import Path

import pytest

from corewise.cli.submitting.options import ClusterOptions
from corewise.cli.submitting.submit_tuning import TuningOptions, build_request
from corewise.errors import UserError
from corewise.submit.batch_script import build_batch_script
from corewise.submit.job_follow import DONE, RESUME, JobProgress, decide_follow_up
from corewise.submit.job_log import Job
from corewise.submit.job_report import ENDED, STARTED, JobReport
from corewise.submit.tuning_answer import TuningAnswer, read_answer, write_answer

SCRIPT = TuningOptions(
    subject=("python", "train.py", "--name", "a b"),
    budget="10m",
    output=Path("/shared/tuned.yaml"),
    report=None,
    python=None,
    values=(("--mode", "infer"), ("--batch", None), ("--check", "loss {}")),
    lists=(("--set", ["threads=2"]), ("--allow", None)),
    switches=(("--again", False), ("--distributed", True)),
)
JOB = Job(job_id="5", name="x", study="s", nodes=1, purpose="p", submitted_at="")


@pytest.fixture(autouse=True)
def _no_site_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def test_the_arguments_of_a_script_come_before_its_command() -> None:
    request = build_request(SCRIPT, Path("/shared/store"), ClusterOptions(partition="cpu", time_limit="20"))
    last = build_batch_script(request).splitlines()[-1]
    assert last.endswith(
        "-P -m corewise tune --budget 10m --mode infer --check 'loss {}' --output /shared/tuned.yaml --set threads=2 "
        f"--distributed --store /shared/store --job {request.name} -- python train.py --name 'a b'"
    )
    # A tuning has a budget of its own.
    assert "--stop-at" not in build_batch_script(request)


def test_equal_tunings_have_one_purpose_and_others_another() -> None:
    options = ClusterOptions()
    requests = [build_request(SCRIPT, Path("/s"), options) for _ in range(2)]
    assert requests[0].purpose == requests[1].purpose
    other = dataclasses.replace(SCRIPT, budget="20m")
    assert build_request(other, Path("/s"), options).purpose != requests[0].purpose


@pytest.mark.parametrize("limit", ["1", "10", "11m"])
def test_a_limit_without_room_for_the_budget_is_refused(limit: str) -> None:
    with pytest.raises(UserError, match=r"a tuning with --budget 10m needs 12 min"):
        build_request(SCRIPT, Path("/s"), ClusterOptions(time_limit=limit))


def test_an_answer_is_read_back(tmp_path: Path) -> None:
    answer = TuningAnswer("Type: x", {"subject": "x", "output": ""}, 1)
    assert read_answer(tmp_path, "job") is None
    write_answer(tmp_path, "job", answer)
    assert read_answer(tmp_path, "job") == answer


def build_progress(state: str, outcome: str, phase: str = ENDED, num_trials: int | None = 2) -> JobProgress:
    report = JobReport(phase=phase, host="h", batch_id="5", started_at="", outcome=outcome)
    return JobProgress(dataclasses.replace(JOB, state=state, ended_at="now"), report, num_trials, 0)


def test_a_job_that_ended_before_the_command_is_submitted_again_whatever_its_end() -> None:
    for state in ("CANCELLED", "FAILED", "OUT_OF_MEMORY"):
        progress = build_progress(state, "", STARTED)
        assert decide_follow_up(progress, has_ended_before=True) == RESUME
        assert decide_follow_up(progress) != RESUME


def test_a_job_that_failed_before_its_plan_is_not_complete() -> None:
    failed = build_progress("FAILED", "none of its 4 points can run here", num_trials=None)
    assert "ended as failed" in decide_follow_up(failed)
    assert decide_follow_up(build_progress("COMPLETED", DONE, num_trials=0)) == ""


def test_a_job_is_shown_as_running_once_it_reports() -> None:
    waiting = JobProgress(JOB, JobReport(phase=STARTED, host="h", batch_id="5", started_at=""))
    assert waiting.shown_job.state == "RUNNING"
    assert JobProgress(JOB).shown_job.state == "PENDING"
    requeued = JobProgress(dataclasses.replace(JOB, reason="requeued: BeginTime"), waiting.report)
    assert requeued.shown_job.state == "PENDING"
