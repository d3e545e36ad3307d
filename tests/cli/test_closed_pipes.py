"""A reader that has seen enough, as in `corewise list | head`, is no failure of any verb."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from corewise.cli.app import build_app
from corewise.cli.verb_classes import Verb

APP = build_app()

STORE = str(Path(__file__).parents[2] / "benchmarks/data/xeon-16-cores/store")
VERBS = [
    "--help",
    "doctor",
    "list",
    "list --json",
    "plan quick",
    f"status --store {STORE}",
    f"show --store {STORE}",
    f"export --store {STORE}",
    "run --help",
]


def left_by_its_reader(arguments: list[str], **more: str) -> tuple[int, str]:
    """The exit code and what was said on standard error, when nobody reads standard output."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        arguments, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, env={**os.environ, **more}
    )
    os.close(writer)
    return done.returncode, done.stderr


@pytest.mark.parametrize("arguments", VERBS, ids=[arguments.replace(STORE, "STORE") for arguments in VERBS])
def test_a_verb_whose_reader_leaves_ends_well_and_says_nothing(arguments: str) -> None:
    assert left_by_its_reader([sys.executable, "-m", "corewise", *arguments.split()]) == (0, "")


def test_plain_help_whose_reader_leaves_ends_well_and_says_nothing() -> None:
    """As on a node that has none of what draws help."""
    arguments = [sys.executable, "-m", "corewise", "--help"]
    assert left_by_its_reader(arguments, TYPER_USE_RICH="0") == (0, "")


def test_every_verb_ends_in_the_same_manner() -> None:
    assert all(each.cls is not None and issubclass(each.cls, Verb) for each in APP.registered_commands)
