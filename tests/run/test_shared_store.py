"""Two runs on one store: each takes into account what the other has done since."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from corewise.cli.render.run_progress import SilentObserver
from corewise.measured.trial import Trial, to_json, write_json_atomically
from corewise.measured.worker.main import run_by_hand
from corewise.run.plan import Plan, plan_study
from corewise.run.provisional_records import build_provisional_records
from corewise.run.study_runner import StudyRun
from corewise.store.store import Store
from corewise.study.record import Record, format_utc_now
from corewise.study.study import load_study
from corewise.study.trial_run import TrialRun

STUDY = """
question: Does it start once fixed?
workload: own.py:factory
mode: infer
runtime: numpy
fixed: {threads: 1, batch: 1}
protocol: {min_runs: 2, max_runs: 2, min_samples: 2, min_sample_s: 0.01, max_warmup_s: 0.1, timeout_s: 60,
           max_repeats_disturbed: 0}
"""
OWN = """
import os
def factory(batch, mode):
    if not os.path.exists("fixed"):
        raise OSError("not yet")
    return {"step": lambda: None, "samples_per_step": 1}
"""


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(OWN)
    Path("study.yaml").write_text(STUDY)
    return plan_study(load_study("study.yaml", []))


def test_a_trial_that_another_host_has_retried_is_not_measured_again(plan: Plan) -> None:
    store = Store.open(Path("store"))
    assert StudyRun(plan, store, SilentObserver()).execute().num_failed == 1
    Path("fixed").touch()
    late = StudyRun(plan, store, SilentObserver(), retry_failed=True)
    assert StudyRun(plan, Store.open(Path("store")), SilentObserver(), retry_failed=True).execute().num_ok == 1
    outcome = late.execute()
    assert (outcome.num_ok, outcome.num_failed) == (0, 0)
    assert [r.status for r in store.read_records().duplicates] == ["failed"]


def test_a_failure_recorded_by_another_host_is_counted(plan: Plan) -> None:
    [trial] = plan.trials
    Path("fixed").touch()
    late = StudyRun(plan, Store.open(Path("store")), SilentObserver())
    failed = Record(trial_id=trial.trial_id, study="study", status="failed", finished_at=format_utc_now())
    Store.open(Path("store")).append(failed)
    outcome = late.execute()
    assert (outcome.num_ok, outcome.num_failed, outcome.num_already_done) == (0, 1, 0)


class StopsAfterOneRun(SilentObserver):
    def report_run_end(self, trial: Trial, run: TrialRun, seconds_left: float) -> None:
        raise KeyboardInterrupt


def test_an_unfinished_trial_has_a_provisional_record_that_is_not_stored(plan: Plan) -> None:
    Path("fixed").touch()
    store = Store.open(Path("store"))
    assert build_provisional_records(plan, store) == []
    with pytest.raises(KeyboardInterrupt):
        StudyRun(plan, store, StopsAfterOneRun()).execute()
    [record] = build_provisional_records(plan, store)
    assert record.status == "ok"
    assert record.metrics["samples_per_s"] > 0
    assert "so far: 1 of at least 2 runs" in record.notes
    assert store.read_records().records == ()
    StudyRun(plan, store, SilentObserver()).execute()
    assert build_provisional_records(plan, store) == []


def test_an_unfinished_trial_whose_only_run_failed_has_no_provisional_record(plan: Plan) -> None:
    store = Store.open(Path("store"))
    [trial] = plan.trials
    folder = store.get_work_dir(trial.trial_id)
    folder.mkdir(parents=True)
    failed = replace(TrialRun(status="failed", kind="error", reason="no"))
    write_json_atomically(folder / "run-000.json", failed.to_json())
    assert build_provisional_records(plan, store) == []


class ExchangesTrial(SilentObserver):
    """Exchanges the trial's file before a run, as everyone could who can write to the store."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def report_run_start(self, trial: Trial, index: int) -> None:
        path = self.store.get_trial_file(trial.trial_id)
        path.write_text(path.read_text().replace("own.py:factory", "planted.py:factory"))


def test_a_trial_that_is_exchanged_in_the_store_is_not_run(plan: Plan) -> None:
    Path("fixed").touch()
    Path("planted.py").write_text("open('mark', 'w').close()\n" + OWN)
    store = Store.open(Path("store"))
    assert StudyRun(plan, store, ExchangesTrial(store)).execute().num_ok == 1
    assert "planted.py" in store.get_trial_file(plan.trials[0].trial_id).read_text()
    assert not Path("mark").exists()


def test_the_manual_command_refuses_code_named_by_a_trial_file_of_someone_else(
    plan: Plan, give_away: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    [trial] = plan.trials
    for name, value in trial.env.items():
        monkeypatch.setenv(name, value)
    file = Path("trial.json")
    write_json_atomically(file, to_json(trial))
    give_away(file)
    assert run_by_hand(file, Path("out")) == 2
    assert f"{file.absolute()} belongs to uid 65534" in capsys.readouterr().err
    assert not Path("out").exists()
