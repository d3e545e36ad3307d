"""Repeats of disturbed runs are bounded by the estimate of the whole study."""

from pathlib import Path

import pytest

from corewise.cli.render.run_progress import SilentObserver
from corewise.run.duration_estimate import estimate_plan_s
from corewise.run.plan import Plan, plan_study
from corewise.run.study_runner import StudyRun
from corewise.run.trial_progress import RepeatBudget
from corewise.store.store import Store
from corewise.study.record import Record
from corewise.study.study import load_study
from corewise.study.trial_run import TrialRun

STUDY = """
question: How long does a study take on a busy machine?
workload: own.py:factory
mode: infer
runtime: numpy
fixed: {threads: 1, batch: 1}
protocol: {min_runs: 2, max_runs: 2, min_samples: 2, min_sample_s: 0.01, max_warmup_s: 0.1, timeout_s: 60,
           max_repeats_disturbed: 3}
"""
OWN = """
def factory(batch, mode):
    return {"step": lambda: None, "samples_per_step": 1}
"""


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(OWN)
    Path("study.yaml").write_text(STUDY)
    return plan_study(load_study("study.yaml", []))


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disturb every run of every trial."""
    run_once = StudyRun._run_once

    def disturbed(*args: object) -> TrialRun:
        run = run_once(*args)  # type: ignore[arg-type]
        return TrialRun(**{**run.to_json(), "disturbances": ("other processes used 0.9 s of CPU",)})

    monkeypatch.setattr(StudyRun, "_run_once", disturbed)


def run_with(plan: Plan, budget: RepeatBudget) -> Record:
    store = Store.open(Path("store"))
    study = StudyRun(plan, store, SilentObserver())
    assert study._repeats.limit_s == estimate_plan_s(plan) > 0
    study._repeats = budget
    assert study.execute().num_ok == 1
    [record] = store.read_records().records
    return record


def test_a_budget_is_spent_by_the_runs_it_allows() -> None:
    budget = RepeatBudget(limit_s=10.0)
    assert budget.reserve_repeat(6.0)
    assert not budget.reserve_repeat(5.0)
    assert budget.reserve_repeat(4.0)
    assert budget.spent_s == 10.0


@pytest.mark.usefixtures("busy")
def test_disturbed_runs_are_repeated_while_there_is_time(plan: Plan) -> None:
    record = run_with(plan, RepeatBudget(3600.0))
    assert len(record.disturbed) == 3
    assert not any("time for repeats" in note for note in record.notes)


@pytest.mark.usefixtures("busy")
def test_disturbed_runs_count_when_the_budget_is_used_up(plan: Plan) -> None:
    record = run_with(plan, RepeatBudget(0.0))
    assert len(record.disturbed) == 0
    assert [bool(run["disturbances"]) for run in record.runs] == [True, True]
    assert "2 disturbed runs count: the study had used up its time for repeats" in record.notes
