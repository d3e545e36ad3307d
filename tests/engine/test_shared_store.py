"""Two runs on one store: each knows what the other has done since it began."""

from dataclasses import replace
from pathlib import Path

import pytest

from corewise.cli.progress import Silent
from corewise.engine.plan import Plan, make_plan
from corewise.engine.provisional import provisional_records
from corewise.engine.run import StudyRun
from corewise.spec.record import Record, utc_now
from corewise.spec.run import Run
from corewise.spec.study import load_study
from corewise.spec.trial import Trial, write_json_aside
from corewise.store.store import Store

STUDY = """
question: Does it start once mended?
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
    if not os.path.exists("mended"):
        raise OSError("not yet")
    return {"step": lambda: None, "samples_per_step": 1}
"""


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(OWN)
    Path("study.yaml").write_text(STUDY)
    return make_plan(load_study("study.yaml", []))


def test_a_trial_that_another_host_has_retried_meanwhile_is_not_measured_again(plan: Plan) -> None:
    store = Store.open(Path("store"))
    assert StudyRun(plan, store, Silent()).execute().num_failed == 1
    Path("mended").touch()
    late = StudyRun(plan, store, Silent(), retry_failed=True)
    assert StudyRun(plan, Store.open(Path("store")), Silent(), retry_failed=True).execute().num_ok == 1
    outcome = late.execute()
    assert (outcome.num_ok, outcome.num_failed) == (0, 0)
    assert [r.status for r in store.records().duplicates] == ["failed"]


def test_a_failure_that_another_host_recorded_meanwhile_is_counted(plan: Plan) -> None:
    [trial] = plan.trials
    Path("mended").touch()
    late = StudyRun(plan, Store.open(Path("store")), Silent())
    failed = Record(trial_id=trial.trial_id, study="study", status="failed", finished_at=utc_now())
    Store.open(Path("store")).append(failed)
    outcome = late.execute()
    assert (outcome.num_ok, outcome.num_failed, outcome.num_already_done) == (0, 1, 0)


class StopsAfterOneRun(Silent):
    def ran(self, trial: Trial, run: Run, seconds_left: float) -> None:
        raise KeyboardInterrupt


def test_an_unfinished_trial_has_a_provisional_record_that_is_not_kept(plan: Plan) -> None:
    Path("mended").touch()
    store = Store.open(Path("store"))
    assert provisional_records(plan, store) == []
    with pytest.raises(KeyboardInterrupt):
        StudyRun(plan, store, StopsAfterOneRun()).execute()
    [record] = provisional_records(plan, store)
    assert record.status == "ok"
    assert record.metrics["samples_per_s"] > 0
    assert "so far: 1 of at least 2 runs" in record.notes
    assert store.records().records == ()
    StudyRun(plan, store, Silent()).execute()
    assert provisional_records(plan, store) == []


def test_an_unfinished_trial_whose_only_run_failed_has_no_provisional_record(plan: Plan) -> None:
    store = Store.open(Path("store"))
    [trial] = plan.trials
    folder = store.work_dir(trial.trial_id)
    folder.mkdir(parents=True)
    bad = replace(Run(status="failed", kind="error", reason="no"))
    write_json_aside(folder / "run-000.json", bad.to_json())
    assert provisional_records(plan, store) == []
