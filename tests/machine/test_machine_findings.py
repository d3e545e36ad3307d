from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from tests.machine.sysfs_trees import GIB, Tree, add_two_sockets

from corewise.machine.allocation import read_allocation
from corewise.machine.facts import Frequency, Load, MachineFacts, read_facts
from corewise.machine.foreign_load import BusyProcess, ForeignLoad
from corewise.machine.machine_findings import SEVERITIES, collect_machine_findings
from corewise.machine.machine_model import MachineFinding
from corewise.machine.software import LIBRARIES, Software
from corewise.machine.topology import read_topology

BARE = Software("3.11.7", "2.36", {"torch": "2.5.0"}, {}, dict.fromkeys(LIBRARIES, "/usr/lib/x.so"))


def collect_findings(
    tree: Tree, env: Mapping[str, str] | None = None, software: Software = BARE, **changes: Any
) -> dict[str, MachineFinding]:
    topology = read_topology(tree.root)
    allocation = read_allocation(topology, tree.root, env=env or {}, hostname="n1")
    facts = replace(read_facts(tree.root), **changes)
    return {result.key: result for result in collect_machine_findings(topology, allocation, facts, software, env or {})}


def replace_memory(tree: Tree, **changes: Any) -> dict[str, Any]:
    facts: MachineFacts = read_facts(tree.root)
    return {"memory": replace(facts.memory, **changes)}


def add_quiet_machine(tree: Tree) -> Tree:
    return tree.add_cpus([(n,) for n in range(8)]).set_memory(64 * GIB)


def test_a_quiet_machine_has_no_findings(tree: Tree) -> None:
    assert collect_findings(add_quiet_machine(tree)) == {}


def test_a_quota_of_eight_on_192_cpus_is_reported_with_its_consequence_for_frameworks(tree: Tree) -> None:
    add_two_sockets(tree).join_cgroup2("/pod").add_group("pod", {"cpu.max": "800000 100000"})
    result = collect_findings(tree)["cpu-quota"]
    assert result.claim == (
        "The cgroup allows 8 CPUs but 192 are visible: frameworks will start 192 threads; Corewise uses 8."
    )
    assert "/sys/fs/cgroup/pod/cpu.max" in result.evidence
    assert "OMP_NUM_THREADS=8" in result.remedy
    assert result.severity == "warning"


def test_what_is_visible_to_a_quota_is_what_the_affinity_left(tree: Tree) -> None:
    add_two_sockets(tree).set_affinity("0-15").join_cgroup2("/a").add_group("a", {"cpu.max": "400000 100000"})
    result = collect_findings(tree)
    assert "4 CPUs but 16 are visible" in result["cpu-quota"].claim
    assert "16 of 192 CPUs" in result["affinity"].claim


def test_a_cpuset_is_reported(tree: Tree) -> None:
    add_quiet_machine(tree).join_cgroup2("/a").add_group("a", {"cpuset.cpus.effective": "3"})
    assert "allows 1 CPU but 8 are visible" in collect_findings(tree)["cpuset"].claim


def test_a_grant_that_slurm_does_not_enforce_is_reported(tree: Tree) -> None:
    result = collect_findings(add_quiet_machine(tree), {"SLURM_JOB_NODELIST": "n1", "SLURM_CPUS_ON_NODE": "2"})
    assert "Slurm granted 2 CPUs but 8 are visible" in result["slurm-grant"].claim


def test_a_fractional_quota_is_rounded_down_and_reported(tree: Tree) -> None:
    add_quiet_machine(tree).join_cgroup2("/a").add_group("a", {"cpu.max": "250000 100000"})
    assert "2.5: Corewise rounds it down to 2 CPUs" in collect_findings(tree)["quota-fraction"].claim


def test_a_quota_below_one_cpu_is_an_error_even_on_one_cpu(tree: Tree) -> None:
    tree.add_cpus([(0,)]).join_cgroup2("/a").add_group("a", {"cpu.max": "50000 100000"})
    assert collect_findings(tree)["quota-below-one"].severity == "error"


def test_a_fractional_quota_beyond_our_cpus_does_not_matter(tree: Tree) -> None:
    add_quiet_machine(tree).set_affinity("0-1").join_cgroup2("/a").add_group("a", {"cpu.max": "650000 100000"})
    assert set(collect_findings(tree)) == {"affinity"}


def test_a_memory_limit_is_reported(tree: Tree) -> None:
    add_quiet_machine(tree).join_cgroup2("/a").add_group("a", {"memory.max": 16 * GIB})
    assert "16.0 GiB of the machine's 64.0 GiB" in collect_findings(tree)["memory-limit"].claim


@pytest.mark.parametrize(
    ("value", "key"), [("9", "threads-oversubscribed"), ("16,2", "threads-oversubscribed"), ("1", "threads-single")]
)
def test_thread_variables_that_do_not_fit_are_reported(tree: Tree, value: str, key: str) -> None:
    result = collect_findings(add_quiet_machine(tree), {"OMP_NUM_THREADS": value})
    assert set(result) == {key}
    assert f"OMP_NUM_THREADS={value}" in result[key].evidence


@pytest.mark.parametrize("value", ["8", "4", "many", ""])
def test_thread_variables_that_fit_or_mean_nothing_are_not_reported(tree: Tree, value: str) -> None:
    assert collect_findings(add_quiet_machine(tree), {"OMP_NUM_THREADS": value, "MKL_NUM_THREADS": value}) == {}


def test_load_by_others_is_reported(tree: Tree) -> None:
    assert (
        "2.5 of 8 CPUs" in collect_findings(add_quiet_machine(tree), load=Load(3.0, 2.5, 0.05))["load-by-others"].claim
    )
    assert collect_findings(tree, load=Load(3.0, 0.2, 0.05)) == {}


def test_load_on_the_allocation_names_its_processes_and_the_wait_policy(tree: Tree) -> None:
    add_quiet_machine(tree)
    topology = read_topology(tree.root)
    allocation = read_allocation(topology, tree.root, env={}, hostname="n1")
    facts = replace(read_facts(tree.root), load=Load(3.0, 2.5, 0.05))
    busy = ForeignLoad(8, 2.5, {0: 1.0, 1: 0.5}, (BusyProcess(7, "solver", 2.0),), 0.4, 0.5)
    [finding] = collect_machine_findings(topology, allocation, facts, BARE, {}, load=busy)
    assert finding.key == "cpus-shared"
    assert "2.5 of 8 CPUs of the allocation busy: solver (pid 7) 2.0" in finding.claim
    assert "CPU 0 100 %, CPU 1 50 %; tasks waited for a CPU 40 % of it" in finding.evidence
    assert "--wait-policy passive" in finding.remedy
    # Load beside the allocation remains a separate finding.
    [finding] = collect_machine_findings(topology, allocation, facts, BARE, {}, load=replace(busy, others_cpus=0.1))
    assert finding.key == "load-by-others"


def test_governors_other_than_performance_are_reported(tree: Tree) -> None:
    add_quiet_machine(tree)
    assert collect_findings(tree, frequency=Frequency(("performance",), "acpi-cpufreq")) == {}
    mixed = collect_findings(tree, frequency=Frequency(("performance", "schedutil"), "acpi-cpufreq"))
    assert "governor is schedutil:" in mixed["governor"].claim


def test_swap_in_use_is_reported(tree: Tree) -> None:
    changed = replace_memory(add_quiet_machine(tree), swap_total_bytes=8 * GIB, swap_used_bytes=2 * GIB)
    assert "2.0 GiB are in swap" in collect_findings(tree, **changed)["swap-in-use"].claim


@pytest.mark.parametrize("mode", ["never", "madvise", "always"])
def test_each_huge_page_mode_has_its_note(tree: Tree, mode: str) -> None:
    result = collect_findings(add_quiet_machine(tree), **replace_memory(tree, transparent_huge_pages=mode))
    assert set(result) == {f"huge-pages-{mode}"}


def test_numa_balancing_matters_only_with_several_nodes(tree: Tree) -> None:
    assert collect_findings(add_quiet_machine(tree), **replace_memory(tree, numa_balancing=True)) == {}
    add_quiet_machine(tree).add_cpus([(n,) for n in range(8)], nodes=[range(4), range(4, 8)])
    assert "numa-balancing" in collect_findings(tree, **replace_memory(tree, numa_balancing=True))


def test_smt_and_offline_cpus_and_virtual_machines_are_reported(tree: Tree) -> None:
    tree.add_cpus([(0, 4), (1, 5), (2, 6), (3, 7)], offline=(3, 7))
    result = collect_findings(tree, virtualised=True)
    assert "6 CPUs are 3 cores" in result["smt-on"].claim
    assert result["smt-on"].evidence.endswith("0,4")
    assert result["cpus-offline"].remedy.endswith("`sudo chcpu -e 3,7`.")
    assert "virtual-machine" in result


def test_missing_software_says_how_to_get_it(tree: Tree) -> None:
    result = collect_findings(add_quiet_machine(tree), software=Software("3.11.7", None, {"numpy": "2.0"}, {}, {}))
    assert "pip install 'corewise[torch]'" in result["no-framework"].remedy
    assert "libjemalloc2" in result["no-jemalloc"].remedy
    assert "no-tcmalloc" in result


def test_the_most_severe_comes_first_and_each_has_a_remedy(tree: Tree) -> None:
    tree.add_cpus([(0, 1)]).set_memory(64 * GIB).join_cgroup2("/a").add_group(
        "a", {"cpu.max": "50000 100000", "memory.max": GIB}
    )
    result = list(collect_findings(tree, load=Load(3.0, 1.5, 0.05), virtualised=True).values())
    ranks = [SEVERITIES.index(finding.severity) for finding in result]
    assert ranks == sorted(ranks)
    assert len(set(ranks)) == 3
    assert all(finding.remedy and finding.evidence and finding.claim.endswith(".") for finding in result)
