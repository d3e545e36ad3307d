import csv
import io
import json
import os
from pathlib import Path

import duckdb
import pytest
from made_records import made_record

from corewise.spec.errors import UserError
from corewise.store.export import export_records
from corewise.store.store import Store


@pytest.fixture
def store(tmp_path):
    store = Store.open(tmp_path / "store")
    store.append(made_record("a", 0.5))
    store.append(made_record("b", 0.25, params={"threads": 8, "args.depth": 3}))
    store.append(
        made_record(
            "c", status="failed", kind="memory", reason='out of "memory",\r\nrank 0', metrics={}, runs=()
        )
    )
    return store


def rows(text):
    return list(csv.DictReader(io.StringIO(text, newline="")))


def test_json_is_a_list_of_records_with_their_samples(store, tmp_path):
    out = tmp_path / "out.json"
    export_records(store, "json", out)
    data = json.loads(out.read_text(encoding="utf-8"))
    assert [d["trial_id"] for d in data] == ["a", "b", "c"]
    assert [d["status"] for d in data] == ["ok", "ok", "failed"]
    assert data[0]["params"]["threads"] == 4
    assert data[0]["metrics"]["step_s"] == 0.5
    assert data[0]["samples_s"] == [s for run in data[0]["runs"] for s in run["samples_s"]]
    assert len(data[0]["samples_s"]) == 30
    assert (data[2]["reason"], data[2]["samples_s"]) == ('out of "memory",\r\nrank 0', [])


def test_csv_has_one_row_a_record_and_a_column_for_each_parameter_and_metric(store, capsys):
    export_records(store, "csv", None)
    a, b, c = rows(capsys.readouterr().out)
    assert (a["trial_id"], a["params.threads"], a["params.args.depth"], a["metrics.step_s"]) == (
        "a",
        "4",
        "",
        "0.5",
    )
    assert (b["params.threads"], b["params.args.depth"], b["num_samples"]) == ("8", "3", "30")
    assert (c["status"], c["reason"], c["metrics.step_s"]) == ("failed", 'out of "memory",\nrank 0', "")
    assert a["params.smt"] == "false"
    assert a["params.interop_threads"] == ""


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", "\t=1", "\r=1"])
def test_text_a_spreadsheet_would_run_is_made_plain_text(tmp_path, capsys, text):
    store = Store.open(tmp_path / "store")
    store.append(made_record("a", study=text, params={text: 1}, metrics={"x": -1.5}))
    export_records(store, "csv", None)
    (row,) = rows(capsys.readouterr().out)
    assert row["study"][0] == "'"
    assert row["metrics.x"] == "-1.5"


def test_parquet_has_the_same_columns_with_their_types(store, tmp_path):
    out = tmp_path / "it's.parquet"
    export_records(store, "parquet", out)
    found = duckdb.sql(
        'select trial_id, "params.threads", "metrics.step_s", len(samples_s), "params.args.depth", '
        '"machine.hostname" '
        f"from read_parquet('{str(out).replace(chr(39), chr(39) * 2)}') order by trial_id"
    ).fetchall()
    assert found == [
        ("a", 4, 0.5, 30, None, "node1"),
        ("b", 8, 0.25, 30, 3, "node1"),
        ("c", 4, None, 0, None, "node1"),
    ]


@pytest.mark.parametrize("fmt", ["csv", "json", "parquet"])
def test_an_empty_store_gives_a_file_without_rows(tmp_path, fmt):
    out = tmp_path / "out"
    export_records(Store.open(tmp_path / "store"), fmt, out)
    read = {"csv": "read_csv", "json": "read_json", "parquet": "read_parquet"}[fmt]
    if fmt == "json":
        assert json.loads(out.read_text()) == []
    else:
        assert duckdb.sql(f"select count(*), count(trial_id) from {read}('{out}')").fetchall() == [(0, 0)]


def test_a_file_is_written_whole_or_not_at_all(store, tmp_path):
    out = tmp_path / "folder" / "out.json"
    with pytest.raises(UserError, match=r"cannot be written: No such file or directory"):
        export_records(store, "json", out)
    out.parent.mkdir()
    out.write_text("old")
    export_records(store, "json", out)
    assert len(json.loads(out.read_text())) == 3
    assert os.listdir(out.parent) == ["out.json"]


def test_a_link_keeps_pointing_to_its_file_and_a_device_stays_a_device(store, tmp_path):
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    real.touch()
    link.symlink_to(real)
    export_records(store, "json", link)
    assert link.is_symlink()
    assert len(json.loads(real.read_text())) == 3
    export_records(store, "csv", Path("/dev/null"))
    assert not os.path.isfile("/dev/null")


def test_an_unknown_format_names_the_nearest(store):
    with pytest.raises(UserError, match="unknown format 'parqet': did you mean 'parquet'"):
        export_records(store, "parqet", None)


def test_parquet_to_the_terminal_is_refused(store):
    with pytest.raises(UserError, match="-o FILE"):
        export_records(store, "parquet", None)


def test_what_was_wrong_with_the_store_comes_back(store, tmp_path):
    (path,) = store.records_folder.iterdir()
    path.write_bytes(path.read_bytes()[:-5])
    result = export_records(store, "json", tmp_path / "out.json")
    assert len(result.damage) == 1
    assert len(json.loads((tmp_path / "out.json").read_text())) == 2
