"""Help as a person sees it: whole paragraphs, examples one a line, flags without a type."""

import re

import pytest
import typer
from typer.core import TyperGroup
from typer.testing import CliRunner

from corewise.cli.help_texts import drawn
from corewise.cli.main import app

GROUP = typer.main.get_command(app)
assert isinstance(GROUP, TyperGroup)
VERBS = sorted(set(GROUP.commands) - {"launch"})  # launch has a parser of its own


def help_of(*words: str, **env: str) -> str:
    result = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "120", **env})
    assert result.exit_code == 0
    return result.stdout


@pytest.mark.parametrize("verb", VERBS)
def test_every_example_of_a_verb_is_a_line_of_its_own(verb: str) -> None:
    assert re.search(rf"^ Examples: *\n   corewise {verb}\b", help_of(verb), re.MULTILINE)


@pytest.mark.parametrize("verb", ["", *VERBS])
def test_no_flag_is_shown_as_if_it_took_a_value(verb: str) -> None:
    assert "<bool>" not in help_of(*verb.split())


def test_a_paragraph_is_not_broken_where_the_source_is() -> None:
    assert "Measured once more, a higher figure" in " ".join(help_of("doctor", COLUMNS="80").split())
    assert "Measured once \n" not in help_of("doctor", COLUMNS="80")
    assert "Measured once\n" not in drawn(
        "First.\n\nSaid here. Measured once\nmore.\n\nExamples:\n\n  corewise x"
    )


def test_help_drawn_twice_is_the_same() -> None:
    text = "First,\nin two lines.\n\nA paragraph\nof two.\n\nExamples:\n\n  corewise x\n\n  corewise y"
    once = "First, in two lines.\n\n\n\nA paragraph of two.\n\nExamples:\n  corewise x\n  corewise y"
    assert drawn(text) == drawn(once) == once
