from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from trees import GIB, Tree, two_socket_192

from corewise.machine.allocation import read_allocation
from corewise.machine.facts import Frequency, Load, MachineFacts, read_facts
from corewise.machine.findings import SEVERITIES, machine_findings
from corewise.machine.libraries import LIBRARIES, Software
from corewise.machine.model import Finding
from corewise.machine.topology import read_topology

BARE = Software("3.11.7", "2.36", {"torch": "2.5.0"}, {}, dict.fromkeys(LIBRARIES, "/usr/lib/x.so"))


def findings(
    tree: Tree, env: Mapping[str, str] | None = None, software: Software = BARE, **changes: Any
) -> dict[str, Finding]:
    topology = read_topology(tree.root)
    allocation = read_allocation(topology, tree.root, env=env or {}, hostname="n1")
    facts = replace(read_facts(tree.root), **changes)
    return {found.key: found for found in machine_findings(topology, allocation, facts, software, env or {})}


def memory(tree: Tree, **changes: Any) -> dict[str, Any]:
    facts: MachineFacts = read_facts(tree.root)
    return {"memory": replace(facts.memory, **changes)}


def quiet(tree: Tree) -> Tree:
    return tree.cpus([(n,) for n in range(8)]).memory(64 * GIB)


def test_a_quiet_machine_has_no_findings(tree: Tree) -> None:
    assert findings(quiet(tree)) == {}


def test_a_quota_of_eight_on_192_cpus_is_told_with_what_frameworks_will_do(tree: Tree) -> None:
    two_socket_192(tree).cgroup2("/pod").group("pod", {"cpu.max": "800000 100000"})
    found = findings(tree)["cpu-quota"]
    assert found.claim == (
        "The cgroup allows 8 CPUs but 192 are visible: frameworks will start 192 threads; Corewise uses 8."
    )
    assert "/sys/fs/cgroup/pod/cpu.max" in found.evidence
    assert "OMP_NUM_THREADS=8" in found.remedy
    assert found.severity == "warning"


def test_what_is_visible_to_a_quota_is_what_the_affinity_left(tree: Tree) -> None:
    two_socket_192(tree).affinity("0-15").cgroup2("/a").group("a", {"cpu.max": "400000 100000"})
    found = findings(tree)
    assert "4 CPUs but 16 are visible" in found["cpu-quota"].claim
    assert "16 of 192 CPUs" in found["affinity"].claim


def test_a_cpuset_is_told(tree: Tree) -> None:
    quiet(tree).cgroup2("/a").group("a", {"cpuset.cpus.effective": "3"})
    assert "allows 1 CPU but 8 are visible" in findings(tree)["cpuset"].claim


def test_a_grant_that_slurm_does_not_enforce_is_told(tree: Tree) -> None:
    found = findings(quiet(tree), {"SLURM_JOB_NODELIST": "n1", "SLURM_CPUS_ON_NODE": "2"})
    assert "Slurm granted 2 CPUs but 8 are visible" in found["slurm-grant"].claim


def test_a_fractional_quota_is_rounded_down_aloud(tree: Tree) -> None:
    quiet(tree).cgroup2("/a").group("a", {"cpu.max": "250000 100000"})
    assert "2.5: Corewise rounds it down to 2 CPUs" in findings(tree)["quota-fraction"].claim


def test_a_quota_below_one_cpu_is_an_error_even_on_one_cpu(tree: Tree) -> None:
    tree.cpus([(0,)]).cgroup2("/a").group("a", {"cpu.max": "50000 100000"})
    assert findings(tree)["quota-below-one"].severity == "error"


def test_a_fractional_quota_beyond_our_cpus_does_not_matter(tree: Tree) -> None:
    quiet(tree).affinity("0-1").cgroup2("/a").group("a", {"cpu.max": "650000 100000"})
    assert set(findings(tree)) == {"affinity"}


def test_a_memory_limit_is_told(tree: Tree) -> None:
    quiet(tree).cgroup2("/a").group("a", {"memory.max": 16 * GIB})
    assert "16.0 GiB of the machine's 64.0 GiB" in findings(tree)["memory-limit"].claim


@pytest.mark.parametrize(
    ("value", "key"),
    [("9", "threads-oversubscribed"), ("16,2", "threads-oversubscribed"), ("1", "threads-single")],
)
def test_thread_variables_that_do_not_fit_are_told(tree: Tree, value: str, key: str) -> None:
    found = findings(quiet(tree), {"OMP_NUM_THREADS": value})
    assert set(found) == {key}
    assert f"OMP_NUM_THREADS={value}" in found[key].evidence


@pytest.mark.parametrize("value", ["8", "4", "many", ""])
def test_thread_variables_that_fit_or_mean_nothing_are_not_told(tree: Tree, value: str) -> None:
    assert findings(quiet(tree), {"OMP_NUM_THREADS": value, "MKL_NUM_THREADS": value}) == {}


def test_load_by_others_is_told(tree: Tree) -> None:
    assert "2.5 of 8 CPUs" in findings(quiet(tree), load=Load(3.0, 2.5, 0.05))["load-by-others"].claim
    assert findings(tree, load=Load(3.0, 0.2, 0.05)) == {}


def test_governors_other_than_performance_are_told(tree: Tree) -> None:
    quiet(tree)
    assert findings(tree, frequency=Frequency(("performance",), "acpi-cpufreq")) == {}
    mixed = findings(tree, frequency=Frequency(("performance", "schedutil"), "acpi-cpufreq"))
    assert "governor is schedutil:" in mixed["governor"].claim


def test_swap_in_use_is_told(tree: Tree) -> None:
    changed = memory(quiet(tree), swap_total_bytes=8 * GIB, swap_used_bytes=2 * GIB)
    assert "2.0 GiB lie in swap" in findings(tree, **changed)["swap-in-use"].claim


@pytest.mark.parametrize("mode", ["never", "madvise", "always"])
def test_each_huge_page_mode_has_its_note(tree: Tree, mode: str) -> None:
    found = findings(quiet(tree), **memory(tree, transparent_huge_pages=mode))
    assert set(found) == {f"huge-pages-{mode}"}


def test_numa_balancing_matters_only_with_several_nodes(tree: Tree) -> None:
    assert findings(quiet(tree), **memory(tree, numa_balancing=True)) == {}
    quiet(tree).cpus([(n,) for n in range(8)], nodes=[range(4), range(4, 8)])
    assert "numa-balancing" in findings(tree, **memory(tree, numa_balancing=True))


def test_smt_and_offline_cpus_and_virtual_machines_are_told(tree: Tree) -> None:
    tree.cpus([(0, 4), (1, 5), (2, 6), (3, 7)], offline=(3, 7))
    found = findings(tree, virtualised=True)
    assert "6 CPUs are 3 cores" in found["smt-on"].claim
    assert found["smt-on"].evidence.endswith("0,4")
    assert found["cpus-offline"].remedy.endswith("`sudo chcpu -e 3,7`.")
    assert "virtual-machine" in found


def test_missing_software_says_how_to_get_it(tree: Tree) -> None:
    found = findings(quiet(tree), software=Software("3.11.7", None, {"numpy": "2.0"}, {}, {}))
    assert "pip install 'corewise[torch]'" in found["no-framework"].remedy
    assert "libjemalloc2" in found["no-jemalloc"].remedy
    assert "no-tcmalloc" in found


def test_the_gravest_comes_first_and_each_has_a_remedy(tree: Tree) -> None:
    tree.cpus([(0, 1)]).memory(64 * GIB).cgroup2("/a").group(
        "a", {"cpu.max": "50000 100000", "memory.max": GIB}
    )
    found = list(findings(tree, load=Load(3.0, 1.5, 0.05), virtualised=True).values())
    ranks = [SEVERITIES.index(finding.severity) for finding in found]
    assert ranks == sorted(ranks)
    assert len(set(ranks)) == 3
    assert all(finding.remedy and finding.evidence and finding.claim.endswith(".") for finding in found)
