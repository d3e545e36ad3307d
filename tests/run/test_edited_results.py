"""Resuming a study whose records or runs were edited: what cannot be used is measured again, the rest is kept."""

import json
from pathlib import Path

import pytest
from tests.store.edited_records import edit_record

from corewise.cli.render.run_progress import SilentObserver
from corewise.measured.trial import Trial
from corewise.run.plan import Plan, plan_study
from corewise.run.study_runner import StudyRun
from corewise.store.store import Store
from corewise.study.study import load_study
from corewise.study.trial_run import TrialRun

STUDY = """
workload: own.py:factory
mode: infer
runtime: numpy
fixed: {threads: 1, batch: 1}
protocol: {min_runs: 3, max_runs: 3, min_samples: 2, min_sample_s: 0.01, max_warmup_s: 0.1, timeout_s: 60,
           max_repeats_disturbed: 0}
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


class IndexWatch(SilentObserver):
    """Notes the numbers of the runs, and may stop after one."""

    def __init__(self, stop_after: int = 0) -> None:
        self.indices: list[int] = []
        self.stop_after = stop_after

    def report_run_start(self, trial: Trial, run_index: int) -> None:
        self.indices.append(run_index)

    def report_run_end(self, trial: Trial, run: TrialRun, seconds_left: float) -> None:
        if len(self.indices) == self.stop_after:
            raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("place", "value"), [(("metrics", "step_s"), float("nan")), (("params", "workload"), []), (("runs", 0), None)]
)
def test_a_trial_whose_record_was_edited_is_measured_again(
    plan: Plan, place: tuple[str | int, ...], value: object
) -> None:
    store = Store.open(Path("store"))
    assert StudyRun(plan, store, SilentObserver()).execute().num_ok == 1
    [file] = store.records_folder.iterdir()
    edit_record(file, place, value)
    again = StudyRun(plan, Store.open(Path("store")), SilentObserver())
    assert [each.line for each in again.damage] == [1]
    outcome = again.execute()
    assert (outcome.num_ok, outcome.num_already_done) == (1, 0)
    assert len(Store.open(Path("store")).read_records().records) == 1
    assert StudyRun(plan, Store.open(Path("store")), SilentObserver()).execute().num_already_done == 1


def test_a_run_that_cannot_be_used_is_repeated_and_the_others_are_kept(plan: Plan) -> None:
    store = Store.open(Path("store"))
    with pytest.raises(KeyboardInterrupt):
        StudyRun(plan, store, IndexWatch(stop_after=2)).execute()
    folder = store.get_work_dir(plan.trials[0].trial_id)
    first, second = (json.loads((folder / f"run-00{number}.json").read_text()) for number in (0, 1))
    (folder / "run-000.json").write_text(json.dumps({**first, "samples_s": [None]}))
    watch = IndexWatch(stop_after=1)
    with pytest.raises(KeyboardInterrupt):
        StudyRun(plan, Store.open(Path("store")), watch).execute()
    assert watch.indices == [2]
    assert json.loads((folder / "run-001.json").read_text()) == second
    assert StudyRun(plan, Store.open(Path("store")), SilentObserver()).execute().num_ok == 1
    [record] = Store.open(Path("store")).read_records().records
    assert [run["samples_s"] for run in record.runs].count(second["samples_s"]) == 1
    assert len(record.runs) == 3


@pytest.mark.parametrize("text", ["", "[]", '{"status": "ok"}', "[" * 50_000, '{"status":' * 5000])
def test_a_file_that_holds_no_run_is_passed_by(plan: Plan, text: str) -> None:
    store = Store.open(Path("store"))
    folder = store.get_work_dir(plan.trials[0].trial_id)
    folder.mkdir(parents=True)
    (folder / "run-000.json").write_text(text)
    assert StudyRun(plan, store, SilentObserver()).execute().num_ok == 1
