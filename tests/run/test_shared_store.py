"""Two runs on one store: each takes into account what the other has done since."""

import errno
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from corewise.cli.render.run_progress import SilentObserver
from corewise.cli.status import read_state
from corewise.measured.trial import Trial, to_json, write_json_atomically
from corewise.measured.worker.main import run_by_hand
from corewise.run import study_runner
from corewise.run.plan import Plan, plan_study
from corewise.run.provisional_records import build_provisional_records
from corewise.run.record_builder import build_skipped_record
from corewise.run.study_runner import StudyRun
from corewise.store.leases import Lease, _read_lease_file, acquire_lease
from corewise.store.line_writer import StoreFull
from corewise.store.process_identity import ProcessIdentity
from corewise.store.sealed_lines import seal
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


class TakesOver(SilentObserver):
    """Another host takes over the trial while this process is paused, and records it while this one waits."""

    def __init__(self, store: Store, trial: Trial) -> None:
        self.store, self.trial = store, trial
        self.lease: Lease | None = None

    def take_over(self) -> None:
        path = self.store.leases_folder / f"trial-{self.trial.trial_id}.json"
        holder = _read_lease_file(path)
        assert holder is not None
        process = ProcessIdentity("elsewhere", "another boot", "", 1, 1)
        content = {"schema": 1, "token": "other", "since": "", "process": asdict(process), "info": {}}
        write_sealed(path, {**content, "replaced": [holder.token]})
        self.lease = Lease(path, "other", (holder.token,))

    def record(self) -> None:
        assert self.lease is not None
        values = {"lease": self.lease.token, "replaced_leases": self.lease.replaced, "finished_at": format_utc_now()}
        Store.open(self.store.path).append(
            Record(trial_id=self.trial.trial_id, study="study", status="ok", reason="other", **values)
        )
        self.lease.path.unlink()

    def report_waiting(self, num_trials: int) -> None:
        self.record()


def write_sealed(path: Path, content: dict[str, object]) -> None:
    """Replace a lease file as another host does: by renaming."""
    aside = path.with_suffix(".other")
    aside.write_bytes(seal(content))
    aside.replace(path)


class TakesOverAfterTheFirstRun(TakesOver):
    def report_run_end(self, trial: Trial, run: TrialRun, seconds_left: float) -> None:
        if self.lease is None:
            self.take_over()


@pytest.fixture
def quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study_runner, "POLL_OTHERS_S", 0.01)


def check_other_counts(store: Store, num_late: int) -> None:
    result = store.read_records()
    assert [record.reason for record in result.records] == ["other"]
    assert (len(result.duplicates), len(result.late)) == (0, num_late)
    assert list(store.leases_folder.glob("trial-*")) == []


@pytest.mark.usefixtures("quick_polls")
def test_a_paused_run_leaves_a_trial_that_was_taken_over_to_its_new_holder(plan: Plan) -> None:
    Path("fixed").touch()
    store = Store.open(Path("store"))
    outcome = StudyRun(plan, store, TakesOverAfterTheFirstRun(store, plan.trials[0])).execute()
    assert (outcome.num_ok, outcome.num_failed) == (0, 0)
    check_other_counts(store, num_late=0)


@pytest.mark.usefixtures("quick_polls")
def test_a_run_whose_folder_the_new_holder_removed_does_not_end_the_study(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("fixed").touch()
    store = Store.open(Path("store"))
    observer = TakesOver(store, plan.trials[0])
    save = study_runner.write_json_atomically

    def save_after_takeover(path: Path, value: Any) -> None:
        if path.name.startswith("run-"):
            observer.take_over()
            shutil.rmtree(path.parent)
        save(path, value)

    monkeypatch.setattr(study_runner, "write_json_atomically", save_after_takeover)
    assert StudyRun(plan, store, observer).execute().num_failed == 0
    check_other_counts(store, num_late=0)


@pytest.mark.usefixtures("quick_polls")
def test_a_trial_that_was_taken_over_before_its_record_was_written_counts_once(plan: Plan) -> None:
    Path("fixed").touch()
    store = Store.open(Path("store"))
    observer = TakesOver(store, plan.trials[0])
    build = study_runner.build_trial_record

    def build_after_takeover(*args: Any) -> Record:
        record = build(*args)
        observer.take_over()
        return record

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study_runner, "build_trial_record", build_after_takeover)
        assert StudyRun(plan, store, observer).execute().num_ok == 0
    check_other_counts(store, num_late=1)


def test_a_trial_that_was_taken_over_between_check_and_write_counts_once(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("fixed").touch()
    store = Store.open(Path("store"))
    observer = TakesOver(store, plan.trials[0])
    append = store.append

    def append_after_takeover(record: Record) -> None:
        observer.take_over()
        append(record)

    monkeypatch.setattr(store, "append", append_after_takeover)
    StudyRun(plan, store, observer).execute()
    observer.record()
    check_other_counts(store, num_late=1)


def test_all_leases_are_released_when_a_claim_fails(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_study(load_study("study.yaml", ["batch=1,2,3"]))
    store = Store.open(Path("store"))

    def fail(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(study_runner, "write_json_atomically", fail)
    with pytest.raises(StoreFull):
        StudyRun(plan, store, SilentObserver()).execute()
    assert list(store.leases_folder.iterdir()) == []


def test_the_lease_that_a_killed_run_left_after_its_record_is_removed(plan: Plan) -> None:
    Path("fixed").touch()
    store = Store.open(Path("store"))
    StudyRun(plan, store, SilentObserver()).execute()
    # The lease of a process that has ended on this host.
    with subprocess.Popen(["true"]) as ended:
        dead = replace(ProcessIdentity.from_current_process(), pid=ended.pid, start_ticks=0)
    left = store.leases_folder / f"trial-{plan.trials[0].trial_id}.json"
    write_sealed(left, {"schema": 1, "token": "t", "since": "", "process": asdict(dead), "info": {}})
    state = read_state(store)
    assert [(each.alive, each.left_over) for each in state.holders] == [(False, True)]
    assert state.interrupted == ()
    StudyRun(plan, store, SilentObserver()).execute()
    assert list(store.leases_folder.iterdir()) == []


SKIPS = STUDY.replace("fixed: {threads: 1, batch: 1}", "axes: {threads: [1, 5000, 6000]}\nfixed: {batch: 1}")


def test_two_hosts_do_not_both_record_what_is_infeasible(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("fixed").touch()
    Path("study.yaml").write_text(SKIPS)
    plan = plan_study(load_study("study.yaml", []))
    assert len(plan.skipped) == 2
    store = Store.open(Path("store"))
    with acquire_lease(store.leases_folder, study_runner.SKIP_LEASE):

        def record_meanwhile(seconds: float) -> None:
            for point in plan.skipped if not store.read_done_ids() else ():
                store.append(build_skipped_record(plan, point))

        monkeypatch.setattr(study_runner.time, "sleep", record_meanwhile)
        StudyRun(plan, store, SilentObserver()).execute()
    assert [record.status for record in store.read_records().records].count("skipped") == 2
    assert store.read_records().duplicates == ()


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
