"""Records sorted into groups whose figures may be compared."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.report.sample_trials import MACHINE, PROTOCOL, failed, group_of, scaling, trial

from corewise.analysis.columns import combine_codes, encode_column, find_largest_each, parse_numbers, split_by_number
from corewise.analysis.groups import RecordSource, group_records, label_stores
from corewise.store.brief_records import extract_brief

odd_values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.floats(-2, 2),
    st.text(max_size=3),
    st.lists(st.integers(), max_size=2),
)


def test_each_study_workload_and_mode_is_a_separate_group() -> None:
    records = [
        trial(1.0, study=study, params={"workload": workload, "mode": mode})
        for study in ("a", "b")
        for workload in ("alexnet", "resnet50")
        for mode in ("train", "infer")
    ]
    groups = group_records([RecordSource(label="s", records=records)])
    assert len(groups) == 8
    assert [group.study for group in groups] == ["a"] * 4 + ["b"] * 4
    assert len(group_records([RecordSource(label="s", records=records)], {"b"})) == 4


def test_only_varying_parameters_are_columns() -> None:
    group = group_of(*scaling())
    assert tuple(group.varying) == ("threads",)
    assert group.list_values("threads") == [1, 2, 4, 8, 16]
    assert group.constant["batch"] == 16
    assert "workload" not in group.constant


def test_a_parameter_that_some_trials_lack_varies() -> None:
    group = group_of(trial(1.0), trial(2.0, params={"interop_threads": 2}))
    assert group.varying == ("interop_threads",)
    assert group.list_values("interop_threads") == [2, None]
    assert not group.is_number("interop_threads")


def test_a_version_is_reported_where_one_framework_has_two_and_not_where_frameworks_differ() -> None:
    records = [
        trial(1.0, versions={"torch": "2.13.0", "numpy": "2.4.6"}, params={"runtime": runtime})
        for runtime in ("torch", "numpy")
    ]
    assert group_of(*records).varying == ("runtime",)
    later = trial(2.0, versions={"torch": "2.14.0", "numpy": "2.4.6"}, params={"threads": 8})
    assert set(group_of(*records, later).varying) == {"runtime", "threads", "version"}


def test_machines_versions_and_protocols_are_reported_where_they_differ() -> None:
    other = {**MACHINE, "host_class": "bbbb2222", "num_cores": 64}
    group = group_of(
        trial(1.0),
        trial(2.0, machine=other),
        trial(3.0, versions={"torch": "2.14.0"}, params={"threads": 8}),
        trial(4.0, protocol={**PROTOCOL, "max_runs": 50}, params={"threads": 16}),
    )
    assert {"machine", "version", "protocol", "threads"} == set(group.varying)
    assert group.list_values("machine") == ["icelake, 16 cores", "icelake, 64 cores"]
    assert group.list_values("protocol") == ["max_runs=5", "max_runs=50"]
    assert group.axes == ["threads"]


def test_a_point_without_a_protocol_does_not_differ_in_it() -> None:
    group = group_of(trial(1.0), trial(2.0, protocol={}, params={"threads": 8}))
    assert group.varying == ("threads",)


def test_equal_nodes_are_one_machine() -> None:
    group = group_of(trial(1.0), trial(2.0, machine={**MACHINE, "hostname": "node2"}, params={"threads": 8}))
    assert tuple(group.varying) == ("threads",)


def test_two_allocations_of_one_machine_are_distinguished() -> None:
    group = group_of(trial(1.0), trial(2.0, machine={**MACHINE, "allocation_cores": 8}))
    assert group.varying == ("allocation",)


def test_trials_equal_in_all_columns_are_numbered() -> None:
    group = group_of(trial(1.0), replace(trial(2.0), trial_id="ffff"), trial(3.0, params={"threads": 8}))
    assert group.varying == ("threads", "variant")
    assert len(group.trial_by_codes) == 3


def test_the_same_trial_in_two_stores_is_kept_twice_by_the_stores_names() -> None:
    sources = [RecordSource(label=f"/x/{name}/store", name=name, records=scaling()) for name in ("one", "two")]
    [group] = group_records(sources)
    assert len(group.records) == 10
    assert group.list_values("store") == ["one", "two"]


@pytest.mark.parametrize(
    ("paths", "labels"),
    [
        (["/a/b/store"], ["store"]),
        (["/a/b/store", "/a/c/store/"], ["b/store", "c/store"]),
        (["store", "./store"], ["store", "./store"]),
        ([], []),
    ],
)
def test_stores_get_the_shortest_names_that_differ(paths: list[str], labels: list[str]) -> None:
    assert label_stores(paths) == labels


def test_failures_keep_what_sets_them_apart() -> None:
    group = group_of(*scaling(), failed(params={"batch": 4096}))
    [(record, point)] = group.unmeasured
    assert record.status == "failed"
    assert point == {"threads": 4, "batch": 4096}


def test_shortened_records_give_the_same_group() -> None:
    records = [*scaling(), failed(params={"batch": 4096})]
    whole, short = group_of(*records), group_of(*(extract_brief(record) for record in records))
    assert list(whole.points) == list(short.points)
    for name in ("rate", "low", "high"):
        assert np.array_equal(getattr(whole, name), getattr(short, name), equal_nan=True)
    assert np.array_equal(whole.rates.mean, short.rates.mean)
    assert [dict(point) for _, point in whole.unmeasured] == [dict(point) for _, point in short.unmeasured]


def test_an_interval_of_the_step_serves_where_that_of_the_throughput_is_missing() -> None:
    record = trial(20.0)
    metrics = {n: v for n, v in record.metrics.items() if not n.startswith("samples_per_s_")}
    group = group_of(replace(record, metrics={**metrics, "step_s_low": 0.79, "step_s_high": 0.81}))
    assert group.low[0] == pytest.approx(20 * 0.8 / 0.81)
    assert group.high[0] == pytest.approx(20 * 0.8 / 0.79)


def test_a_missing_throughput_is_the_median_of_the_runs() -> None:
    assert group_of(replace(trial([10.0, 30.0, 20.0]), metrics={})).rate[0] == 20.0


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf"), None, "fast"])
def test_an_invalid_throughput_is_left_out(rate: object) -> None:
    record = trial([10.0, 10.0])
    runs = tuple({**run, "metrics": {"samples_per_s": rate}} for run in record.runs)
    group = group_of(replace(record, runs=runs, metrics={"samples_per_s": rate}))
    assert np.isnan(group.rate[0])
    assert group.rates.num[0] == 0


def test_trials_that_differ_in_one_parameter_are_found() -> None:
    group = group_of(*(trial(1.0 * t * b, params={"threads": t, "batch": b}) for t in (1, 2, 4) for b in (8, 16)))
    i = group.trial_by_codes[group.encode_point({"threads": 2, "batch": 16})]
    assert [group.points[k] for k in group.find_trials_along(i, "threads")] == [
        {"threads": t, "batch": 16} for t in (1, 2, 4)
    ]
    assert group.find_trials_along(i, "math") == [i]


@given(st.lists(odd_values, min_size=1, max_size=12))
def test_coding_keeps_values_apart_and_in_order(column: list[object]) -> None:
    made = encode_column(column)
    again = [made.values[code] for code in made.codes]
    for given_value, value in zip(column, again, strict=True):
        if not isinstance(given_value, list):
            assert (value, type(value) is bool) == (given_value, type(given_value) is bool)
            assert made.find_code(given_value) == made.find_code(value)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=30))
def test_numbers_are_equal_where_all_columns_are(pairs: list[tuple[int, int]]) -> None:
    numbers = combine_codes([np.array(column) for column in zip(*pairs, strict=True)], len(pairs))
    for i, a in enumerate(pairs):
        for j, b in enumerate(pairs):
            assert (numbers[i] == numbers[j]) == (a == b)
    assert sorted(int(i) for ones in split_by_number(numbers) for i in ones) == list(range(len(pairs)))


@given(st.lists(st.tuples(st.integers(0, 3), st.one_of(st.just(float("nan")), st.floats(0, 9))), max_size=20))
def test_the_largest_of_each_number_is_found(pairs: list[tuple[int, float]]) -> None:
    numbers, values = np.array([n for n, _ in pairs], dtype=np.int64), np.array([v for _, v in pairs])
    found = {int(numbers[i]): float(values[i]) for i in find_largest_each(numbers, values)}
    wanted: dict[int, float] = {}
    for number, value in pairs:
        if value == value:
            wanted[number] = max(wanted.get(number, -1.0), value)
    assert found == wanted


def test_values_that_are_not_numbers_become_nan() -> None:
    assert np.isnan(parse_numbers([None, True, "3", float("inf"), [1]])).all()
    assert parse_numbers([1, 2.5, None])[:2].tolist() == [1.0, 2.5]


def test_records_from_before_an_axis_have_its_default() -> None:
    older = trial(100.0, params={"threads": 1})
    newer = trial(100.0, params={"threads": 2, "isa": "default", "optimizer": "sgd", "nodes": 1})
    [group] = group_records([RecordSource(label="", records=[older, newer])])
    assert tuple(group.varying) == ("threads",)
    assert group.constant["isa"] == "default"
