"""Outputs that cannot be written: a reader that left is no failure of any verb, a full disk is one line."""

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
    "--version",
    "doctor",
    "doctor --json",
    "list",
    "list --json",
    "plan quick",
    f"status --store {STORE}",
    f"show --store {STORE}",
    f"show --store {STORE} --json",
    f"export --store {STORE}",
    f"export --store {STORE} --format json",
    f"report --store {STORE} --json",
    f"compare {STORE} --by threads=1,2",
    f"compare {STORE} --by threads=1,2 --json",
    "launch --dry-run -- true",
    "run --help",
]
each_verb = pytest.mark.parametrize("arguments", VERBS, ids=[each.replace(STORE, "STORE") for each in VERBS])


def run_with_closed_output(arguments: list[str], **more: str) -> tuple[int, str]:
    """The exit code and what was said on standard error, when nobody reads standard output."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        arguments, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, env={**os.environ, **more}
    )
    os.close(writer)
    return done.returncode, done.stderr


@each_verb
def test_a_verb_whose_reader_leaves_ends_well_and_says_nothing(arguments: str) -> None:
    assert run_with_closed_output([sys.executable, "-m", "corewise", *arguments.split()]) == (0, "")


@each_verb
def test_a_full_disk_gives_one_line_and_code_1(arguments: str) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "corewise", *arguments.split()], stdout=full, stderr=subprocess.PIPE, text=True
        )
    problem = "corewise: standard output is incomplete: No space left on device; redirect it elsewhere\n"
    assert (done.returncode, done.stderr) == (1, problem)


@each_verb
def test_a_closed_output_is_like_none(arguments: str) -> None:
    line = '"$0" -m corewise "$@" >&-'
    done = subprocess.run(["sh", "-c", line, sys.executable, *arguments.split()], stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_error_that_cannot_be_printed_still_gives_its_code() -> None:
    command = [sys.executable, "-m", "corewise", "plan", "no-such-study"]
    with open("/dev/full", "w") as full:
        assert subprocess.run(command, stdout=subprocess.DEVNULL, stderr=full).returncode == 2
    assert subprocess.run(["sh", "-c", '"$@" 2>&-', "sh", *command], stdout=subprocess.DEVNULL).returncode == 2


def test_plain_help_whose_reader_leaves_ends_well_and_says_nothing() -> None:
    """As on a node that has none of what draws help."""
    arguments = [sys.executable, "-m", "corewise", "--help"]
    assert run_with_closed_output(arguments, TYPER_USE_RICH="0") == (0, "")


def test_every_verb_ends_in_the_same_manner() -> None:
    assert all(each.cls is not None and issubclass(each.cls, Verb) for each in APP.registered_commands)
