"""The words that start a script: paths, loader workers, and what sets a question apart."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from corewise.progress import LOADER_WORKERS
from corewise.spec.errors import UserError
from corewise.tuner.api import tune
from corewise.tuner.script import Script
from corewise.tuner.script_question import make_script


@pytest.fixture
def here(tmp_path: Path) -> Path:
    for name in ("train.py", "data.txt"):
        (tmp_path / name).write_text(f"# {LOADER_WORKERS}\n")
    for name in ("python", "out", "package"):
        (tmp_path / name).mkdir()
    return tmp_path


def test_words_that_name_a_file_here_become_absolute_and_others_stay(here: Path) -> None:
    words = ("python", "train.py", "--data=data.txt", "--lr=0.1", "--to", "new", "-m", "package")
    found = Script(words, here).started_as({}, is_default=True)
    assert found == [
        *("python", str(here / "train.py"), f"--data={here / 'data.txt'}", "--lr=0.1", "--to", "new"),
        *("-m", "package"),
    ]


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        ("python nosuch.py --epochs 1", "nosuch.py"),
        ("/usr/bin/python3 -u nosuch.py", "nosuch.py"),
        ("python train.py nosuch.py", ""),
        ("python -m package nosuch.py", ""),
        ("python -W ignore nosuch.py", ""),  # what an option takes is not known: Python itself will tell
        ("./run.sh nosuch.py", ""),
    ],
)
def test_a_file_that_python_is_to_run_must_be_there(words: str, missing: str, here: Path) -> None:
    assert Script(tuple(words.split()), here).missing_file() == missing


def test_a_missing_script_is_named_where_the_user_is(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(here)
    with pytest.raises(UserError, match=re.escape(f"there is no file nosuch.py in {here}")):
        tune(["python", "nosuch.py"], budget="30s", store=here / "store")


def test_folders_that_the_command_names_are_told(here: Path) -> None:
    words = ("python", "-m", "package", "--out=out", "data.txt")
    assert Script(words, here).shared_folders() == ["out"]


def test_the_default_has_no_loader_workers_but_those_of_its_command(here: Path) -> None:
    by_variable = make_script(Script(("python", "train.py"), here), {}, distributed=False)
    default = by_variable.space.params(by_variable.space.default)
    assert by_variable.script.variables(default) == {}
    words = by_variable.script.started_as({"loader_workers": 2}, is_default=False)
    assert f"{LOADER_WORKERS}=2" in words
    fixed = make_script(Script(("python", "train.py"), here), {"loader_workers": 3}, distributed=False)
    assert fixed.space.index("loader_workers") is None
    assert fixed.script.variables(fixed.space.params(fixed.space.default)) == {LOADER_WORKERS: "3"}


def test_what_is_asked_sets_a_question_apart(here: Path) -> None:
    script = Script(("python", "train.py"), here)
    others = [
        replace(script, pattern=re.compile("(.*) img/s")),
        replace(script, check=re.compile("loss (.*)")),
        replace(script, folder=here / "out"),
    ]
    asked = [script, *others]
    assert (
        len({replace(make_script(script, {}, distributed=False), script=each).key() for each in asked}) == 4
    )


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"mode": "train"}, "--mode"),
        ({"runtime": "numpy"}, "--runtime"),
        ({"batch": 8}, "no {batch_per_rank}"),
        ({"fixed": {"processes": 2}}, "--set processes=2: processes stay 1 unless --distributed"),
        ({"fixed": {"batch": 8}}, "--set batch: give it with --batch"),
        ({"fixed": {"batch_scope": "global"}}, "--set batch_scope: can only be set inside the script"),
        ({"allow": ["batch"]}, "--allow batch: write {batch_per_rank}"),
        ({"allow": ["lower-precision"]}, "--allow lower-precision: a script sets its precision itself"),
    ],
)
def test_options_that_mean_nothing_for_a_script_are_refused(options: dict[str, object], told: str) -> None:
    with pytest.raises(UserError, match=re.escape(told)):
        tune(["python", "train.py"], **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fixed", "is_launched"), [({"wait_policy": "passive"}, True), ({"bind": "none"}, False), ({}, False)]
)
def test_what_is_fixed_holds_for_the_default_too(
    here: Path, fixed: dict[str, object], is_launched: bool
) -> None:
    made = make_script(Script(("python", "train.py"), here), fixed, distributed=False)
    words = made.script.started_as(made.space.params(made.space.default), is_default=True)
    assert ("launch" in words) is is_launched
    assert is_launched is ("--wait-policy passive" in " ".join(words))


def test_another_batch_takes_the_place_of_the_usual_one(here: Path) -> None:
    script = Script(("python", "train.py", "--batch={batch_per_rank}"), here, batch=8)
    made = make_script(script, {}, distributed=True, allow=["batch"])
    place = made.space.index("batch")
    assert place is not None
    assert {"batch": 16} in made.space.knobs[place].choices
    assert made.script.filled({"processes": 2, "batch": 16})[-1] == "--batch=8"
    assert made.script.reason_against({"processes": 2, "batch": 16}) == ""
    assert "no multiple of 2 processes" in made.script.reason_against({"processes": 2, "batch": 1})


def test_the_heading_of_a_script_tells_what_was_asked(here: Path) -> None:
    script = Script(("python", "train.py", "{batch_per_rank}"), here, batch=8)
    made = make_script(script, {"wait_policy": "passive"}, distributed=True, allow=["batch"])
    assert made.asked == ("batch 8", "--distributed", "--set wait_policy=passive", "--allow batch")
