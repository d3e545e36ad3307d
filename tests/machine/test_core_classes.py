"""Hybrid processors: which cores are fast, and what follows from it."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.machine.sysfs_trees import Tree, add_apple_m1, add_core_i9_13900k, add_snapdragon_865, add_two_sockets

from corewise.machine.allocation import choose_cpus
from corewise.machine.ceilings.cache import compute_allocation_shape
from corewise.machine.core_classes import describe_core_classes, name_core_class, read_core_classes
from corewise.machine.facts import compute_host_class, read_facts
from corewise.machine.machine_findings import collect_machine_findings
from corewise.machine.machine_model import Allocation, Topology
from corewise.machine.placement import place_ranks
from corewise.machine.topology import CPU_DIR, format_cpu_list, read_topology

I9 = {"performance": "0-15", "efficiency": "16-31"}


def show_classes(tree: Tree) -> dict[str, str]:
    online = [cpu.number for cpu in read_topology(tree.root).cpus]
    return {each.name: format_cpu_list(each.cpus) for each in read_core_classes(online, tree.root)}


@pytest.mark.parametrize(
    ("add", "classes"),
    [
        (add_core_i9_13900k, I9),
        (add_snapdragon_865, {"performance": "7", "middle": "4-6", "efficiency": "0-3"}),
        (add_apple_m1, {"performance": "4-7", "efficiency": "0-3"}),
        (add_two_sockets, {}),
    ],
)
def test_real_machines_have_their_classes(tree: Tree, add: Callable[[Tree], Tree], classes: dict[str, str]) -> None:
    assert show_classes(add(tree)) == classes
    facts, topology = read_facts(tree.root), read_topology(tree.root)
    assert {each.name: format_cpu_list(each.cpus) for each in facts.core_classes} == classes
    for index, each in enumerate(facts.core_classes):
        assert [cpu.number for cpu in topology.cpus if cpu.core_class == index] == list(each.cpus)
    assert classes or topology.core_classes == (0,)


def test_each_source_is_used_if_better_ones_are_missing(tree: Tree) -> None:
    add_core_i9_13900k(tree)
    for name in ("cpu_core", "cpu_atom"):
        (tree.root / f"sys/devices/{name}/cpus").unlink()
    # Favoured performance cores are no class of their own.
    assert show_classes(tree) == I9
    for cpu in range(32):
        tree.write(f"{CPU_DIR}/cpu{cpu}/cpufreq/cpuinfo_max_freq", 5_000_000)
    assert show_classes(tree) == {}
    for cpu in range(32):
        tree.write(f"{CPU_DIR}/cpu{cpu}/topology/core_type", "intel_core" if cpu < 16 else "intel_atom")
    assert show_classes(tree) == I9


def test_a_value_that_is_missing_for_one_cpu_decides_nothing(tree: Tree) -> None:
    add_apple_m1(tree)
    (tree.root / CPU_DIR / "cpu5/cpu_capacity").unlink()
    assert show_classes(tree) == {}
    tree.write(f"{CPU_DIR}/cpu5/cpu_capacity", "fast")
    assert show_classes(tree) == {}


def test_a_machine_whose_slow_cores_are_offline_is_not_hybrid(tree: Tree) -> None:
    add_core_i9_13900k(tree).write(f"{CPU_DIR}/online", "0-15")
    assert show_classes(tree) == {}


def test_cpus_that_no_counter_lists_come_last(tree: Tree) -> None:
    add_core_i9_13900k(tree).write("sys/devices/cpu_atom/cpus", "16-29")
    assert show_classes(tree) == {"performance": "0-15", "middle": "16-29", "efficiency": "30-31"}


def test_more_than_three_classes_are_numbered() -> None:
    assert [name_core_class(i, 4) for i in range(4)] == ["performance", "middle 1", "middle 2", "efficiency"]


def test_a_quota_takes_the_fastest_cores(tree: Tree) -> None:
    topology = read_topology(add_apple_m1(tree).root)
    assert choose_cpus(topology, range(8), 3) == (4, 5, 6)
    assert choose_cpus(topology, range(8), 6) == (0, 1, 4, 5, 6, 7)


def test_slow_and_fast_allocations_of_the_same_size_differ(tree: Tree) -> None:
    topology = read_topology(add_core_i9_13900k(tree).root)
    fast, slow = (Allocation(cpus, 8, 0) for cpus in (tuple(range(0, 16, 2)), tuple(range(16, 24))))
    assert compute_allocation_shape(topology, fast) == ((8, 8), (0, 0))
    assert compute_allocation_shape(topology, slow) == ((0, 0), (8, 8))
    equal = Topology(tuple(replace(cpu, core_class=0) for cpu in topology.cpus))
    assert compute_allocation_shape(equal, fast) == ((8, 8),)
    facts = read_facts(tree.root)
    assert compute_host_class(facts, topology) != compute_host_class(facts, equal)


def describe(topology: Topology, num_processes: int, num_threads: int, cpus: range = range(32)) -> str:
    ranks = place_ranks(topology, cpus, num_processes=num_processes, num_threads=num_threads)
    return describe_core_classes(topology, cpus, ranks)


def test_processes_on_slower_or_mixed_cores_are_described(tree: Tree) -> None:
    topology = read_topology(add_core_i9_13900k(tree).root)
    assert describe(topology, 1, 8) == ""
    assert describe(topology, 1, 8, range(16, 32)) == ""
    assert describe(topology, 3, 8) == (
        "cores of different speed: a process has 8 performance cores, 2 processes have 8 efficiency cores"
    )
    assert describe(topology, 1, 24) == (
        "cores of different speed: a process has 8 performance + 16 efficiency cores; "
        "a process mixes types only if none of them has enough free cores"
    )


def test_the_finding_names_the_cores_their_evidence_and_a_comparison(tree: Tree) -> None:
    topology, facts = read_topology(add_core_i9_13900k(tree).root), read_facts(tree.root)

    def find(cpus: range) -> str:
        findings = collect_machine_findings(topology, Allocation(tuple(cpus), 8, 0), facts, env={})
        (finding,) = (each for each in findings if each.key == "hybrid-cores")
        assert "8 performance and 16 efficiency cores" in finding.claim
        assert finding.evidence.startswith("performance: CPUs 0-15 (/sys/devices/cpu_core/cpus); efficiency: CPUs 16")
        return finding.remedy

    assert "`corewise run quick --set threads=8,24`" in find(range(32))
    assert find(range(16, 32)) == "Nothing: all cores that you may use are of one type."
    assert not [
        f
        for f in collect_machine_findings(topology, Allocation((0,), 1, 0), replace(facts, core_classes=()), env={})
        if f.key == "hybrid-cores"
    ]
