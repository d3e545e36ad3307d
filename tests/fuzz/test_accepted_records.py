"""A record that reading accepts never makes a verb fail, whatever was edited in it."""

import copy
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from corewise.cli.app import build_app
from corewise.errors import UserError
from corewise.store.store import Store
from corewise.study.record import Record, UnreadableRecord

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from fuzz_mutations import CONTAINERS, DEEP, SCALARS, seal_body
from fuzz_targets import CORPUS

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::RuntimeWarning")]
APP = build_app(["status", "show", "compare", "report", "export"])
SEEDS = ("one-rank", "two-ranks", "skipped", "failed")
VALUES = (*(each for each in SCALARS if each != DEEP), *CONTAINERS)
# Every twelfth edit is tried, and thirty records share a store.
STEP, NUM_TOGETHER = 12, 30


def load_seed(name: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((CORPUS / "store_line" / f"{name}.jsonl").read_bytes())
    del record["crc"]
    return record


def iterate_places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the place of every value; of a list, only of its first."""
    items = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, each in items:
        yield (*place, key)
        yield from iterate_places(each, (*place, key))


def list_accepted(seed: str) -> list[dict[str, Any]]:
    """Return edited records that are read, each with a trial id of its own."""
    record, accepted = load_seed(seed), []
    edits = [
        (place, value)
        for place in iterate_places(record)
        for value in VALUES
        if place not in (("schema",), ("trial_id",))
    ]
    for number, (place, value) in enumerate(edits[::STEP]):
        changed = copy.deepcopy(record)
        holder: Any = changed
        for key in place[:-1]:
            holder = holder[key]
        holder[place[-1]] = value
        changed["trial_id"] = f"{number:016x}"
        try:
            Record.from_json(json.loads(json.dumps(changed)))
        except UnreadableRecord:
            continue
        accepted.append(changed)
    return accepted


def write_store(path: Path, records: list[dict[str, Any]]) -> Path:
    store = Store.open(path)
    store.records_folder.mkdir()
    lines = [seal_body(json.dumps(record)[:-1].encode()) for record in records]
    (store.records_folder / "edited.jsonl").write_bytes(b"".join(lines))
    return path


def invoke(*arguments: object) -> None:
    result = CliRunner().invoke(APP, [str(each) for each in arguments], env={"COLUMNS": "200"})
    if result.exception is not None and not isinstance(result.exception, SystemExit | UserError):
        raise result.exception


@pytest.mark.parametrize("seed", SEEDS)
def test_every_verb_takes_every_record_that_is_read(seed: str, tmp_path: Path) -> None:
    accepted, plain = list_accepted(seed), [load_seed(each) for each in SEEDS]
    assert len(accepted) > 30
    other = write_store(tmp_path / "other", plain)
    for start in range(0, len(accepted), NUM_TOGETHER):
        chosen = accepted[start : start + NUM_TOGETHER]
        store = write_store(tmp_path / f"store-{start}", [*plain, *chosen])
        assert Store.open(store, create=False).read_records().damage == ()
        for fmt in ("json", "csv", "parquet"):
            invoke("export", "--store", store, "-o", tmp_path / f"out.{fmt}")
        invoke("status", "--store", store)
        invoke("show", "--store", store)
        invoke("show", "--store", store, "--json")
        invoke("compare", store, other)
        invoke("compare", other, store, "--json")
        invoke("report", "--store", store, "-o", tmp_path / "page.html")
        invoke("report", "--store", store, "--json")
        for record in chosen:
            invoke("show", "--store", store, "--trial", record["trial_id"])
            invoke("show", "--store", store, "--trial", record["trial_id"], "--json")
