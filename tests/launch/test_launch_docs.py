"""docs/launching.md matches the launcher: its commands, options and tuned file."""

import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest
import typer
from tests.launch_parsing import parse_launch

from corewise.cli.app import build_app
from corewise.launch.launch_outcome import LaunchPolicy
from corewise.launch.pinning_proof import LONGEST_WAIT_S, MAX_SHARE
from corewise.launch.supervision.output_streams import MAX_LINE_BYTES
from corewise.study.tuned_file import (
    TUNED_SCHEMA,
    MachineFingerprint,
    MeasuredSpeedup,
    TunedSettings,
    TuningSubject,
    read_tuned,
)

APP = build_app()

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs/launching.md").read_text()
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


LAUNCH = typer.main.get_command(APP).commands["launch"]  # type: ignore[attr-defined]
OPTIONS = [
    param for param in LAUNCH.params if param.param_type_name == "option" and not getattr(param, "hidden", False)
]


def rows(first: str) -> list[tuple[str, str]]:
    table = TEXT.partition(f"| {first} |")[2].partition("\n\n")[0].splitlines()[2:]
    return [tuple(cell.strip() for cell in row.strip("|").split("|", 1)) for row in table]  # type: ignore[misc]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_launch_in_a_document_can_be_parsed(document: Path) -> None:
    lines = [line for line in document.read_text().splitlines() if line.startswith("corewise launch ")]
    for line in lines:
        arguments = shlex.split(line, comments=True)[2:]
        assert "--help" in arguments or parse_launch(arguments).command
    assert lines or document.name != "launching.md"


def test_the_table_lists_the_options_of_the_command() -> None:
    shown = [tuple(re.findall(r"`([^`]+)`", options)) for options, _ in rows("option")]
    both = [(param.opts, param.secondary_opts) for param in OPTIONS]
    assert shown == [tuple(names) for pair in both for names in pair if names]


def test_the_values_of_an_option_are_those_of_its_axis() -> None:
    choices = {param.opts[0]: param.help or "" for param in OPTIONS if param.metavar == "VALUE"}
    for options, what in rows("option"):
        named = re.findall(r"`([a-z]\w*)`", what)
        option = re.findall(r"`([^`]+)`", options)[0]
        if option in choices:
            values = choices[option].partition(":")[0].split(" | ")
            assert set(values) - {"default"} <= set(named) <= set(re.findall(r"\w+", choices[option])), option


def test_the_sections_of_a_tuned_file_are_those_of_the_code() -> None:
    table = rows("section")
    sections = [name for cell, _ in table for name in re.findall(r"`(\w+)`", cell)]
    assert set(sections) == {"schema", *(each.name for each in fields(TunedSettings))}
    documented = {cell: set(re.findall(r"`(\w+)`", what)) for cell, what in table}
    for name, section in (
        ("`subject`", TuningSubject),
        ("`machine`", MachineFingerprint),
        ("`measured`", MeasuredSpeedup),
    ):
        assert documented[name] == {each.name for each in fields(section)}
    assert f"version of the format: {TUNED_SCHEMA} |" in TEXT


def test_the_tuned_file_shown_can_be_read(tmp_path: Path) -> None:
    [shown] = re.findall(r"```yaml\n# tuned.yaml\n(.*?)```", TEXT, re.DOTALL)
    (tmp_path / "tuned.yaml").write_text(shown)
    assert read_tuned(tmp_path / "tuned.yaml").machine.num_cores == 16


def test_the_limits_are_those_of_the_code() -> None:
    text = " ".join(TEXT.split())
    assert f"longer than {MAX_LINE_BYTES >> 20} MiB is cut" in text
    assert f"up to every {LONGEST_WAIT_S:g} seconds" in text
    assert f"more than {100 * MAX_SHARE:g} % of a CPU" in text
    assert f"once another process has failed; {LaunchPolicy().grace_s:g} s" in text
