"""The options of `corewise tune` and the arguments of `corewise.tune` are one list."""

import inspect

import pytest
from typer.testing import CliRunner

from corewise.cli.app import build_app
from corewise.cli.tune import tune as verb
from corewise.tuning.api import tune as call

APP = build_app()

OF_CLUSTERS = {"on", "partition", "time_limit", "account", "constraint", "site", "detach", "job"}
OF_THE_TERMINAL = {"as_json", *OF_CLUSTERS}
OF_PYTHON = {"follower", "environment", "trust_environment"}
EMPTY = (None, ())


def test_both_take_the_same_by_the_same_names() -> None:
    options, arguments = (set(inspect.signature(each).parameters) for each in (verb, call))
    assert options - OF_THE_TERMINAL == arguments - OF_PYTHON


def test_both_have_the_same_defaults_but_for_the_file_of_settings() -> None:
    options, arguments = (inspect.signature(each).parameters for each in (verb, call))
    for name in options.keys() & arguments.keys() - {"output", "subject"}:
        ours, theirs = options[name].default, arguments[name].default
        assert str(ours) == str(theirs) or (ours in EMPTY and theirs in EMPTY), name


@pytest.mark.parametrize(
    ("arguments", "has_hint"),
    [(["sh", "train.sh", "--epochs", "1"], True), (["resnet18", "--bugdet", "1"], False)],
    ids=["command", "workload"],
)
def test_a_command_without_dashes_before_it_gets_a_hint(arguments: list[str], has_hint: bool) -> None:
    done = CliRunner().invoke(APP, ["tune", *arguments], env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert "No such option" in done.output
    assert ("after --" in done.output) is has_hint
