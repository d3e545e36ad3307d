"""The options of `corewise tune` and the arguments of `corewise.tune` are one list."""

import inspect

from corewise.cli.tune import tune as verb
from corewise.tuner.api import tune as call

OF_THE_TERMINAL = {"as_json", "quiet"}
OF_PYTHON = {"follower", "environment"}
EMPTY = (None, ())


def test_both_take_the_same_by_the_same_names() -> None:
    options, arguments = (set(inspect.signature(each).parameters) for each in (verb, call))
    assert options - OF_THE_TERMINAL == arguments - OF_PYTHON


def test_both_have_the_same_defaults_but_for_the_file_of_settings() -> None:
    options, arguments = (inspect.signature(each).parameters for each in (verb, call))
    for name in options.keys() & arguments.keys() - {"output", "subject"}:
        ours, theirs = options[name].default, arguments[name].default
        assert str(ours) == str(theirs) or (ours in EMPTY and theirs in EMPTY), name
