"""Commands that a finding tells the user to type exist."""

import re
from pathlib import Path

import typer
from typer.core import TyperGroup

import corewise.machine.machine_findings
from corewise.cli.app import build_app
from corewise.study.study import load_study

APP = build_app()


def test_every_command_of_a_remedy_can_be_typed_as_it_stands() -> None:
    group = typer.main.get_command(APP)
    assert isinstance(group, TyperGroup)
    commands = re.findall(r"`corewise ([^`{]+)`", Path(corewise.machine.machine_findings.__file__).read_text())
    for verb, *arguments in (line.split() for line in commands):
        group.commands[verb].make_context(verb, arguments)
    assert "run quick --set huge_pages=default,transparent" in commands
    assert load_study("quick", ["huge_pages=default,transparent"]).name == "quick"
