"""docs/scripts.md lists every key that the verbs print for scripts, and no other."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from corewise.analysis.result_tables import ResultRow, ResultTable
from corewise.bundle.bundle_maker import BundleResult
from corewise.bundle.contents import Bundle
from corewise.cli.app import build_app
from corewise.cli.launching.messages import outcome_to_json
from corewise.launch.launch_outcome import LaunchOutcome
from corewise.launch.pinning_proof import PinningVerifier
from corewise.launch.ranks import RankStart
from corewise.measured.trial import RankPlacement
from corewise.run.study_runner import StudyOutcome
from corewise.store.store import Store
from tests.analysis.scaling.made_clusters import Cluster, train_on
from tests.cli.sample_stores import scaling_records, unmeasured_records, write_store

APP = build_app()

PAGE = Path(__file__).resolve().parent.parent / "docs" / "scripts.md"


def documented_keys(heading: str) -> list[str]:
    """Return the keys in the first column of the table with this heading."""
    _, _, rest = PAGE.read_text().partition(f"| {heading} | value |\n|---|---|\n")
    assert rest, f"no table of {heading}"
    rows = rest.partition("\n\n")[0].splitlines()
    return [key for row in rows for key in re.findall(r"`([^`]+)`", row.split("|")[1])]


def documented_parts(verb: str, part: str) -> set[str]:
    """Return the keys in the second column of the row of a part."""
    section = PAGE.read_text().partition(f"\n## {verb}\n")[2].partition("\n## ")[0]
    (row,) = (line for line in section.splitlines() if line.startswith(f"| `{part}` |"))
    return set(re.findall(r"`([^`]+)`", row.split("|")[2])) - {"null"}


def printed(*args: str) -> Any:
    result = CliRunner().invoke(APP, [*args, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return write_store(tmp_path_factory.mktemp("scripts") / "store", *scaling_records(), *unmeasured_records())


@pytest.mark.parametrize("verb", ["doctor", "list", "plan", "status", "report"])
def test_the_keys_of_a_verb_are_those_it_prints(verb: str, store: Store) -> None:
    arguments = {"plan": ["quick"], "status": ["--store", str(store.path)], "report": ["--store", str(store.path)]}
    assert sorted(documented_keys(f"key of `corewise {verb}`")) == sorted(printed(verb, *arguments.get(verb, [])))


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
def test_the_keys_of_a_part_are_listed_in_its_row(verb: str, part: str) -> None:
    found = printed(verb, *(["quick"] if verb == "plan" else []))[part]
    assert documented_parts(verb, part) == set(found[0] if isinstance(found, list) else found)


def test_the_keys_of_shapes_are_those_it_prints(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    folder = str(tmp_path / "images")
    found = printed("shapes", folder, "--generate", "4", "--mean-megapixels", "0.001", "--batch", "2")
    assert sorted(documented_keys("key of `corewise shapes`")) == sorted(found)
    (tmp_path / "images" / "text.jpg").write_text("text")
    assert documented_parts("shapes", "images") == {*found["images"], "path", "reason"}
    assert documented_parts("shapes", "policies") - {"--seconds-per-megapixel"} == set(found["policies"]["budget"])


def test_the_keys_of_a_study_of_a_report_are_listed_in_its_row(store: Store) -> None:
    studies = printed("report", "--store", str(store.path))["studies"]
    assert documented_parts("report", "studies") - {"spec"} == set(studies[0])


def test_the_keys_of_a_launch_are_those_of_its_outcome() -> None:
    start = RankStart(0, ("true",), RankPlacement(cpus=(0,)), True, {}, {})
    proof = PinningVerifier([(0,)]).build_proof()
    found = outcome_to_json(LaunchOutcome((), None, "", (), False, (), proof), [start], {})
    assert sorted(documented_keys("key of `corewise launch`")) == sorted(found)
    assert sorted(documented_keys("key of a rank")) == sorted(found["ranks"][0])
    of_proof = {*found["verify"], *found["verify"]["ranks"][0]}
    assert documented_parts("launch", "verify") - {"--verify"} == of_proof


def test_the_keys_of_tables_and_rows_are_those_of_show(store: Store) -> None:
    first = printed("show", "--store", str(store.path))[0]
    assert sorted(documented_keys("key of a table")) == sorted(first)
    assert sorted(documented_keys("key of a row")) == sorted(first["rows"][0])
    assert {*first} == {each.name for each in dataclasses.fields(ResultTable)}
    assert {*first["rows"][0]} == {each.name for each in dataclasses.fields(ResultRow)}


def test_the_keys_of_a_scaling_curve_are_those_of_show(tmp_path: Path) -> None:
    records = train_on(Cluster(link_bytes_per_s=4e8), (1, 2, 4))
    store = write_store(tmp_path / "store", *records)
    [curve] = printed("show", "--store", str(store.path))[0]["scaling"]
    assert sorted(documented_keys("key of a scaling curve")) == sorted(curve)
    assert sorted(documented_keys("key of a scaling count")) == sorted(curve["counts"][0])


def test_the_keys_of_a_run_are_those_of_its_outcome() -> None:
    assert sorted(documented_keys("key of `corewise run`")) == sorted(["store", *StudyOutcome(0, 0, 0, 0).to_json()])


def test_the_keys_of_a_bundle_are_those_it_is_made_with() -> None:
    bundle = Bundle("1", "3.12", "x86_64", "2.28", False, (), (), "", ())
    result = BundleResult(Path("bundle"), None, bundle, size_bytes=0)
    assert sorted(documented_keys("key of `corewise bundle`")) == sorted(result.to_json())
