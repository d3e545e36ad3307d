import pickle
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_records import made_record, made_run

from corewise.store.brief_records import extract_brief, extract_outline
from corewise.store.compact_values import PackedMapping, PackedRuns
from corewise.study.record import Record

VALUES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.lists(st.integers())
FLOATS = st.dictionaries(st.text(), st.floats(allow_nan=False))


@given(st.dictionaries(st.text(), VALUES) | FLOATS)
def test_a_packed_mapping_is_the_mapping(mapping):
    for packed in (
        PackedMapping.from_mapping(mapping),
        pickle.loads(pickle.dumps(PackedMapping.from_mapping(mapping))),
    ):
        assert packed == mapping
        assert list(packed.items()) == list(mapping.items())
        assert [type(value) for value in packed.values()] == [type(value) for value in mapping.values()]
        assert (list(packed), list(packed.keys()), len(packed)) == (list(mapping), list(mapping), len(mapping))
        assert {**packed} == mapping
        assert all(packed[name] == packed.get(name) == mapping[name] for name in mapping)


def test_a_packed_mapping_lacks_what_the_mapping_lacks():
    packed = PackedMapping.from_mapping({"a": 1.0})
    assert (packed.get("b"), packed.get("b", 2), "b" in packed) == (None, 2, False)
    with pytest.raises(KeyError):
        packed["b"]


def test_mappings_of_equal_names_share_them():
    one, other = (PackedMapping.from_mapping({"a": 1.0, "b": 2.0}), PackedMapping.from_mapping({"a": 3.0, "b": 4.0}))
    assert one.layout is other.layout is pickle.loads(pickle.dumps(one)).layout


def test_packed_runs_keep_status_some_metrics_and_disturbances():
    runs = (
        made_run(0.5, disturbances=["steal time"], ranks=[{"pid": 1}]),
        {"status": "failed", "reason": "out of memory"},
        made_run(0.25, metrics={"step_s": 0.25, "canary_s": 1.0, "peak_memory_bytes": 7}),
    )
    packed = PackedRuns.from_runs(runs)
    assert len(packed) == 3
    assert packed[0] == {
        "status": "ok",
        "metrics": {"step_s": 0.5, "samples_per_s": 128.0},
        "disturbances": ["steal time"],
    }
    assert packed[1] == {"status": "failed", "metrics": {}, "disturbances": []}
    assert packed[-1]["metrics"] == {"step_s": 0.25, "peak_memory_bytes": 7.0}
    assert list(packed[1:]) == [packed[1], packed[2]]
    assert pickle.loads(pickle.dumps(packed)) == packed == list(packed)
    with pytest.raises(IndexError):
        packed[3]


def test_packed_runs_keep_the_end_of_the_warm_up():
    runs = [
        made_run(0.5, ranks=[{"warm_up_ended": end} for end in ends]) for ends in (["steady"], ["steady", "time limit"])
    ]
    packed = PackedRuns.from_runs([*runs, made_run(0.5)])
    assert packed.warm_up_ends == ("steady", "time limit", "")
    assert PackedRuns.from_runs(list(packed)) == pickle.loads(pickle.dumps(packed)) == packed


def test_no_runs_are_no_runs():
    assert PackedRuns.from_runs(()) == ()


def test_a_brief_record_has_all_that_tables_need():
    record = made_record("a", disturbed=(made_run(0.9, disturbances=["other load"]),), notes=("a note",))
    short = extract_brief(record)
    unchanged = (
        *("trial_id", "study", "status", "question", "reason", "kind", "params", "metrics", "machine"),
        *("versions", "protocol", "work", "notes", "started_at", "finished_at", "corewise_version"),
        *("code_versions", "generation"),
    )
    for name in unchanged:
        assert getattr(short, name) == getattr(record, name), name
    assert [run["metrics"] for run in short.runs] == [run["metrics"] for run in record.runs]
    assert (len(short.disturbed), short.is_disturbed) == (1, False)
    assert (short.env, short.command, short.samples_s) == ({}, "", ())
    assert short.to_json()["params"] == record.to_json()["params"]


def test_a_brief_of_a_brief_is_itself():
    short = extract_brief(made_record("a", runs=(made_run(0.5, disturbances=["load"]),)))
    assert extract_brief(short) == short


def test_equal_surroundings_are_held_once():
    one, other = extract_brief(made_record("a")), extract_brief(made_record("b"))
    assert one.machine is other.machine
    assert one.versions is other.versions
    assert one.protocol is other.protocol


def test_a_brief_record_takes_little_memory():
    made = [made_record(f"trial-{i:08d}", 0.5 + i / 1000, params={"batch": i}).to_json() for i in range(500)]
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        kept = [extract_brief(Record.from_json(each)) for each in made]
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (after - before) / len(kept) < 2_000


def test_an_outline_says_which_record_it_is():
    short = extract_outline(made_record("a", status="failed", reason="x"))
    assert (short.trial_id, short.status, short.study, short.params) == ("a", "failed", "thread-scaling", {})
    assert short.finished_at == made_record().finished_at
