"""Which changes give a trial a new identity."""

from dataclasses import replace
from pathlib import Path

import pytest

from corewise.measured.runtimes.registry import RUNTIMES
from corewise.measured.trial import parse_trial, to_json
from corewise.measured.workloads.registry import WORKLOADS, RegistryEntry
from corewise.run.identity import trial_identity
from corewise.run.identity.trial_identity import hash_user_source, read_code_versions
from corewise.run.plan import Planner
from corewise.run.record_builder import build_skipped_record, build_trial_record
from corewise.run.trial_progress import TrialProgress
from corewise.study.axes import AXES
from corewise.study.study import Study, load_study
from corewise.study.trial_run import TrialRun

STUDY = """
workload: mine.py:make
mode: infer
runtime: numpy
axes: {threads: [1, 60000]}
"""
MINE = """
from helper import scale
from tools.more import ONE
def make(batch, mode):
    return {'step': scale}
"""
HELPER = "def scale():\n    return 2\n"


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(MINE)
    Path("helper.py").write_text(HELPER)
    Path("tools").mkdir()
    Path("tools/more.py").write_text("from . import most\nONE = 1\n")
    Path("tools/most.py").write_text("MOST = 2\n")
    Path("unused.py").write_text("")
    Path("study.yaml").write_text(STUDY)
    return load_study("study.yaml")


@pytest.mark.parametrize(
    ("file", "text", "is_same"),
    [
        ("mine.py", MINE + "\n# a comment\n", True),
        ("helper.py", '"""Scales."""\n\n\n' + HELPER, True),
        ("unused.py", "x = 1\n", True),
        ("mine.py", MINE.replace("'step'", "'Step'"), False),
        ("helper.py", HELPER.replace("2", "3"), False),
        ("tools/most.py", "MOST = 3\n", False),
    ],
)
def test_a_users_file_counts_with_the_modules_it_imports(study: Study, file: str, text: str, is_same: bool) -> None:
    before = hash_user_source(Path("mine.py").absolute())
    Path(file).write_text(text)
    assert (hash_user_source(Path("mine.py").absolute()) == before) is is_same


def test_a_changed_helper_and_a_new_generation_make_new_trials(study: Study) -> None:
    planner = Planner.from_study(study)
    first, again = planner.plan(study), planner.plan(study)
    assert first.trials == again.trials
    later = planner.plan(study, "2026-11-18")
    assert [later.trials[0].generation, later.trials[0].params] == ["2026-11-18", first.trials[0].params]
    Path("helper.py").write_text(HELPER.replace("2", "3"))
    changed = planner.plan(study)
    ids = [[each.trial_id for each in (*p.trials, *p.skipped)] for p in (first, later, changed)]
    assert [len(each) for each in ids] == [2, 2, 2]
    assert len({each for some in ids for each in some}) == 6


def test_the_folder_of_a_users_file_does_not_matter(study: Study, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for name in ("mine.py", "helper.py", "tools"):
        Path(name).rename(moved / name)
    Path("study.yaml").rename(moved / "study.yaml")
    planner = Planner.from_study(study)
    there = planner.plan(load_study(moved / "study.yaml")).trials[0]
    for name in ("mine.py", "helper.py", "tools"):
        (moved / name).rename(name)
    here = planner.plan(study).trials[0]
    assert here.params.workload != there.params.workload
    assert here.trial_id == there.trial_id


def test_a_raised_version_makes_new_trials(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    study = replace(study, workloads=("matmul",))
    planner = Planner.from_study(study)
    before = planner.plan(study).trials[0]
    raised = replace(WORKLOADS, built_in={**WORKLOADS.built_in, "matmul": RegistryEntry("", version=2)})
    monkeypatch.setattr(trial_identity, "WORKLOADS", raised)
    after = planner.plan(study).trials[0]
    assert (before.code_versions["workload"], after.code_versions["workload"]) == (1, 2)
    assert before.trial_id != after.trial_id


def test_versions_are_those_of_workload_runtime_and_engines() -> None:
    params = {"workload": "resnet50", "runtime": "torch", "execution": "script", "freezing": "full"}
    assert read_code_versions(params, {}).keys() == {"workload", "runtime", "execution", "freezing"}
    assert read_code_versions({**params, "freezing": "none"}, {}).keys() == {"workload", "runtime", "execution"}
    assert read_code_versions({**params, "runtime": "jax"}, {}).keys() == {"workload", "runtime"}
    mine = {**params, "workload": "/home/user/mine.py:make", "runtime": "a plug-in"}
    assert read_code_versions(mine, {"/home/user/mine.py:make": "0a1b"}) == {"source": "0a1b"}


def test_every_engine_has_a_version() -> None:
    for axis, none in (("execution", ()), ("freezing", ("none",))):
        for value in set(AXES[axis].choices) - set(none):
            params = {"workload": "resnet50", "runtime": "torch", axis: value}
            assert read_code_versions(params, {})[axis] >= 1, value
    assert all(RUNTIMES.find_version(name) for name in RUNTIMES.built_in)
    assert all(WORKLOADS.find_version(name) for name in WORKLOADS.built_in)


def test_trial_files_and_records_hold_versions_and_generation(study: Study) -> None:
    plan = Planner.from_study(study).plan(study, "again")
    [trial], [skipped] = plan.trials, plan.skipped
    assert parse_trial(to_json(trial)) == trial
    failed = TrialRun(status="failed", kind="crash", reason="killed")
    record = build_trial_record(plan, TrialProgress(trial, "", [failed]), "trials")
    assert record.code_versions == {"runtime": 1, "source": hash_user_source(Path("mine.py").absolute())}
    assert record.generation == "again"
    assert build_skipped_record(plan, skipped).code_versions == record.code_versions


def test_an_added_parameter_at_its_old_value_keeps_all_ids(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    planner = Planner.from_study(study)
    ids = [each.trial_id for each in planner.plan(study).trials]
    params = planner.plan(study).trials[0].params.to_mapping()
    monkeypatch.setattr(trial_identity, "ADDED_PARAMETERS", {"smt": params["smt"]})
    shorter = [each.trial_id for each in planner.plan(study).trials]
    assert shorter != ids
    without = {name: value for name, value in params.items() if name != "smt"}
    assert trial_identity.omit_added(params, {"smt": params["smt"]}) == without
    assert trial_identity.omit_added(params, {"smt": not params["smt"]}) == params
