import csv
import io
import json
import os
import zlib
from pathlib import Path

import duckdb
import pytest
from made_records import made_record

from corewise.errors import UserError
from corewise.store import file_parts, parallel_readers, sql_query
from corewise.store.export import export_records
from corewise.store.json_rows import build_export_row
from corewise.store.store import Store


@pytest.fixture
def store(tmp_path):
    store = Store.open(tmp_path / "store")
    store.append(made_record("a", 0.5))
    store.append(made_record("b", 0.25, params={"threads": 8, "args.depth": 3}))
    store.append(
        made_record("c", status="failed", kind="memory", reason='out of "memory",\r\nrank 0', metrics={}, runs=())
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
    assert (a["trial_id"], a["params.threads"], a["params.args.depth"], a["metrics.step_s"]) == ("a", "4", "", "0.5")
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
    assert found == [("a", 4, 0.5, 30, None, "node1"), ("b", 8, 0.25, 30, 3, "node1"), ("c", 4, None, 0, None, "node1")]


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


ODD = {
    "extra keys": {"later_key": [1, 2]},
    "a NUL": {"reason": "a\0b"},
    "text beyond ASCII": {"question": "Größe?"},
    "an integer of 80 bits": {"params": {"x": 2**80}},
    "a list": {"params": {"x": [1, {"y": None}]}},
    "no work": {"work": {}},
    "a time in another zone": {"finished_at": "2026-11-15T12:00:30+02:00"},
    "no times": {"started_at": "", "finished_at": "when?"},
    "a key that differs in its case": {"params": {"Threads": 3, "threads": 4}},
}
UNUSABLE = {
    "a metric without a value": {"metrics": {"x": None, "y": 1.5}},
    "not a number": {"metrics": {"x": float("nan"), "y": 2.5}},
    "half a surrogate": {"notes": ["\ud800"]},
}


def sealed(record, changes, without=()):
    """A line as another writer may have made it."""
    data = {k: v for k, v in (made_record(record).to_json() | changes).items() if k not in without}
    body = json.dumps(data)[:-1].encode()
    return body + b',"crc":"%08x"}\n' % zlib.crc32(body)


@pytest.fixture
def odd_store(tmp_path):
    store = Store.open(tmp_path / "store")
    store.records_folder.mkdir()
    lines = [sealed(name, changes) for name, changes in (ODD | UNUSABLE).items()]
    lines += [sealed("few keys", {}, without=("env", "notes")), sealed("plain", {})]
    (store.records_folder / "odd.jsonl").write_bytes(b"".join(lines))
    return store


def test_json_says_of_odd_records_what_reading_them_says(odd_store, tmp_path, capsys):
    out = tmp_path / "out.json"
    result = export_records(odd_store, "json", out)
    assert (result.num_records, len(result.damage)) == (len(ODD) + 2, len(UNUSABLE))
    wanted = [build_export_row(record) for record in odd_store.read_records().records]
    assert json.loads(out.read_text(encoding="utf-8")) == wanted
    assert [list(each) for each in json.loads(out.read_bytes())] == [list(each) for each in wanted]
    export_records(odd_store, "json", None)
    assert json.loads(capsys.readouterr().out) == wanted


def test_json_for_a_terminal_without_unicode_is_ascii(odd_store, monkeypatch):
    bare = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", bare)
    export_records(odd_store, "json", None)
    bare.flush()
    data = json.loads(bare.buffer.getvalue().decode("ascii"))
    assert "Größe?" in {each["question"] for each in data}


def test_every_odd_record_has_its_row_in_parquet_and_csv(odd_store, tmp_path):
    export_records(odd_store, "parquet", tmp_path / "out.parquet")
    found = duckdb.sql(
        'select trial_id, "params.threads", "params.Threads_2", finished_at::VARCHAR '
        f"from '{tmp_path / 'out.parquet'}'"
    ).fetchall()
    by_name = {row[0]: row[1:] for row in found}
    assert [row[0] for row in found] == [record.trial_id for record in odd_store.read_records().records]
    assert by_name["a key that differs in its case"][:2] in ((4, 3), (3, 4))
    assert by_name["a time in another zone"][2] == "2026-11-15 10:00:30"
    assert by_name["no times"][2] is None
    export_records(odd_store, "csv", tmp_path / "out.csv")
    assert {row["trial_id"] for row in rows((tmp_path / "out.csv").read_text())} == set(by_name)


def test_a_large_store_is_exported_as_a_small_one_is(store, tmp_path, monkeypatch):
    small = {}
    for fmt in ("json", "csv"):
        export_records(store, fmt, tmp_path / "small")
        small[fmt] = (tmp_path / "small").read_bytes()
    monkeypatch.setattr(parallel_readers, "MIN_BYTES", 1)
    monkeypatch.setattr(file_parts.split_files, "__defaults__", (1000,))
    monkeypatch.setattr(sql_query, "_MAX_ORDERED_BYTES", 0)
    for fmt, text in small.items():
        export_records(store, fmt, tmp_path / "large")
        assert (tmp_path / "large").read_bytes() == text
    export_records(store, "parquet", tmp_path / "large")
    (found,) = duckdb.sql(
        f"select count(*), count(distinct trial_id) from read_parquet('{tmp_path / 'large'}')"
    ).fetchall()
    assert found == (3, 3)
