"""Every verb reads a store with edited records: it leaves them out, says so, and shows the rest."""

import csv
import json
import shutil
from pathlib import Path

import duckdb
import pytest
from tests.cli.sample_stores import made_record, scaling_records, write_store
from tests.store.edited_records import EDITS, replace_value, seal_by_hand
from typer.testing import CliRunner, Result

from corewise.cli.app import build_app
from corewise.store.store import Store

APP = build_app(["status", "show", "compare", "report", "export"])
GOOD = scaling_records()


@pytest.fixture(scope="module")
def edited(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store with good records in one file, and one record for each edit in another."""
    store = write_store(tmp_path_factory.mktemp("edited") / "store", *GOOD)
    lines = []
    for number, (place, value, _) in enumerate(EDITS):
        record = made_record(f"{number:08x}", params={"batch": 1000 + number}).to_json()
        lines.append(seal_by_hand(replace_value(record, place, value)))
    (store.records_folder / "edited.jsonl").write_bytes(b"".join(lines))
    return store


def invoke(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(APP, [str(each) for each in arguments], env={"COLUMNS": "300"})
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    return result


def test_status_names_every_edited_record_by_its_place_and_what_is_wrong(edited: Store) -> None:
    state = json.loads(invoke("status", "--store", edited.path, "--json").stdout)
    assert state["num_ok"] == len(GOOD)
    damage = state["damage"]
    assert [each["line"] for each in damage] == list(range(1, 1 + len(EDITS)))
    assert {Path(each["file"]).name for each in damage} == {"edited.jsonl"}
    raw = (edited.records_folder / "edited.jsonl").read_bytes()
    for each, (_, _, reason) in zip(damage, EDITS, strict=True):
        assert raw[each["offset"] :].startswith(b'{"schema":')
        assert each["reason"].startswith(reason)
    assert f"damage in {len(EDITS)} places" in invoke("status", "--store", edited.path).stdout


def test_show_counts_them_and_draws_the_rest(edited: Store) -> None:
    text = invoke("show", "--store", edited.path).stdout
    assert f"{len(EDITS)} places of the store could not be read: see `corewise status" in text
    [table] = json.loads(invoke("show", "--store", edited.path, "--json").stdout)
    assert [row["trial_id"] for row in table["rows"]] == [record.trial_id for record in GOOD]
    assert invoke("show", "--store", edited.path, "--trial", GOOD[0].trial_id).exit_code == 0


@pytest.mark.parametrize("fmt", ["json", "csv", "parquet"])
def test_export_writes_the_rest_and_names_what_it_left_out(edited: Store, tmp_path: Path, fmt: str) -> None:
    out = tmp_path / f"out.{fmt}"
    result = invoke("export", "--store", edited.path, "-o", out)
    assert f"{len(GOOD)} records written" in result.stderr
    assert f"skipped a damaged record: {edited.records_folder / 'edited.jsonl'}, line 1 (byte 0): " in result.stderr
    if fmt == "parquet":
        ids = [row[0] for row in duckdb.sql(f"select trial_id from '{out}'").fetchall()]
    else:
        rows = json.loads(out.read_text()) if fmt == "json" else csv.DictReader(out.read_text().splitlines())
        ids = [row["trial_id"] for row in rows]
    assert sorted(ids) == sorted(record.trial_id for record in GOOD)


def test_report_lists_them_among_its_notices(edited: Store, tmp_path: Path) -> None:
    made = json.loads(invoke("report", "--store", edited.path, "--json").stdout)
    left_out = [notice for notice in made["notices"] if notice.startswith("Left out: ")]
    assert "edited.jsonl, line 1 (byte 0): metrics.step_s is the number nan, not a finite number" in left_out[0]
    assert left_out[-1].endswith("more: see `corewise status --json`")
    assert len(made["studies"]) == 1
    invoke("report", "--store", edited.path, "-o", tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size > 10_000


@pytest.mark.parametrize("edited_comes_first", [True, False])
def test_compare_says_how_many_it_left_out(edited: Store, tmp_path: Path, edited_comes_first: bool) -> None:
    other = write_store(tmp_path / "other", *scaling_records()).path
    sides = (edited.path, other) if edited_comes_first else (other, edited.path)
    compared = json.loads(invoke("compare", *sides, "--json").stdout)
    assert len(compared["trials"]) == len(GOOD)
    [notice] = compared["a" if edited_comes_first else "b"]["notices"]
    assert notice.startswith(f"{len(EDITS)} places of {edited.path}")
    assert "line 1 (byte 0): metrics.step_s is the number nan" in notice


@pytest.mark.parametrize("verb", ["show", "report", "compare", "export", "status"])
def test_a_store_of_edited_records_alone_gives_no_traceback(edited: Store, tmp_path: Path, verb: str) -> None:
    store = tmp_path / "store"
    shutil.copytree(edited.path, store)
    for path in (store / "records").iterdir():
        if path.name != "edited.jsonl":
            path.unlink()
    arguments = [store, edited.path] if verb == "compare" else ["--store", store]
    arguments += ["-o", tmp_path / "page.html"] if verb == "report" else []
    result = CliRunner().invoke(APP, [verb, *map(str, arguments)])
    if verb == "report":
        # The page names the damaged lines; without a readable record the exit code is 1.
        assert result.exit_code == 1
        assert "nothing was measured" in result.output
        assert "edited.jsonl" in (tmp_path / "page.html").read_text()
        return
    assert result.exit_code == 0 or "edited.jsonl, line 1 (byte 0)" in str(result.exception)
