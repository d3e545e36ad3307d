"""What there is to vary, and trial files written for running by hand."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from corewise.cli.app import build_app
from corewise.cli.render.plan_points import format_value, split_constants
from corewise.errors import UserError
from corewise.study.axes import AXES

APP = build_app()


def axes() -> dict[str, dict[str, object]]:
    listed = json.loads(CliRunner().invoke(APP, ["list", "--json"]).stdout)
    return {axis["name"]: axis for axis in listed["axes"]}


def test_every_axis_is_listed_with_its_values() -> None:
    assert list(axes()) == list(AXES)
    assert axes()["memory_format"]["values"] == ["contiguous", "channels_last", "blocked"]
    assert axes()["interop_threads"]["values"] == ["whole number ≥ 1", "null"]
    shown = CliRunner().invoke(APP, ["list"], env={"COLUMNS": "200"}).stdout
    assert "contiguous, channels_last, blocked" in shown


def test_values_are_shown_as_a_study_writes_them() -> None:
    assert [axes()[name]["default"] for name in ("interop_threads", "smt")] == ["null", "false"]
    assert [format_value(value) for value in (None, True, 4, "rank")] == ["null", "true", "4", "rank"]
    assert split_constants([{"smt": True, "interop_threads": 2}])[0] == "smt=true interop_threads=2"


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_trial_files_that_cannot_be_written_are_the_users_to_fix(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    result = CliRunner().invoke(APP, ["plan", "quick", "--write", str(tmp_path / name)])
    assert isinstance(result.exception, UserError)
    assert str(result.exception).endswith("choose another folder with --write")
