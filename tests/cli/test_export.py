import csv
import io
import json

import duckdb
import pytest
import typer
from tests.cli.sample_stores import made_record, scaling_records, unmeasured_records, write_store
from typer.testing import CliRunner

from corewise.cli.export import export
from corewise.errors import UserError

app = typer.Typer()
app.command()(export)


@pytest.fixture
def store(tmp_path):
    return write_store(tmp_path / "store", *scaling_records(), *unmeasured_records())


def run(store, *arguments):
    result = CliRunner().invoke(app, ["--store", str(store.path), *arguments])
    if isinstance(result.exception, UserError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


def test_json_goes_to_standard_output_by_default_with_the_names_others_rely_on(store):
    data = json.loads(run(store).stdout)
    assert len(data) == 12
    for record in data:
        assert {"trial_id", "status", "reason", "params", "metrics", "samples_s"} <= set(record)
        assert record["status"] in ("ok", "failed", "skipped")
        assert all(isinstance(value, (int, float)) for value in record["metrics"].values())
    assert json.loads(run(store, "--format", "json", "-o", "-").stdout) == data


def test_csv_goes_to_standard_output(store):
    rows = list(csv.DictReader(io.StringIO(run(store, "--format", "csv").stdout)))
    assert [row["params.threads"] for row in rows][:5] == ["1", "2", "4", "8", "16"]


@pytest.mark.parametrize("fmt", ["csv", "json", "parquet"])
def test_the_format_follows_the_name_of_the_file(store, tmp_path, fmt):
    out = tmp_path / f"results.{fmt}"
    done = run(store, "-o", str(out))
    assert f"12 records written to {out}" in done.stderr
    assert done.stdout == ""
    (found,) = duckdb.sql(f"select count(*), count(distinct trial_id) from '{out}'").fetchall()
    assert found == (12, 12)


def test_a_format_given_beats_the_name(store, tmp_path):
    out = tmp_path / "results.csv"
    run(store, "--format", "json", "-o", str(out))
    assert len(json.loads(out.read_text())) == 12


def test_an_unknown_format_and_parquet_without_a_file_are_the_users_mistakes(store):
    with pytest.raises(UserError, match="unknown format 'cvs': did you mean 'csv'"):
        run(store, "--format", "cvs")
    with pytest.raises(UserError, match="name a file with -o FILE"):
        run(store, "--format", "parquet")


def test_damage_is_reported_with_the_records(tmp_path):
    store = write_store(tmp_path / "store", made_record("a"), made_record("b"))
    (path,) = store.records_folder.iterdir()
    path.write_bytes(path.read_bytes()[:-3])
    done = run(store)
    assert [r["trial_id"] for r in json.loads(done.stdout)] == ["a"]
    assert "skipped a damaged record: " in done.stderr
    assert "line 2" in done.stderr
