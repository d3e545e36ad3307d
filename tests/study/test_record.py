import json
import math
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

from corewise.store.store import Store
from corewise.study.record import RECORD_SCHEMA, Record, UnreadableRecord, format_utc_now


def record(**changes):
    return Record(**{"trial_id": "a1", "study": "s", "status": "ok", **changes})


def test_a_record_comes_back_from_its_json_as_it_was():
    before = record(
        params={"threads": 4, "args.depth": 2.5, "interop_threads": None, "smt": False},
        metrics={"samples_per_s": 12.25},
        runs=({"status": "ok", "samples_s": [0.1, 0.2]},),
        notes=("one",),
        reason="nöt plain ASCII",
        started_at=format_utc_now(),
    )
    after = Record.from_json(json.loads(json.dumps(before.to_json(), allow_nan=False)))
    assert after == before


def test_samples_are_those_of_the_ok_runs_in_order():
    runs = (
        {"status": "ok", "samples_s": [0.1, 0.2]},
        {"status": "failed", "samples_s": [9.0]},
        {"status": "ok", "samples_s": [0.3]},
        {"status": "ok"},
    )
    assert record(runs=runs).samples_s == (0.1, 0.2, 0.3)


def test_metrics_that_json_cannot_hold_are_left_out_and_noted():
    data = record(metrics={"loss": math.nan, "step_s": 0.5, "peak": math.inf}).to_json()
    assert data["metrics"] == {"step_s": 0.5}
    assert data["notes"] == ["metric loss was nan: omitted", "metric peak was inf: omitted"]


def test_numbers_of_numpy_paths_and_odd_text_become_plain_json():
    data = record(
        params={"n": np.int64(3), "data": Path("/data"), "flag": np.bool_(True)},
        metrics={"x": np.float32(0.5)},
        machine=MappingProxyType({"name": "a\0b\udc80c"}),
    ).to_json()
    assert data["params"] == {"n": 3, "data": "/data", "flag": True}
    assert data["metrics"] == {"x": 0.5}
    assert data["machine"]["name"] == "a\\0b\\udc80c"
    json.dumps(data, allow_nan=False, ensure_ascii=False).encode("utf-8")


def test_a_value_json_does_not_know_is_refused_by_its_type():
    with pytest.raises(TypeError, match="cannot hold a object"):
        record(params={"x": object()}).to_json()


def test_a_newer_schema_is_refused_with_its_version():
    data = record().to_json() | {"schema": RECORD_SCHEMA + 6}
    with pytest.raises(UnreadableRecord, match=f"schema {RECORD_SCHEMA + 6} is newer .* update Corewise"):
        Record.from_json(data)


def test_an_older_schema_is_carried_over_step_by_step():
    old = {"schema": 0, "id": "a1", "study": "s", "status": "ok", "params": {"threads": 2}}

    def from_0(data):
        return {**data, "schema": 1, "trial_id": data["id"]}

    after = Record.from_json(old, migrations={0: from_0})
    assert (after.trial_id, after.params) == ("a1", {"threads": 2})


def test_an_older_schema_nothing_carries_over_is_refused():
    with pytest.raises(UnreadableRecord, match="schema 0 is too old"):
        Record.from_json(record().to_json() | {"schema": 0}, migrations={})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": None}, "no record schema version"),
        ({"schema": True}, "no record schema version"),
        ({"trial_id": 7}, "trial_id is 7, not text"),
        ({"params": []}, "params is a list, not a mapping"),
        ({"runs": {}}, "runs is a mapping, not a list"),
        ({"runs": ["x"]}, r"runs\[0\] is the text 'x', not a mapping"),
        ({"status": "perhaps"}, "status is the text 'perhaps', not one of ok, failed, skipped"),
    ],
)
def test_json_of_the_wrong_shape_is_refused_with_the_reason(change, message):
    with pytest.raises(UnreadableRecord, match=message):
        Record.from_json(record().to_json() | change)


def test_a_missing_trial_id_is_refused_and_keys_of_tomorrow_are_passed_by():
    data = record().to_json()
    assert Record.from_json(data | {"colour": "red"}) == Record.from_json(data)
    del data["trial_id"]
    with pytest.raises(UnreadableRecord, match="no 'trial_id'"):
        Record.from_json(data)


def test_an_execution_that_was_renamed_is_read_by_its_new_name() -> None:
    data = {**record().to_json(), "params": {"threads": 2, "execution": "quickened"}}
    assert Record.from_json(data).params == {"threads": 2, "execution": "fast-kernels"}


NAN, INFINITY, HUGE = float("nan"), float("inf"), 10**400


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"metrics": {"step_s": NAN}}, "metrics.step_s is the number nan, not a finite number"),
        ({"metrics": {"step_s": -INFINITY}}, "metrics.step_s is the number -inf, not a finite number"),
        ({"metrics": {"step_s": None}}, "metrics.step_s is null, not a finite number"),
        ({"metrics": {"step_s": HUGE}}, "metrics.step_s is an integer too large for a float"),
        ({"work": {"flops_per_sample": "many"}}, "work.flops_per_sample is the text 'many', not a finite number"),
        ({"params": {"workload": ["a"]}}, "params.workload is a list, not text"),
        ({"params": {"execution": {}}}, "params.execution is a mapping, not text"),
        ({"params": {"args.size": HUGE}}, "params.args.size is an integer too large for a float"),
        ({"params": {"args.size": NAN}}, "params.args.size is the number nan, not a finite number"),
        ({"runs": [{"samples_s": [0.1, None]}]}, r"runs\[0\].samples_s\[1\] is null, not a finite number"),
        ({"runs": [{}, {"metrics": {"step_s": INFINITY}}]}, r"runs\[1\].metrics.step_s is the number inf"),
        ({"runs": [{"status": ["ok"]}]}, r"runs\[0\].status is a list, not text"),
        ({"runs": [{"disturbances": [7]}]}, r"runs\[0\].disturbances\[0\] is 7, not text"),
        ({"runs": [{"ranks": ["x"]}]}, r"runs\[0\].ranks\[0\] is the text 'x', not a mapping"),
        ({"runs": [{"ranks": [{"versions": 3}]}]}, r"runs\[0\].ranks\[0\].versions is 3, not a mapping"),
        ({"disturbed": [None]}, r"disturbed\[0\] is null, not a mapping"),
        ({"machine": {"hostname": ["node1"]}}, "machine.hostname is a list, not a single value"),
        ({"versions": {"torch": 2.1}}, "versions.torch is 2.1, not text"),
        ({"env": {"A": None}}, "env.A is null, not text"),
        ({"protocol": {"confidence": NAN}}, "protocol.confidence is the number nan, not a finite number"),
        ({"notes": "a note"}, "notes is the text 'a note', not a list"),
        ({"reason": "half \ud800"}, "reason is the text .*, which is not valid Unicode"),
        ({"finished_at": None}, "finished_at is null, not text"),
    ],
)
def test_values_that_readers_cannot_use_are_refused_by_name(change, message):
    with pytest.raises(UnreadableRecord, match=f"^{message}"):
        Record.from_json(record().to_json() | change)


def test_the_reason_is_one_short_printable_line():
    data = record(metrics={}).to_json() | {"metrics": {"\x1b[31m\n" + "x" * 10_000: None}}
    with pytest.raises(UnreadableRecord) as refusal:
        Record.from_json(data)
    text = str(refusal.value)
    assert len(text) <= 200
    assert text.isprintable()


def test_metrics_of_a_run_may_be_null_as_records_are_written():
    before = record(runs=({"status": "ok", "metrics": {"loss": math.nan, "step_s": 0.5}},))
    after = Record.from_json(json.loads(json.dumps(before.to_json())))
    assert after.runs[0]["metrics"] == {"loss": None, "step_s": 0.5}


def test_values_of_other_versions_are_kept():
    data = record().to_json() | {
        "machine": {"hostname": "a", "gpus": [{"name": "b"}]},
        "params": {"threads": 2, "new_axis": [1, 2], "args.big": 2**80},
        "runs": [{"status": "ok", "ranks": [{"rank": 0, "colour": ["red", None]}], "later": 1}],
    }
    after = Record.from_json(data)
    assert (after.machine, after.params, after.runs[0]) == (data["machine"], data["params"], data["runs"][0])


def test_facts_of_a_rank_that_are_nested_too_deeply_are_cut_when_written():
    deep = 1
    for _ in range(900):
        deep = [deep]
    data = Record.from_json(record().to_json() | {"runs": [{"ranks": [{"rank": 0, "odd": deep}]}]}).to_json()
    json.dumps(data, indent=2)
    assert data["runs"][0]["ranks"][0]["rank"] == 0


@pytest.mark.parametrize(
    "store",
    [
        "tests/run/identity/data/before-versions/store",
        "benchmarks/data/xeon-16-cores/store",
        "benchmarks/data/h200/store",
    ],
)
def test_records_of_older_versions_are_all_read(store):
    result = Store.open(Path(__file__).parents[2] / store, create=False).read_records()
    assert result.records
    assert result.damage == ()
