"""The command that starts a script: paths, loader workers, and options."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from corewise.errors import UserError
from corewise.progress import LOADER_WORKERS
from corewise.tuning.api import tune
from corewise.tuning.scripts.script_command import Script
from corewise.tuning.scripts.script_question import build_script_tunable
from corewise.tuning.scripts.throughput_parser import read_rate_pattern


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("train.py", "data.txt"):
        (tmp_path / name).write_text(f"# {LOADER_WORKERS}\n")
    for name in ("python", "out", "package"):
        (tmp_path / name).mkdir()
    return tmp_path


def test_a_command_stays_as_typed_in_a_mirror_unless_a_path_leads_out_of_it(folder: Path) -> None:
    inside = ("python", "train.py", "--data=data.txt", "./out/../data.txt", "--to", "new")
    assert Script(inside, folder).build_command({}, is_default=True) == list(inside)
    outside = ("python", "../train.py", "--data=../data.txt", "../new")
    started = Script(outside, folder / "out").build_command({}, is_default=True)
    assert started == ["python", f"{folder}/out/../train.py", f"--data={folder}/out/../data.txt", "../new"]


def test_a_command_stays_as_typed_in_the_users_folder(folder: Path) -> None:
    command = ("python", "../train.py", "--data=data.txt")
    assert Script(command, folder / "out", workdir=folder / "out").build_command({}, is_default=True) == list(command)


def test_paths_of_existing_files_become_absolute_in_another_folder(folder: Path) -> None:
    command = ("python", "train.py", "--data=data.txt", "--lr=0.1", "--to", "new", "-m", "package")
    started = Script(command, folder, workdir=folder / "out").build_command({}, is_default=True)
    assert started == [
        *("python", str(folder / "train.py"), f"--data={folder / 'data.txt'}", "--lr=0.1", "--to", "new"),
        *("-m", "package"),
    ]


@pytest.mark.parametrize(
    ("command", "missing"),
    [
        ("python nosuch.py --epochs 1", "nosuch.py"),
        ("/usr/bin/python3 -u nosuch.py", "nosuch.py"),
        ("python train.py nosuch.py", ""),
        ("python -m package nosuch.py", ""),
        # It is unknown whether an option takes an argument.
        ("python -W ignore nosuch.py", ""),
        ("./run.sh nosuch.py", ""),
    ],
)
def test_the_python_file_of_a_command_must_exist(command: str, missing: str, folder: Path) -> None:
    assert Script(tuple(command.split()), folder).find_missing_file() == missing


def test_a_missing_script_is_reported_with_the_users_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(UserError, match=re.escape(f"nosuch.py does not exist in {folder}")):
        tune(["python", "nosuch.py"], budget="30s", store=folder / "store")


def test_folders_that_the_command_names_are_listed(folder: Path) -> None:
    command = ("python", "-m", "package", "--out=out", f"--to={folder}/out", "data.txt")
    assert Script(command, folder).list_shared_folders() == [f"{folder}/out"]
    assert Script(command, folder, workdir=folder.parent).list_shared_folders() == ["out", f"{folder}/out"]


def test_the_default_has_no_loader_workers_but_those_of_its_command(folder: Path) -> None:
    by_variable = build_script_tunable(Script(("python", "train.py"), folder), {}, distributed=False)
    default = by_variable.space.build_params(by_variable.space.default)
    assert by_variable.script.build_environment(default) == {}
    command = by_variable.script.build_command({"loader_workers": 2}, is_default=False)
    assert f"{LOADER_WORKERS}=2" in command
    fixed = build_script_tunable(Script(("python", "train.py"), folder), {"loader_workers": 3}, distributed=False)
    assert fixed.space.find_knob("loader_workers") is None
    assert fixed.script.build_environment(fixed.space.build_params(fixed.space.default)) == {LOADER_WORKERS: "3"}


def test_different_options_give_different_keys(folder: Path) -> None:
    script = Script(("python", "train.py"), folder)
    others = [
        replace(script, rate=read_rate_pattern("(.*) img/s")),
        replace(script, check=re.compile("loss (.*)")),
        replace(script, folder=folder / "out"),
    ]
    scripts = [script, *others]
    assert (
        len(
            {
                replace(build_script_tunable(script, {}, distributed=False), script=each).compute_key()
                for each in scripts
            }
        )
        == 4
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "train"}, "--mode"),
        ({"runtime": "numpy"}, "--runtime"),
        ({"batch": 8}, "no {batch_per_rank}"),
        ({"fixed": {"processes": 2}}, "--set processes=2: several processes need --distributed"),
        ({"fixed": {"batch": 8}}, "--set batch: give it with --batch"),
        ({"fixed": {"batch_scope": "global"}}, "--set batch_scope: can only be set inside the script"),
        ({"allow": ["batch"]}, "--allow batch: write {batch_per_rank}"),
        ({"allow": ["lower-precision"]}, "--allow lower-precision: a script sets its precision itself"),
    ],
)
def test_options_that_do_not_apply_to_scripts_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        tune(["python", "train.py"], **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fixed", "is_launched"), [({"wait_policy": "passive"}, True), ({"bind": "none"}, False), ({}, False)]
)
def test_fixed_values_apply_to_the_default_too(folder: Path, fixed: dict[str, object], is_launched: bool) -> None:
    tunable = build_script_tunable(Script(("python", "train.py"), folder), fixed, distributed=False)
    command = tunable.script.build_command(tunable.space.build_params(tunable.space.default), is_default=True)
    assert ("launch" in command) is is_launched
    assert is_launched is ("--wait-policy passive" in " ".join(command))


def test_another_batch_fills_the_placeholder(folder: Path) -> None:
    script = Script(("python", "train.py", "--batch={batch_per_rank}"), folder, batch=8)
    tunable = build_script_tunable(script, {}, distributed=True, allow=["batch"])
    place = tunable.space.find_knob("batch")
    assert place is not None
    assert {"batch": 16} in tunable.space.knobs[place].choices
    assert tunable.script.fill_placeholders({"processes": 2, "batch": 16})[-1] == "--batch=8"
    assert tunable.script.explain_infeasible({"processes": 2, "batch": 16}) == ""
    assert "not divisible by 2 processes" in tunable.script.explain_infeasible({"processes": 2, "batch": 1})


def test_the_heading_of_a_script_shows_its_options(folder: Path) -> None:
    script = Script(("python", "train.py", "{batch_per_rank}"), folder, batch=8)
    tunable = build_script_tunable(script, {"wait_policy": "passive"}, distributed=True, allow=["batch"])
    assert tunable.asked == ("batch 8", "--distributed", "--set wait_policy=passive", "--allow batch")
