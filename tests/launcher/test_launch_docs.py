"""docs/launching.md says what the launcher does: its commands, its options, its file."""

import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest

from corewise.cli.launch_options import make_parser, read_words
from corewise.launcher.outcome import Manner
from corewise.launcher.streams import MAX_LINE_BYTES
from corewise.launcher.verify import LONGEST_WAIT_S, MAX_SHARE
from corewise.spec.tuned import TUNED_SCHEMA, Fingerprint, Measured, Subject, Tuned, read_tuned

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs/launching.md").read_text()
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def rows(first: str) -> list[tuple[str, str]]:
    table = TEXT.partition(f"| {first} |")[2].partition("\n\n")[0].splitlines()[2:]
    return [tuple(cell.strip() for cell in row.strip("|").split("|", 1)) for row in table]  # type: ignore[misc]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_launch_in_a_document_can_be_read(document: Path) -> None:
    lines = [line for line in document.read_text().splitlines() if line.startswith("corewise launch ")]
    for line in lines:
        words = shlex.split(line, comments=True)[2:]
        assert "--help" in words or read_words(words).command
    assert lines or document.name != "launching.md"


def test_the_table_of_options_is_that_of_the_parser() -> None:
    shown = [tuple(re.findall(r"`([^`]+)`", options)) for options, _ in rows("option")]
    real = [tuple(a.option_strings) for a in make_parser()._actions if a.option_strings and a.dest != "help"]
    assert shown == real


def test_the_words_a_choice_takes_are_those_of_the_axes() -> None:
    choices = {a.option_strings[0]: a.help or "" for a in make_parser()._actions if a.metavar == "WORD"}
    for options, what in rows("option"):
        named = re.findall(r"`([a-z]\w*)`", what)
        option = re.findall(r"`([^`]+)`", options)[0]
        if option in choices:
            words = choices[option].partition(":")[0].split(" | ")
            assert set(words) - {"default"} <= set(named) <= set(re.findall(r"\w+", choices[option])), option


def test_the_sections_of_a_tuned_file_are_those_of_the_code() -> None:
    table = rows("section")
    sections = [name for cell, _ in table for name in re.findall(r"`(\w+)`", cell)]
    assert set(sections) == {"schema", *(each.name for each in fields(Tuned))}
    told = {cell: set(re.findall(r"`(\w+)`", what)) for cell, what in table}
    for name, made in (("`subject`", Subject), ("`machine`", Fingerprint), ("`measured`", Measured)):
        assert told[name] == {each.name for each in fields(made)}
    assert f"version of the format: {TUNED_SCHEMA} |" in TEXT


def test_the_tuned_file_shown_can_be_read(tmp_path: Path) -> None:
    [shown] = re.findall(r"```yaml\n# tuned.yaml\n(.*?)```", TEXT, re.DOTALL)
    (tmp_path / "tuned.yaml").write_text(shown)
    assert read_tuned(tmp_path / "tuned.yaml").machine.num_cores == 16


def test_the_limits_are_those_of_the_code() -> None:
    assert f"longer than {MAX_LINE_BYTES >> 20} MiB is cut" in TEXT
    assert f"up to every {LONGEST_WAIT_S:g} seconds" in TEXT
    assert f"more than {100 * MAX_SHARE:g} % of a CPU" in TEXT
    assert f"once another process has failed; {Manner().grace_s:g} s" in TEXT
