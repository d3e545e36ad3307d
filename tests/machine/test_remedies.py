"""Commands that a finding tells the user to type exist."""

import re
from pathlib import Path

import typer
from typer.core import TyperGroup

import corewise.machine.findings
from corewise.cli.main import app
from corewise.spec.study import load_study


def test_every_command_of_a_remedy_can_be_typed_as_it_stands() -> None:
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    told = re.findall(r"`corewise ([^`{]+)`", Path(corewise.machine.findings.__file__).read_text())
    for verb, *words in (line.split() for line in told):
        group.commands[verb].make_context(verb, words)
    assert "run quick --set huge_pages=default,transparent" in told
    assert load_study("quick", ["huge_pages=default,transparent"]).name == "quick"
