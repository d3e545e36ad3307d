"""What a report advises where a tuning made the runs: commands of the tuner, not of a study."""

import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.report.sample_trials import MACHINE, around, failed, trial, write_store
from typer.core import TyperGroup

from corewise.analysis.findings.finding import Finding
from corewise.analysis.tuning_results import SettingResult
from corewise.cli.app import build_app
from corewise.report.report_builder import build_report
from corewise.store.store import Store
from corewise.study.record import Record
from corewise.tuning.journal import Journal
from corewise.tuning.result.tuning_result import TuneResult
from corewise.tuning.search.setting_space import Space
from corewise.tuning.session import record_answer

APP = build_app()

ASKED = ("batch 16", "image size 224", "runtime jax", "--set smt=no", "--allow lower-precision")


def noisy(threads: int, study: str, **params: Any) -> Record:
    """A trial whose runs are far apart, and were disturbed."""
    made = trial(around(10.0 * threads, 0.6), study=study, params={"threads": threads, **params})
    disturbances = ["other processes used 1.20 s of CPU on the rank's CPUs in 2.00 s"]
    return replace(made, runs=tuple({**run, "disturbances": disturbances} for run in made.runs))


def tuned_store(folder: Path, *records: Record, asked: tuple[str, ...] = ASKED, name: str = "") -> Path:
    """A store with the records of a tuning and its answer."""
    path = write_store(folder / "my store", *records)
    sides = [SettingResult(params=r.params, label=r.trial_id, throughput=1.0, trial_id=r.trial_id) for r in records]
    result = TuneResult(
        name=name or records[0].study.removeprefix("tune "),
        mode=str(records[0].params["mode"]),
        batch=16,
        machine="16 cores",
        verdict="no difference",
        default=sides[0],
        best=sides[0],
        measured=tuple(sides),
        asked=asked,
    )
    record_answer(Journal(Store.open(path), "a" * 16, Space({}, ())), result)
    return path


def commands(findings: list[Finding]) -> list[list[str]]:
    return [shlex.split(line) for f in findings for line in re.findall(r"`(corewise [^`]+)`", f.remedy)]


def tunes(store: Path) -> list[list[str]]:
    """The commands of all remedies that tune; there is none that runs a study."""
    found = commands(list(build_report([store]).findings))
    assert not [arguments for arguments in found if arguments[1] == "run"]
    return [arguments[2:] for arguments in found if arguments[1] == "tune"]


def test_noise_in_a_tuning_is_answered_with_the_question_and_more_time(tmp_path: Path) -> None:
    records = [noisy(t, "tune resnet50 train", runtime="jax") for t in (1, 2, 4)]
    found = tunes(tuned_store(tmp_path, *records))
    assert found
    command = ["--budget", "20m", "--store", "quiet-store", "resnet50", "--mode", "train", "--batch", "16"]
    command += ["--runtime", "jax", "--args", "image_size=224", "--set", "smt=false"]
    assert found[0] == [*command, "--allow", "lower-precision"]


def test_every_command_can_be_typed(tmp_path: Path) -> None:
    group = typer.main.get_command(APP)
    assert isinstance(group, TyperGroup)
    study = "tune resnet50 train"
    records = [*(noisy(t, study) for t in (1, 2)), failed(study=study, params={"batch": 64})]
    found = tunes(tuned_store(tmp_path, *records))
    assert len(found) >= 2
    for arguments in found:
        group.commands["tune"].make_context("tune", list(arguments))


def test_what_failed_is_tuned_again_into_the_same_store(tmp_path: Path) -> None:
    study = "tune resnet50 train"
    store = tuned_store(tmp_path, trial(10.0, study=study), failed(study=study, params={"threads": 8}))
    [arguments] = tunes(store)
    assert arguments[: arguments.index("resnet50")] == ["--store", str(store)]


def test_a_tuning_without_an_answer_is_known_by_its_runs(tmp_path: Path) -> None:
    own = {"workload": "/home/me/own.py:make", "processes": 2, "batch": 8, "device": "cuda"}
    records = [noisy(t, "tune own.py:make train", **own) for t in (1, 2, 4)]
    found = tunes(write_store(tmp_path / "store", *records))
    expected = ["/home/me/own.py:make", "--mode", "train", "--batch", "16", "--args", "image_size=224"]
    assert found[0][4:] == [*expected, "--set", "device=cuda"]


def test_a_script_is_tuned_again_by_its_command(tmp_path: Path) -> None:
    script = {"workload": "python 'my train.py' {batch_per_rank}", "mode": "script"}
    records = [noisy(t, f"tune {script['workload']}", **script) for t in (1, 2, 4)]
    asked = ("batch 32", "--distributed", "--set threads=1", "--allow batch")
    found = tunes(tuned_store(tmp_path, *records, asked=asked, name=script["workload"]))
    wishes = ["--set", "threads=1", "--distributed", "--allow", "batch"]
    assert found[0][4:] == ["--batch", "32", *wishes, "--", "python", "my train.py", "{batch_per_rank}"]


def test_what_the_search_has_tried_is_not_advised(tmp_path: Path) -> None:
    study, machine = "tune resnet50 train", {**MACHINE, "allocation_cpus": "0-31"}
    faults = {"minor_faults_per_step": 500_000.0, "step_s": 0.2}
    common = {"study": study, "machine": machine, "metrics": faults}
    records = [trial(10.0 + b, params={"batch": b}, **common) for b in (4, 8)]
    assert list(build_report([tuned_store(tmp_path, *records)]).findings) == []


def test_a_kernel_far_below_the_roof_says_that_settings_do_not_help(tmp_path: Path) -> None:
    reached = {"fraction_of_ceiling": 0.2, "memory_bound": 1.0}
    kernel = {"workload": "gemm", "mode": "infer"}
    record = trial(10.0, study="tune gemm infer", params=kernel, metrics=reached, work={})
    [found] = build_report([tuned_store(tmp_path, record)]).findings
    assert found.remedy.startswith("No tried setting comes closer")


@pytest.mark.parametrize("study", ["tune resnet50", "tune resnet18 train", "tuned"])
def test_a_study_whose_name_only_looks_like_a_tuning_is_run(tmp_path: Path, study: str) -> None:
    store = write_store(tmp_path / "store", *(noisy(t, study) for t in (1, 2, 4)))
    found = commands(list(build_report([store]).findings))
    assert next(arguments[1:3] for arguments in found if arguments[1] != "doctor") == ["run", f"{study}.yaml"]
