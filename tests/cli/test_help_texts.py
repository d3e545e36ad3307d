"""Help texts: whole paragraphs, one example per line, flags without a type; shell completion."""

import os
import re
import subprocess
import sys

import pytest
import typer
from typer.core import TyperGroup
from typer.testing import CliRunner

from corewise import __version__
from corewise.cli.app import build_app
from corewise.cli.render.help_layout import split_examples, unwrap_docstring

APP = build_app()

GROUP = typer.main.get_command(APP)
assert isinstance(GROUP, TyperGroup)
VERBS = sorted(GROUP.commands)


def help_of(*arguments: str, **env: str) -> str:
    result = CliRunner().invoke(APP, [*arguments, "--help"], env={"COLUMNS": "120", **env})
    assert result.exit_code == 0
    return result.stdout


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_every_verb_ends_with_examples_one_per_line(verb: str) -> None:
    lines = [line.rstrip() for line in help_of(verb).rstrip().splitlines()]
    examples = lines[lines.index(" Examples:") + 1 :]
    assert examples
    assert all(line.startswith("   corewise ") for line in examples)
    assert any(line.startswith(f"   corewise {verb}") for line in examples)


@pytest.mark.parametrize("verb", ["", *VERBS])
def test_flags_are_shown_without_a_value(verb: str) -> None:
    assert "<bool>" not in help_of(*verb.split())


def test_paragraphs_are_not_broken_where_the_source_is() -> None:
    assert "of its ceiling that it reaches. If they" in " ".join(help_of("doctor", COLUMNS="80").split())
    assert "of its ceiling that it \n reaches" not in help_of("doctor", COLUMNS="90")
    assert "Measured once\n" not in unwrap_docstring(
        "First.\n\nSaid here. Measured once\nmore.\n\nExamples:\n\n  corewise x"
    )


def test_examples_are_split_from_the_description() -> None:
    assert split_examples("First.\n\n\n\nExamples:\n  corewise x") == ("First.", "\nExamples:\n  corewise x")
    assert split_examples("First.") == ("First.", "")


def test_unwrapping_twice_changes_nothing() -> None:
    text = "First,\nin two lines.\n\nA paragraph\nof two.\n\nExamples:\n\n  corewise x\n\n  corewise y"
    once = "First, in two lines.\n\n\n\nA paragraph of two.\n\nExamples:\n  corewise x\n  corewise y"
    assert unwrap_docstring(text) == unwrap_docstring(once) == once


def test_the_package_can_be_run_as_a_module() -> None:
    arguments = [sys.executable, "-m", "corewise", "--version"]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, f"corewise {__version__}\n")


def test_completion_scripts_can_be_installed_and_name_the_command() -> None:
    assert "--install-completion" in help_of()
    env = {**os.environ, "_COREWISE_COMPLETE": "source_bash"}
    done = subprocess.run([sys.executable, "-m", "corewise"], env=env, capture_output=True, text=True, timeout=60)
    assert "_COREWISE_COMPLETE=complete_bash" in done.stdout
    assert re.search(r"^complete .* corewise$", done.stdout, re.MULTILINE)


def test_verbs_and_values_are_completed() -> None:
    env = {**os.environ, "_COREWISE_COMPLETE": "complete_bash"}
    for arguments, expected in (("corewise stat", "status"), ("corewise launch --policy nu", "numa")):
        asked = {"COMP_WORDS": arguments, "COMP_CWORD": str(len(arguments.split()) - 1)}
        done = subprocess.run(
            [sys.executable, "-m", "corewise"], env={**env, **asked}, capture_output=True, text=True, timeout=60
        )
        assert done.stdout.split() == [expected]
