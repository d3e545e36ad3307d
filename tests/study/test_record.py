import json
import math
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

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
