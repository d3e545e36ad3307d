"""Stores from before code had versions still count.

`data/before-versions` was written by the last version of Corewise that hashed sources.
"""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from corewise.cli.render.run_progress import SilentObserver
from corewise.measured.trial import Protocol
from corewise.run.identity.legacy_identity import compute_old_identity, keep_old_ids
from corewise.run.machine_view import Interpreter
from corewise.run.plan import Plan, plan_study
from corewise.run.study_runner import StudyRun
from corewise.store.store import Store
from corewise.study.study import load_study

OLD = Path(__file__).parent / "data/before-versions"
STUDY = """
workload: matmul
mode: infer
runtime: numpy
axes: {threads: [1, 60000]}
protocol: {min_runs: 1, max_runs: 1}
"""


@pytest.fixture
def old() -> dict[str, Any]:
    identities: dict[str, Any] = json.loads((OLD / "identities.json").read_text())
    return identities


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    shutil.copytree(OLD / "store", tmp_path / "store")
    with Store.open(tmp_path / "store") as opened:
        yield opened


def compute_identity(old: dict[str, Any], params: dict[str, Any], environment: dict[str, str]) -> str:
    host: Any = SimpleNamespace(class_hash=old["class_hash"], compute_allocation_shape=lambda: old["allocation_shape"])
    interpreter = Interpreter(("/usr/bin/python3",), old["python"], "/usr", old["packages"])
    return compute_old_identity(params, Protocol(**old["protocol"]), host, interpreter, environment)


def test_old_ids_are_computed_as_they_were(old: dict[str, Any]) -> None:
    assert len({case["trial_id"] for case in old["cases"]}) == 5
    for case in old["cases"]:
        assert compute_identity(old, case["params"], old["environment"]) == case["trial_id"], case["params"]


def test_old_records_are_read_and_their_ids_computed(old: dict[str, Any], store: Store, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(old["mine.py"])
    result = store.read_records()
    assert not result.damage
    assert [record.status for record in result.records] == ["skipped", "ok", "ok"]
    for record in result.records:
        params = dict(record.params)
        params["workload"] = params["workload"].replace("/home/user", str(tmp_path))
        assert compute_identity(old, params, {}) == record.trial_id
        assert (dict(record.code_versions), record.generation) == ({}, "")


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    (tmp_path / "study.yaml").write_text(STUDY)
    return plan_study(load_study(tmp_path / "study.yaml"))


def compute_old_id(plan: Plan, params: Any) -> str:
    study = plan.study
    return compute_old_identity(params, study.protocol, plan.host, plan.interpreter, study.environment)


def test_a_trial_with_a_record_under_its_old_id_is_done(plan: Plan, store: Store) -> None:
    record = next(each for each in store.read_records().records if each.status == "ok")
    [trial] = plan.trials
    store.append(replace(record, trial_id=compute_old_id(plan, trial.params.to_mapping())))
    adopted = keep_old_ids(plan, store)
    assert [each.trial_id for each in adopted.trials] == [compute_old_id(plan, trial.params.to_mapping())]
    assert adopted.skipped == plan.skipped
    outcome = StudyRun(adopted, store, SilentObserver()).execute()
    assert (outcome.num_already_done, outcome.num_ok, outcome.num_skipped) == (1, 0, 1)


def test_a_skipped_point_is_recorded_once(plan: Plan, store: Store) -> None:
    record = next(each for each in store.read_records().records if each.status == "skipped")
    store.append(replace(record, trial_id=compute_old_id(plan, plan.skipped[0].params)))
    adopted = replace(keep_old_ids(plan, store), trials=())
    num_before = len(store.read_done_ids())
    assert StudyRun(adopted, store, SilentObserver()).execute().num_skipped == 0
    assert len(store.read_done_ids()) == num_before


def test_unknown_trials_and_new_generations_keep_their_new_ids(plan: Plan, store: Store) -> None:
    assert keep_old_ids(plan, store) == plan
    [trial] = plan.trials
    record = store.read_records().records[0]
    store.append(replace(record, trial_id=compute_old_id(plan, trial.params.to_mapping())))
    later = replace(plan, trials=(replace(trial, generation="again"),))
    assert keep_old_ids(later, store).trials == later.trials
    store.append(replace(record, trial_id=trial.trial_id))
    assert keep_old_ids(plan, store) == plan
