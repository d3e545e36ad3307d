"""What differs between the environments of two sides."""

from tests.analysis.comparison.sample_sides import store_of, trial

from corewise.analysis.comparison.store_comparison import compare_stores
from corewise.report.comparison.sentences import describe_differences, describe_disagreements

MACHINE = {"hostname": "n1", "cpu_model": "EPYC", "kernel": "6.1", "memory_bytes": 2**34}


def test_every_field_that_differs_is_listed_with_both_values(tmp_path):
    a = trial("a", machine=MACHINE, versions={"python": "3.11", "torch": "2.11"}, env={"X": "1", "Y": "2"})
    b = trial(
        "b",
        machine={**MACHINE, "hostname": "n2", "kernel": "6.8"},
        versions={"python": "3.11", "torch": "2.13", "mkl": "2024"},
        env={"X": "1", "Y": "3"},
        protocol={"min_runs": 3, "max_runs": 12},
        corewise_version="0.9",
    )
    found = compare_stores(store_of(tmp_path / "a", a), store_of(tmp_path / "b", b)).differences
    values = {(each.group, each.name): (list(each.a_values), list(each.b_values)) for each in found}
    assert values == {
        ("machine", "hostname"): (["n1"], ["n2"]),
        ("machine", "kernel"): (["6.1"], ["6.8"]),
        ("versions", "torch"): (["2.11"], ["2.13"]),
        ("versions", "mkl"): (["(absent)"], ["2024"]),
        ("corewise", "version"): (["0.1.0"], ["0.9"]),
        ("protocol", "min_runs"): (["12"], ["3"]),
        ("env", "Y"): (["2"], ["3"]),
    }
    assert all(each.num_pairs == 1 for each in found)
    assert describe_differences(found).startswith("7 things differ: machine hostname, machine kernel")


def test_equal_environments_are_called_equal(tmp_path):
    found = compare_stores(store_of(tmp_path / "a", trial("a")), store_of(tmp_path / "b", trial("b")))
    assert not found.differences
    assert "are the same" in describe_differences(found.differences)


def test_variables_that_follow_the_trial_are_no_difference(tmp_path):
    sides = [
        store_of(
            tmp_path / name,
            *(trial(f"{name}{n}", params={"threads": n}, env={"OMP_NUM_THREADS": str(n)}) for n in (1, 2)),
        )
        for name in "ab"
    ]
    assert not compare_stores(*sides).differences


def test_a_side_whose_records_disagree_is_reported(tmp_path):
    a = store_of(tmp_path / "a", *(trial(f"a{n}", params={"threads": n}) for n in (1, 2)))
    b = store_of(
        tmp_path / "b",
        trial("b1", params={"threads": 1}, versions={"torch": "2.13.0", "python": "3.11.7"}),
        trial("b2", params={"threads": 2}, versions={"torch": "2.14.0", "python": "3.11.7"}),
    )
    [difference] = compare_stores(a, b).differences
    assert (difference.num_pairs, difference.within_a, difference.within_b) == (1, False, True)
    assert describe_disagreements([difference]) == ["The records of B differ among themselves in versions torch."]
