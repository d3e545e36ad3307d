import sys
from datetime import datetime

import pytest
from made_records import made_record

from corewise.errors import UserError
from corewise.store.sql_query import query
from corewise.store.store import Store
from corewise.study.record import Record


def filled(path, *records):
    store = Store.open(path)
    for record in records:
        store.append(record)
    return store


def test_parameters_and_metrics_are_fields_of_their_own_types(tmp_path):
    store = filled(tmp_path, made_record("a", 0.5), made_record("b", 0.25, params={"threads": 8}))
    answer = query(
        store,
        'select trial_id, params.threads, metrics.step_s, params.smt, params."args.image_size" '
        "from records order by metrics.samples_per_s desc",
    )
    assert answer.columns == ("trial_id", "threads", "step_s", "smt", "args.image_size")
    assert answer.rows == (("b", 8, 0.25, False, 224), ("a", 4, 0.5, False, 224))


def test_samples_times_and_runs_can_be_asked_for(tmp_path):
    record = made_record("a", finished_at="2026-11-15T12:00:30+02:00", notes=("one", "two"))
    store = filled(tmp_path, record)
    sql = (
        "select len(samples_s), finished_at, notes, env['OMP_NUM_THREADS'], runs->>'$[0].status', "
        "json_array_length(disturbed) from records"
    )
    (row,) = query(store, sql).rows
    assert row == (30, datetime(2026, 11, 15, 10, 0, 30), ["one", "two"], "4", "ok", 0)


def test_damage_never_reaches_an_answer(tmp_path):
    store = filled(tmp_path, made_record("a"), made_record("b"))
    (path,) = store.records_folder.iterdir()
    path.write_bytes(path.read_bytes().replace(b'"threads":4', b'"threads":5', 1) + b'{"schema":1,"trial_id":"to')
    assert query(store, "select trial_id, params.threads from records").rows == (("b", 4),)


def test_a_trial_recorded_twice_is_one_row(tmp_path):
    filled(tmp_path, made_record("a"))
    store = filled(tmp_path, made_record("a"))
    assert query(store, "select count(*) from records").rows == ((1,),)


def test_values_of_mixed_types_and_missing_ones_are_kept(tmp_path):
    odd = {
        "args.image_size": "any",
        "args.N": 1,
        "args.n": 2,
        "args.n_2": 3,
        "args.list": [1, 2],
        "args.\"x'": 5,
        "args.big": 2**80,
    }
    store = filled(
        tmp_path, made_record("a", params=odd), made_record("b", metrics={}, machine={}, finished_at="when?")
    )
    sql = (
        'select params."args.image_size", params."args.N", params."args.n_2", params."args.n_2_2", params."args.list", '
        'params."args.""x\'", params."args.big", metrics.step_s, machine.hostname, finished_at is null '
        "from records order by trial_id"
    )
    assert query(store, sql).rows == (
        ("any", 1, 2, 3, "[1,2]", 5, float(2**80), 0.5, "node1", False),
        ("224", None, None, None, None, None, None, None, None, True),
    )


def test_an_empty_store_has_an_empty_table(tmp_path):
    store = filled(tmp_path)
    assert query(store, "select trial_id, params, samples_s from records").rows == ()


def test_a_record_with_very_many_samples_is_read(tmp_path):
    runs = ({"status": "ok", "samples_s": [0.5] * 1000, "ranks": [{"parallel_info": "x" * 17_000_000}]},)
    store = filled(tmp_path, made_record("a", runs=runs))
    assert query(store, "select len(samples_s) from records").rows == ((1000,),)


def test_a_wrong_query_is_the_users_mistake(tmp_path):
    store = filled(tmp_path, made_record("a"))
    with pytest.raises(UserError, match=r"the query failed: .*recrods"):
        query(store, "select * from recrods")


def test_thousands_of_records_are_fine(tmp_path):
    store = filled(tmp_path)
    from corewise.store.sealed_lines import seal

    store.records_folder.mkdir()
    lines = [
        seal(Record(trial_id=f"t{i}", study="s", status="ok", params={"n": i}, metrics={"x": i / 2}).to_json())
        for i in range(5000)
    ]
    (store.records_folder / "many.jsonl").write_bytes(b"".join(lines))
    assert query(store, "select count(*), sum(params.n), max(metrics.x) from records").rows == (
        (5000, 5000 * 4999 // 2, 2499.5),
    )


def test_duckdb_is_loaded_only_for_a_query():
    import subprocess

    code = "import sys, corewise.store.sql_query, corewise.store.export; sys.exit('duckdb' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
