"""A study with a deadline: no run starts too late, and what was measured is kept."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from corewise.measured.trial import Trial
from corewise.run.plan import Planner
from corewise.run.study_runner import MIN_RUNS_AT_DEADLINE, StudyRun
from corewise.store.store import Store
from corewise.study.record import Record
from corewise.study.study import load_study
from corewise.study.trial_run import TrialRun
from corewise.tuning.silent_progress import SilentProgress

FACTORY = """
def make(batch, mode):
    return {"step": lambda: sum(range(1000)), "samples_per_step": batch}
"""
STUDY = """
workload: own.py:make
mode: infer
runtime: numpy
axes: {threads: 1, processes: 1, batch: [1, 2]}
protocol: {min_runs: 4, max_runs: 4, min_samples: 1, min_sample_s: 0.001, max_warmup_s: 0.01, max_repeats_disturbed: 0}
"""


class EndingObserver(SilentProgress):
    """Moves the deadline into the past after some runs, whatever time they took."""

    study_run: StudyRun
    num_started = 0

    def __init__(self, num_runs: int) -> None:
        self.num_runs = num_runs

    def report_run_end(self, trial: Trial, run: TrialRun, seconds_left: float) -> None:
        self.num_started += 1
        if self.num_started == self.num_runs:
            self.study_run._deadline = 0.0


@pytest.fixture
def run_until(tmp_path: Path) -> Callable[[int], tuple[int, Sequence[Record]]]:
    (tmp_path / "own.py").write_text(FACTORY)
    (tmp_path / "study.yaml").write_text(STUDY)

    def run(num_runs: int) -> tuple[int, Sequence[Record]]:
        """Run until the deadline comes after this many runs; return how many started, and all records."""
        study, store = load_study(tmp_path / "study.yaml"), Store.open(tmp_path / "store", create=True)
        observer = EndingObserver(num_runs)
        deadline = math.inf if num_runs else 0.0
        observer.study_run = StudyRun(Planner.from_study(study).plan(study), store, observer, deadline=deadline)
        observer.study_run.execute()
        return observer.num_started, store.read_records().records

    return run


RunUntil = Callable[[int], tuple[int, Sequence[Record]]]


def test_at_the_deadline_trials_with_enough_runs_have_a_record(run_until: RunUntil) -> None:
    num_started, records = run_until(2 * MIN_RUNS_AT_DEADLINE)
    assert num_started == 2 * MIN_RUNS_AT_DEADLINE
    assert [(each.status, len(each.runs)) for each in records] == [("ok", MIN_RUNS_AT_DEADLINE)] * 2


def test_runs_of_a_trial_with_too_few_are_kept_for_the_next_call(run_until: RunUntil) -> None:
    assert run_until(2) == (2, ())
    num_started, records = run_until(100)
    # Two of eight runs were made before.
    assert num_started == 6
    assert [len(each.runs) for each in records] == [4, 4]


def test_no_run_starts_after_the_deadline(run_until: RunUntil) -> None:
    assert run_until(0) == (0, ())


def test_what_makes_a_start_faster_is_not_in_the_file_of_a_trial(tmp_path: Path, run_until: RunUntil) -> None:
    study, store = load_study(tmp_path / "study.yaml"), Store.open(tmp_path / "store", create=True)
    prepared: list[str] = []

    def prepare_trial(trial: Trial) -> Trial:
        prepared.append(trial.trial_id)
        return replace(trial, imports=("wsgiref.headers",), warms_imports=True, references=str(tmp_path / "kept"))

    plan = Planner.from_study(study).plan(study)
    StudyRun(plan, store, SilentProgress(), prepare_trial=prepare_trial).execute()
    assert len(prepared) == 8
    for trial in plan.trials:
        text = store.get_trial_file(trial.trial_id).read_text()
        assert trial.trial_id in text
        assert "wsgiref" not in text
        assert "kept" not in text
    assert all(each.status == "ok" for each in store.read_records().records)
