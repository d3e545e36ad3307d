"""docs/scripts.md names every key that the verbs print for scripts, and no other."""

import dataclasses
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from corewise.bundle.contents import Bundle
from corewise.bundle.make import Made
from corewise.cli.launch_messages import outcome_to_json
from corewise.cli.main import app
from corewise.cli.tables import ResultTable, Row
from corewise.engine.run import Outcome
from corewise.launcher.outcome import Outcome as LaunchOutcome
from corewise.launcher.ranks import RankStart
from corewise.launcher.verify import Verifier
from corewise.spec.trial import RankPlacement
from corewise.store.store import Store

sys.path.insert(0, str(Path(__file__).parent / "cli"))

from made_stores import made_store, scaling_records, unmeasured_records

PAGE = Path(__file__).resolve().parent.parent / "docs" / "scripts.md"


def told_keys(heading: str) -> list[str]:
    """The keys in the first column of the table that is headed so."""
    _, _, rest = PAGE.read_text().partition(f"| {heading} | value |\n|---|---|\n")
    assert rest, f"no table of {heading}"
    rows = rest.partition("\n\n")[0].splitlines()
    return [key for row in rows for key in re.findall(r"`([^`]+)`", row.split("|")[1])]


def told_beside(verb: str, part: str) -> set[str]:
    """The keys that the row of a part names in its second column."""
    section = PAGE.read_text().partition(f"\n## {verb}\n")[2].partition("\n## ")[0]
    (row,) = (line for line in section.splitlines() if line.startswith(f"| `{part}` |"))
    return set(re.findall(r"`([^`]+)`", row.split("|")[2])) - {"null"}


def printed(*words: str) -> Any:
    result = CliRunner().invoke(app, [*words, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return made_store(tmp_path_factory.mktemp("scripts") / "store", *scaling_records(), *unmeasured_records())


@pytest.mark.parametrize("verb", ["doctor", "list", "plan", "status", "report"])
def test_the_keys_of_a_verb_are_those_it_prints(verb: str, store: Store) -> None:
    words = {
        "plan": ["quick"],
        "status": ["--store", str(store.path)],
        "report": ["--store", str(store.path)],
    }
    assert sorted(told_keys(f"key of `corewise {verb}`")) == sorted(printed(verb, *words.get(verb, [])))


@pytest.mark.parametrize(
    ("verb", "part"),
    [
        ("doctor", "facts"),
        ("doctor", "software"),
        ("list", "axes"),
        ("list", "workloads"),
        ("list", "studies"),
        ("plan", "trials"),
    ],
)
def test_the_keys_of_a_part_are_told_beside_it(verb: str, part: str) -> None:
    found = printed(verb, *(["quick"] if verb == "plan" else []))[part]
    assert told_beside(verb, part) == set(found[0] if isinstance(found, list) else found)


def test_the_keys_of_a_study_of_a_report_are_told_beside_it(store: Store) -> None:
    studies = printed("report", "--store", str(store.path))["studies"]
    assert told_beside("report", "studies") - {"spec"} == set(studies[0])


def test_the_keys_of_a_launch_are_those_of_its_outcome() -> None:
    start = RankStart(0, ("true",), RankPlacement(cpus=(0,)), True, {}, {})
    proof = Verifier([(0,)]).proof()
    found = outcome_to_json(LaunchOutcome((), None, "", (), False, (), proof), [start], {})
    assert sorted(told_keys("key of `corewise launch`")) == sorted(found)
    assert sorted(told_keys("key of a rank")) == sorted(found["ranks"][0])
    of_proof = {*found["verify"], *found["verify"]["ranks"][0]}
    assert told_beside("launch", "verify") - {"--verify"} == of_proof


def test_the_keys_of_tables_and_rows_are_those_of_show(store: Store) -> None:
    first = printed("show", "--store", str(store.path))[0]
    assert sorted(told_keys("key of a table")) == sorted(first)
    assert sorted(told_keys("key of a row")) == sorted(first["rows"][0])
    assert {*first} == {each.name for each in dataclasses.fields(ResultTable)}
    assert {*first["rows"][0]} == {each.name for each in dataclasses.fields(Row)}


def test_the_keys_of_a_run_are_those_of_its_outcome() -> None:
    assert sorted(told_keys("key of `corewise run`")) == sorted(["store", *Outcome(0, 0, 0, 0).to_json()])


def test_the_keys_of_a_bundle_are_those_it_is_made_with() -> None:
    bundle = Bundle("1", "3.12", "x86_64", "2.28", False, (), (), "", ())
    made = Made(Path("bundle"), None, bundle, size_bytes=0)
    assert sorted(told_keys("key of `corewise bundle`")) == sorted(made.to_json())
