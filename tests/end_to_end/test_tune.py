"""`corewise tune` with real processes, whose steps sleep depending on their environment."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import corewise
from corewise.store.sealed_lines import scan_lines
from corewise.study.tuned_file import read_tuned
from corewise.tuning import session
from tests.end_to_end.conftest import HAS_QUICKER, QUICKER, SHORT_SEARCH, Bench
from tests.store.edited_records import edit_record

QUICKER_BY_ITS_ALLOCATOR = """
import os, time

def make(batch, mode, wrong=False):
    is_fast = HAS_QUICKER
    pause_s = 0.003 if is_fast else 0.03

    def step():
        time.sleep(pause_s)

    def check():
        return (float("nan") if is_fast and wrong else 0.0, 0.1)

    return {"step": step, "samples_per_step": batch, "check": check}
""".replace("HAS_QUICKER", HAS_QUICKER)
ONE_CORE = ("--set", "processes=1", "--set", "threads=1", "--set", "bind=rank", "--set", "huge_pages=default")
QUICK = ("--runtime", "numpy", "--batch", "4", "--budget", "100s", "--store", "store", *ONE_CORE)


def tune_factory(bench: Bench, *arguments: str) -> dict[str, Any]:
    done = bench.run("tune", "own.py:make", *QUICK, "--json", *arguments, before=SHORT_SEARCH)
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(json.loads(done.stdout))


def read_journal(bench: Bench) -> list[dict[str, Any]]:
    files = list((bench.folder / "store" / "tune").glob("*.jsonl"))
    lines = [line for path in files for line in path.read_bytes().splitlines(keepends=True)]
    return [entry.value for entry in scan_lines(lines) if entry.value is not None]


@pytest.mark.slow
def test_an_interrupted_search_shows_the_best_so_far_and_later_calls_resume(bench: Bench) -> None:
    bench.write_factory(QUICKER_BY_ITS_ALLOCATOR)
    pid = bench.start("tune", "own.py:make", *QUICK, before=SHORT_SEARCH)
    deadline = time.monotonic() + 60
    while len(read_journal(bench)) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(pid, signal.SIGINT)
    done = bench.command.wait()
    assert done.returncode == 130, done.stderr
    assert "Best so far" in done.stdout
    assert f"allocator {QUICKER}" in done.stdout
    assert read_tuned(bench.folder / "tuned.yaml").measured is None
    assert bench.find_processes() == []
    before = {json.dumps(line["setting"]) for line in read_journal(bench) if line["entry"] == "judged"}
    check_result(bench, tune_factory(bench))
    judged = [json.dumps(line["setting"]) for line in read_journal(bench) if line["entry"] == "judged"]
    assert before < set(judged)
    again = tune_factory(bench)
    assert again["best"]["params"]["allocator"] == QUICKER
    judged = [json.dumps(line["setting"]) for line in read_journal(bench) if line["entry"] == "judged"]
    assert len(judged) == len(set(judged))


def check_result(bench: Bench, result: dict[str, Any]) -> None:
    """Check that the faster setting is found, confirmed and written."""
    assert result["verdict"] == "faster"
    assert result["best"]["params"]["allocator"] == QUICKER
    assert result["default"]["params"]["allocator"] == "default"
    assert result["speedup"] > 1.5
    assert result["speedup_interval"][0] > 1
    assert result["default"]["interval"][0] <= result["default"]["throughput"]
    assert [step["words"] for step in result["ladder"]] == [f"allocator {QUICKER}"]
    assert result["trials"] == len(result["tried"])
    written = read_tuned(bench.folder / "tuned.yaml")
    assert (written.params["allocator"], written.params["threads"]) == (QUICKER, 1)
    assert written.measured is not None
    assert written.measured.speedup == pytest.approx(result["speedup"])


def test_without_choices_the_answer_is_no_difference(bench: Bench) -> None:
    bench.write_factory(QUICKER_BY_ITS_ALLOCATOR)
    fixed = ("--set", "allocator=default")
    done = bench.run("tune", "own.py:make", *QUICK, *fixed, before=SHORT_SEARCH)
    assert done.returncode == 0, done.stderr
    assert "No difference" in done.stdout
    assert "fixed allocator to default" in done.stdout
    assert read_tuned(bench.folder / "tuned.yaml").params["allocator"] == "default"


@pytest.mark.slow
def test_an_edited_record_is_skipped_with_a_note_and_its_trial_is_measured_again(bench: Bench) -> None:
    bench.write_factory(QUICKER_BY_ITS_ALLOCATOR)
    arguments = ("--set", "allocator=default")
    first = tune_factory(bench, *arguments)
    [file] = (bench.folder / "store/records").iterdir()
    edit_record(file, ("metrics", "samples_per_s"), None)
    again = tune_factory(bench, *arguments)
    where = f"{Path('store/records') / file.name}, line 1 (byte 0)"
    problem = "metrics.samples_per_s is null, not a finite number"
    assert f"a damaged record was skipped: {where}: {problem}" in again["notes"]
    assert again["default"]["throughput"] > 0
    assert again["default"]["trial_id"] == first["default"]["trial_id"]


def test_a_candidate_with_wrong_results_is_rejected_with_the_reason(bench: Bench) -> None:
    bench.write_factory(QUICKER_BY_ITS_ALLOCATOR)
    result = tune_factory(bench, "--args", "wrong=true")
    assert result["best"]["params"]["allocator"] != QUICKER
    [rejected] = [each for each in result["tried"] if each["outcome"] == "rejected"]
    assert rejected["params"]["allocator"] == QUICKER
    assert "wrong numbers" in rejected["reason"]


# Every step takes three seconds, whatever the load of the machine.
SLOW_STEP = """
import time

def make(batch, mode):
    def step():
        with open("steps", "a") as file:
            file.write("x")
        time.sleep(3)

    return {"step": step, "samples_per_step": batch, "check": lambda: (0.0, 0.1)}
"""


@pytest.mark.slow
@pytest.mark.parametrize("budget_s", [30, 60])
def test_a_slow_step_gives_an_answer_within_the_budget(bench: Bench, budget_s: int) -> None:
    bench.write_factory(SLOW_STEP.replace('"steps"', repr(str(bench.folder / "steps"))))
    arguments = [*QUICK[:4], "--budget", f"{budget_s}s", *QUICK[6:], "--json"]
    done = bench.run("tune", "own.py:make", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert result["default"]["throughput"] == pytest.approx(4 / 3, rel=0.2)
    assert result["is_cut"]
    # Steps run one after another, so their number bounds the time spent: at most a fifth more than the budget.
    assert 3 * len((bench.folder / "steps").read_text()) <= 1.2 * budget_s
    assert bench.find_processes() == []


def test_a_default_that_exceeds_the_budget_is_refused_with_what_to_give(bench: Bench) -> None:
    bench.write_factory(SLOW_STEP.replace('"steps"', repr(str(bench.folder / "steps"))))
    done = bench.run("tune", "own.py:make", *QUICK[:4], "--budget", "4s", *QUICK[6:])
    assert done.returncode == 2
    assert "a budget of 4 s is too short: the default alone" in done.stderr
    assert "give --budget" in done.stderr
    assert len((bench.folder / "steps").read_text()) <= 2


@pytest.mark.slow
def test_a_search_stopped_before_the_default_is_measured_says_so_and_writes_nothing(bench: Bench) -> None:
    bench.write_factory("import pathlib, time\n\ndef make(batch, mode):\n    "
                  f"pathlib.Path({str(bench.folder / 'started')!r}).touch(); time.sleep(60)\n")  # fmt: skip
    pid = bench.start("tune", "own.py:make", *QUICK)
    deadline = time.monotonic() + 60
    while not (bench.folder / "started").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(pid, signal.SIGINT)
    done = bench.command.wait()
    assert (done.returncode, done.stdout) == (130, "")
    assert "stopped before the default was measured" in done.stderr
    assert not (bench.folder / "tuned.yaml").exists()
    assert bench.find_processes() == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("own.py:make", "--budget", "0.5s", *QUICK[:4], *ONE_CORE), "too short"),
        (("own.py:make", "--budget", "soon"), "not a duration; write 10m"),
        (("own.py:make", "--output", "nowhere/tuned.yaml"), "cannot be written"),
        (("own.py:make", "--allow", "everything"), "no such class"),
        (("own.py:make", "--set", "alocator=retain"), "did you mean 'allocator'?"),
        (("own.py:make", "--set", "threads"), "NAME=VALUE"),
        (("own.py", "--runtime", "numpy"), "own.py:make"),
        (("gone.py:make", "--runtime", "numpy"), "gone.py does not exist"),
        (("own.py:other", "--runtime", "numpy"), "defines no function 'other'"),
        (("resnet51",), "did you mean"),
        (("own.py:make", "--mode", "learn"), "no such mode"),
        (("own.py:make", "--batch", "0"), "at least 1"),
        (("matmul", "--set", "runtime=numpy"), "use --runtime numpy"),
        (("matmul", "--args", "sice=3", "--runtime", "numpy"), "--args sice=3: matmul has no"),
        (("resnet18", "--runtime", "numpy"), "resnet18 has no runtime numpy; it has torch"),
        (("own.py:make", "--runtime", "nunpy"), "--runtime: unknown runtime 'nunpy'; did you mean 'numpy'?"),
        (("gemm", "--mode", "train", "--runtime", "numpy"), "gemm has no mode train; it has infer"),
        (("gemm", "--batch", "4", "--runtime", "numpy"), "a step of gemm is one sample"),
    ],
)
def test_a_mistake_is_reported_with_code_2(bench: Bench, arguments: tuple[str, ...], message: str) -> None:
    bench.write_factory(QUICKER_BY_ITS_ALLOCATOR)
    done = bench.run("tune", *arguments, "--store", "store")
    assert done.returncode == 2, done.stdout + done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_an_output_that_cannot_be_written_is_reported_before_anything_is_measured(bench: Bench) -> None:
    bench.write_factory(QUICKER_BY_ITS_ALLOCATOR)
    done = bench.run("tune", "own.py:make", *QUICK, "--output", "nowhere/tuned.yaml")
    assert done.returncode == 2
    assert not (bench.folder / "store").exists()


def test_the_call_from_python_returns_a_printable_result_and_shows_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(session, "EFFORTS", (session.EFFORTS[-1],) * len(session.EFFORTS))
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(QUICKER_BY_ITS_ALLOCATOR)
    fixed = {"processes": 1, "threads": 1, "bind": "rank", "allocator": "default", "huge_pages": "default"}
    fixed["wait_policy"] = "default"
    result = corewise.tune("own.py:make", runtime="numpy", batch=4, budget=60, fixed=fixed, store="store")
    assert result.verdict == "no difference"
    assert result.best.params == result.default.params
    assert "No difference" in str(result)
    assert "<table>" in result._repr_html_()
    captured = capsys.readouterr()
    assert "own.py:make infer: knobs none" in captured.err
    assert not captured.out
