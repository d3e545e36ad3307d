"""Who is whose partner, and what is said of those without one."""

from pathlib import Path

import pytest
from tests.analysis.comparison.sample_sides import failed, over_threads, skipped, store_of, trial

from corewise.analysis.comparison.comparison_model import StoreComparison
from corewise.analysis.comparison.selection import parse_by, parse_where
from corewise.analysis.comparison.store_comparison import compare_stores
from corewise.errors import UserError
from corewise.store.sealed_lines import seal
from corewise.study.record import Record


def compared(tmp_path: Path, a: list[Record], b: list[Record], **options: object) -> StoreComparison:
    paths = [store_of(tmp_path / name, *records) for name, records in (("a", a), ("b", b))]
    return compare_stores(*paths, **options)  # type: ignore[arg-type]


def within(tmp_path: Path, records: list[Record], *by: str) -> StoreComparison:
    path = store_of(tmp_path / "store", *records)
    return compare_stores(path, path, by=parse_by(by))


def test_partners_have_equal_parameters_whatever_study_host_version_or_protocol(tmp_path):
    other = {
        "study": "another",
        "machine": {"hostname": "node2", "host_class": "xeon"},
        "versions": {"torch": "2.14.0"},
        "protocol": {"min_runs": 3, "max_runs": 3},
        "env": {"OMP_NUM_THREADS": "4", "X": "1"},
    }
    found = compared(tmp_path, [trial("a1")], [trial("b1", **other)])
    [pair] = found.trials
    assert (pair.a_trial_id, pair.b_trial_id) == ("a1", "b1")


def test_another_parameter_makes_another_trial(tmp_path):
    a = [trial("a1"), trial("a2", params={"batch": 32})]
    b = [trial("b1"), trial("b2", params={"batch": 16})]
    found = compared(tmp_path, a, b)
    assert [pair.a_trial_id for pair in found.trials] == ["a1"]
    assert [each.a_trial_id for each in found.only_a] == ["a2"]
    assert [each.b_trial_id for each in found.only_b] == ["b2"]
    assert "batch=32" in found.only_a[0].name


def test_a_parameter_that_an_older_version_lacked_counts_as_its_default(tmp_path):
    new = trial("b1")
    old = trial("a1")
    params = {name: value for name, value in old.params.items() if name not in ("memory_policy", "bind")}
    found = compared(tmp_path, [trial("a1", params=params)], [new])
    assert len(found.trials) == 1


def test_a_custom_workload_is_identified_by_its_file_not_its_folder(tmp_path):
    a = trial("a1", params={"workload": "/home/ann/model.py:factory"})
    b = trial("b1", params={"workload": "/ci/build/model.py:factory"})
    found = compared(tmp_path, [a], [b])
    assert found.trials[0].name.startswith("model.py:factory train")


def test_two_values_of_an_axis_are_compared_within_one_store(tmp_path):
    records = [
        trial(f"{math}{threads}", 0.5 if math == "vendor" else 0.7, params={"math": math, "threads": threads})
        for math in ("vendor", "vanilla")
        for threads in (1, 2)
    ]
    found = within(tmp_path, records, "math=vendor,vanilla")
    assert [pair.verdict for pair in found.trials] == ["slower", "slower"]
    assert {pair.a_trial_id[:-1] for pair in found.trials} == {"vendor"}
    assert all("math" not in pair.name for pair in found.trials)


def test_two_versions_and_two_hosts_are_compared_within_one_store(tmp_path):
    records = [
        trial("old", 0.5, versions={"torch": "2.11.0+cpu"}, machine={"hostname": "n1"}),
        trial("new", 0.4, versions={"torch": "2.13.1+cpu"}, machine={"hostname": "n2"}),
        trial("odd", 9.0, versions={"torch": "2.110.0"}, machine={"hostname": "n3"}),
    ]
    by_version = within(tmp_path, records, "versions.torch=2.11,2.13")
    assert [(p.a_trial_id, p.b_trial_id, p.verdict) for p in by_version.trials] == [("old", "new", "faster")]
    path = tmp_path / "store"
    by_host = compare_stores(path, path, by=parse_by(["host=n2,n1"]))
    assert [(p.a_trial_id, p.verdict) for p in by_host.trials] == [("new", "slower")]


def test_several_fields_may_differ_by_design(tmp_path):
    records = [
        trial("wide", params={"processes": 1, "threads": 16}),
        trial("many", params={"processes": 4, "threads": 4}),
    ]
    assert len(within(tmp_path, records, "processes=1,4", "threads=16,4").trials) == 1


def test_a_condition_holds_for_both_sides(tmp_path):
    a = [trial("a1"), trial("a2", params={"workload": "alexnet"})]
    b = [trial("b1"), trial("b2", params={"workload": "alexnet"})]
    found = compared(tmp_path, a, b, where=parse_where(["workload=alexnet"]))
    assert [pair.a_trial_id for pair in found.trials] == ["a2"]
    assert found.a.selected == "workload=alexnet"


def test_what_broke_and_what_was_fixed_is_reported(tmp_path):
    failures = [failed(f"a{n}", params={"threads": n}) for n in (4, 8)]
    a = [*over_threads("a", {1: 0.9, 2: 0.5}), *failures]
    b = [
        trial("b1", 0.9, params={"threads": 1}),
        failed("b2", "rank 0 was killed", params={"threads": 2}),
        trial("b4", 0.3, params={"threads": 4}),
        failed("b8", params={"threads": 8}),
    ]
    found = compared(tmp_path, a, b)
    assert [(each.name, each.reason) for each in found.broken] == [("resnet50 train threads=2", "rank 0 was killed")]
    assert [each.b_trial_id for each in found.fixed] == ["b4"]
    assert [each.b_trial_id for each in found.both_failed] == ["b8"]
    assert found.summary.num_broken == 1
    assert found.summary.num_regressions == 1
    assert "1 trial that A measured failed in B" in found.summary.sentence


def test_a_trial_that_was_skipped_has_no_partner(tmp_path):
    a = [trial("a1"), trial("a2", params={"threads": 16}), skipped("a3", params={"threads": 64})]
    b = [trial("b1"), skipped("b2", params={"threads": 16}), skipped("b3", params={"threads": 64})]
    found = compared(tmp_path, a, b)
    assert [(each.a_trial_id, each.b_trial_id) for each in found.only_a] == [("a2", "b2")]
    assert "more threads" in found.only_a[0].reason
    assert not found.only_b
    assert not found.broken


def test_of_several_records_with_equal_parameters_the_last_measured_counts(tmp_path):
    early = trial("a1", 0.9, versions={"torch": "2.11"}, finished_at="2026-01-01T00:00:00Z")
    late = trial("a2", 0.5, versions={"torch": "2.12"}, finished_at="2026-02-01T00:00:00Z")
    found = compared(tmp_path, [late, early], [trial("b1", 0.5)])
    assert [pair.a_trial_id for pair in found.trials] == ["a2"]
    assert "1 record of" in found.a.notices[0]
    assert "--where" in found.a.notices[0]


def test_without_partners_the_error_names_the_differences_and_the_next_step(tmp_path):
    a = over_threads("a", {2: 0.5, 4: 0.3})
    b = [trial(f"b{n}", params={"threads": n, "batch": 32}) for n in (2, 4)]
    with pytest.raises(UserError, match=r"batch is 64 in A and 32 in B\. To compare these, add --by batch=64,32"):
        compared(tmp_path, a, b)


def test_without_any_partner_values_that_are_many_are_named(tmp_path):
    a, b = over_threads("a", {1: 0.5, 2: 0.3}), over_threads("b", {3: 0.5, 5: 0.3})
    with pytest.raises(UserError, match=r"threads is 1 and 2 in A and 3 and 5 in B\. Run the same study"):
        compared(tmp_path, a, b)


def test_without_any_partner_although_all_values_occur_it_is_said(tmp_path):
    a = [trial("a1", params={"threads": 1, "batch": 1}), trial("a2", params={"threads": 2, "batch": 2})]
    b = [trial("b1", params={"threads": 1, "batch": 2}), trial("b2", params={"threads": 2, "batch": 1})]
    with pytest.raises(UserError, match="no combination of them"):
        compared(tmp_path, a, b)


def test_a_store_against_itself_needs_to_know_how_the_sides_differ(tmp_path):
    path = store_of(tmp_path / "a", trial("a1"))
    with pytest.raises(UserError, match="A and B are the same store"):
        compare_stores(path, tmp_path / "x" / ".." / "a")


def test_empty_and_missing_stores_are_named(tmp_path):
    full, empty = store_of(tmp_path / "full", trial("a1")), store_of(tmp_path / "empty")
    with pytest.raises(UserError, match=r"the store .*empty is empty: run a study"):
        compare_stores(full, empty)
    with pytest.raises(UserError, match=r"the store .*nowhere does not exist"):
        compare_stores(tmp_path / "nowhere", full)


def test_a_value_that_no_record_has_is_reported_with_those_there_are(tmp_path):
    records = [trial("a1", params={"math": "vendor"}), trial("a2", params={"math": "vanilla"})]
    with pytest.raises(UserError, match="has math=vanila: math is vendor or vanilla"):
        within(tmp_path, records, "math=vendor,vanila")


def test_a_field_that_no_record_has_is_reported_with_the_nearest(tmp_path):
    with pytest.raises(UserError, match=r"has a field 'maths': did you mean 'math'"):
        within(tmp_path, [trial("a1")], "maths=vendor,vanilla")


def test_a_record_cannot_stand_on_both_sides(tmp_path):
    with pytest.raises(UserError, match=r"trial t1 .* has both versions.torch=2 and versions.torch=2.13"):
        within(tmp_path, [trial("t1", versions={"torch": "2.13.0"})], "versions.torch=2,2.13")


@pytest.mark.parametrize("text", ["math", "math=vendor", "=a,b", "math=a,b,c", "math=a,", "math=a,a"])
def test_an_invalid_split_is_refused(text):
    with pytest.raises(UserError, match="--by"):
        parse_by([text])


def test_a_newer_store_is_refused_by_name(tmp_path):
    full, newer = store_of(tmp_path / "full", trial("a1")), store_of(tmp_path / "newer", trial("b1"))
    (newer / "corewise-store.json").write_bytes(seal({"schema": 99}))
    with pytest.raises(UserError, match=r"newer has schema version 99"):
        compare_stores(full, newer)


def test_records_of_a_newer_schema_are_named_and_the_others_compared(tmp_path):
    full, mixed = store_of(tmp_path / "full", trial("a1")), store_of(tmp_path / "mixed", trial("b1"))
    newer = {**trial("b2").to_json(), "schema": 99}
    (mixed / "records" / "other.jsonl").write_bytes(seal(newer))
    found = compare_stores(full, mixed)
    assert len(found.trials) == 1
    assert "record schema 99 is newer" in found.b.notices[0]
    only_newer = store_of(tmp_path / "only")
    (only_newer / "records").mkdir()
    (only_newer / "records" / "other.jsonl").write_bytes(seal(newer))
    with pytest.raises(UserError, match=r"holds no record that can be read: .*record schema 99"):
        compare_stores(full, only_newer)


NODE1 = {"hostname": "node1", "host_class": "epyc", "allocation_cores": 16}
NODE2 = {"hostname": "node2", "host_class": "xeon", "allocation_cores": 16}


def test_trials_of_two_machines_are_paired_by_machine_and_named_by_host(tmp_path):
    a = [trial("a1", 0.5, machine=NODE1), trial("a2", 0.2, machine=NODE2)]
    b = [trial("b2", 0.3, machine=NODE2), trial("b1", 0.4, machine=NODE1)]
    found = compared(tmp_path, a, b)
    assert {(pair.a_trial_id, pair.b_trial_id): pair.verdict for pair in found.trials} == {
        ("a1", "b1"): "faster",
        ("a2", "b2"): "slower",
    }
    assert {pair.a_trial_id for pair in found.trials if "host=node1" in pair.name} == {"a1"}
    assert found.a.notices == found.b.notices == []


def test_versions_by_design_are_still_paired_machine_by_machine(tmp_path):
    records = [
        trial(f"{version[-1]}{machine['hostname']}", machine=machine, versions={"torch": version})
        for version in ("2.11", "2.13")
        for machine in (NODE1, NODE2)
    ]
    found = within(tmp_path, records, "versions.torch=2.11,2.13")
    assert {(pair.a_trial_id, pair.b_trial_id) for pair in found.trials} == {("1node1", "3node1"), ("1node2", "3node2")}


def test_a_record_of_another_machine_is_replaced_by_one_of_the_same_although_it_is_newer(tmp_path):
    old, new = "2026-11-01T00:00:00.000Z", "2026-11-09T00:00:00.000Z"
    a = [trial("a1", machine=NODE1, finished_at=old), trial("a2", machine=NODE2, finished_at=new)]
    found = compared(tmp_path, a, [trial("b1", machine=NODE1)])
    assert [(pair.a_trial_id, pair.b_trial_id) for pair in found.trials] == [("a1", "b1")]
    assert "1 record" in found.a.notices[0]


def test_machines_that_the_other_side_does_not_have_give_one_pair_of_the_last_measured(tmp_path):
    old, new = "2026-11-01T00:00:00.000Z", "2026-11-09T00:00:00.000Z"
    other = {"hostname": "node3", "host_class": "arm"}
    a = [trial("a1", machine=NODE1, finished_at=new), trial("a2", machine=NODE2, finished_at=old)]
    found = compared(tmp_path, a, [trial("b1", machine=other)])
    assert [(pair.a_trial_id, pair.b_trial_id) for pair in found.trials] == [("a1", "b1")]


def test_a_failure_on_one_of_two_machines_is_named_by_its_host(tmp_path):
    a = [trial("a1", machine=NODE1), trial("a2", machine=NODE2)]
    b = [trial("b1", machine=NODE1), failed("b2", machine=NODE2)]
    found = compared(tmp_path, a, b)
    assert [pair.a_trial_id for pair in found.trials] == ["a1"]
    [broken] = found.broken
    assert broken.a_trial_id == "a2"
    assert "host=node2" in broken.name
