import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.machine.sysfs_trees import GIB, Tree, add_two_sockets

from corewise.machine.allocation import choose_cpus, read_allocation
from corewise.machine.machine_model import Allocation, Cpu, Topology
from corewise.machine.topology import read_topology


def read_tree_allocation(tree: Tree, env: Mapping[str, str] | None = None, hostname: str = "n1") -> Allocation:
    return read_allocation(read_topology(tree.root), tree.root, env=env or {}, hostname=hostname)


def list_sources(result: Allocation) -> list[tuple[str, int]]:
    return [(limit.source, limit.num_cpus) for limit in result.limits]


def add_eight_cores(tree: Tree) -> Tree:
    return tree.add_cpus([(n,) for n in range(8)]).set_memory(64 * GIB)


def test_without_limits_the_whole_machine_is_ours(tree: Tree) -> None:
    result = read_tree_allocation(add_two_sockets(tree))
    assert result.cpus == tuple(range(192))
    assert (result.num_cores, result.memory_bytes, result.limits) == (96, 512 * GIB, ())


def test_an_affinity_of_one_cpu_leaves_that_cpu(tree: Tree) -> None:
    result = read_tree_allocation(add_two_sockets(tree).set_affinity("101"))
    assert (result.cpus, result.num_cores) == ((101,), 1)
    assert list_sources(result) == [("affinity", 1)]


def test_a_given_affinity_replaces_the_process_own(tree: Tree) -> None:
    add_eight_cores(tree).set_affinity("0-7")
    result = read_allocation(read_topology(tree.root), tree.root, env={}, affinity={2, 3}, hostname="n1")
    assert result.cpus == (2, 3)


def test_an_affinity_to_offline_cpus_only_is_ignored(tree: Tree) -> None:
    tree.add_cpus([(0,), (1,), (2,)], offline=(2,)).set_affinity("2")
    assert read_tree_allocation(tree).cpus == (0, 1)


def test_a_quota_of_eight_takes_eight_cores_of_one_node_of_192_cpus(tree: Tree) -> None:
    add_two_sockets(tree).join_cgroup2("/pod").add_group("pod", {"cpu.max": "800000 100000"})
    result = read_tree_allocation(tree)
    assert result.cpus == tuple(range(8))
    assert result.num_cores == 8
    assert list_sources(result) == [("quota", 8)]
    assert "/sys/fs/cgroup/pod/cpu.max" in result.limits[0].detail


def test_a_quota_of_one_and_a_half_rounds_down(tree: Tree) -> None:
    add_eight_cores(tree).join_cgroup2("/a").add_group("a", {"cpu.max": "150000 100000"})
    assert read_tree_allocation(tree).cpus == (0,)


def test_a_quota_below_one_leaves_one_cpu(tree: Tree) -> None:
    add_eight_cores(tree).join_cgroup2("/a").add_group("a", {"cpu.max": "20000 100000"})
    assert read_tree_allocation(tree).cpus == (0,)


def test_the_least_quota_of_all_ancestors_counts(tree: Tree) -> None:
    add_eight_cores(tree).join_cgroup2("/a/b/c")
    tree.add_group("a", {"cpu.max": "300000 100000"})
    tree.add_group("a/b", {"cpu.max": "1000000 250000"})
    tree.add_group("a/b/c", {"cpu.max": "max 100000"})
    result = read_tree_allocation(tree)
    assert result.cpus == (0, 1, 2)
    assert "/sys/fs/cgroup/a/cpu.max" in result.limits[0].detail


def test_version_one_quota_and_cpuset_and_memory_count(tree: Tree) -> None:
    add_eight_cores(tree).join_cgroup1("cpu,cpuacct", "/job/step").join_cgroup1("cpuset", "/job").join_cgroup1(
        "memory", "/job/step"
    )
    tree.add_group("cpu,cpuacct/job", {"cpu.cfs_quota_us": 200000, "cpu.cfs_period_us": 100000})
    tree.add_group("cpu,cpuacct/job/step", {"cpu.cfs_quota_us": -1, "cpu.cfs_period_us": 100000})
    tree.add_group("cpuset/job", {"cpuset.cpus": "4-7", "cpuset.effective_cpus": "4-7"})
    tree.add_group("memory/job", {"memory.limit_in_bytes": 8 * GIB})
    tree.add_group("memory/job/step", {"memory.limit_in_bytes": 9223372036854771712})
    result = read_tree_allocation(tree)
    assert result.cpus == (4, 5)
    assert result.memory_bytes == 8 * GIB
    assert list_sources(result) == [("cpuset", 4), ("quota", 2), ("memory", 2)]


def test_version_two_cpuset_and_memory_of_ancestors_count(tree: Tree) -> None:
    add_eight_cores(tree).join_cgroup2("/slurm/job_1/step_0")
    tree.add_group("slurm/job_1", {"cpuset.cpus.effective": "2-5", "memory.max": 16 * GIB})
    tree.add_group("slurm/job_1/step_0", {"memory.max": "max", "memory.high": 12 * GIB})
    result = read_tree_allocation(tree)
    assert result.cpus == (2, 3, 4, 5)
    assert result.memory_bytes == 12 * GIB
    assert result.limits[-1].detail == "/sys/fs/cgroup/slurm/job_1/step_0/memory.high: 12.0 of 64.0 GiB"


def test_a_partition_keeps_cpus_that_its_parent_gave_away(tree: Tree) -> None:
    add_eight_cores(tree).join_cgroup2("/a/isolated")
    tree.add_group("a", {"cpuset.cpus.effective": "0-3"}).add_group("a/isolated", {"cpuset.cpus.effective": "4-7"})
    assert read_tree_allocation(tree).cpus == (4, 5, 6, 7)


def test_a_host_with_both_versions_obeys_both(tree: Tree) -> None:
    add_eight_cores(tree).join_cgroup1("cpu", "/").join_cgroup1("cpuset", "/box").join_cgroup2(
        "/box", at="/sys/fs/cgroup/unified"
    )
    tree.add_group("cpu", {"cpu.cfs_quota_us": -1, "cpu.cfs_period_us": 100000})
    tree.add_group("cpuset/box", {"cpuset.effective_cpus": "0-5"})
    tree.add_group("unified/box", {"cpu.max": "400000 100000", "memory.max": 2 * GIB})
    result = read_tree_allocation(tree)
    assert result.cpus == (0, 1, 2, 3)
    assert result.memory_bytes == 2 * GIB
    assert list_sources(result) == [("cpuset", 6), ("quota", 4), ("memory", 4)]


def test_a_path_hidden_by_a_cgroup_namespace_falls_back_to_the_mount_root(tree: Tree) -> None:
    add_eight_cores(tree).join_cgroup2("/kubepods/pod1/hidden").write("sys/fs/cgroup/cpu.max", "200000 100000")
    assert read_tree_allocation(tree).cpus == (0, 1)


def test_a_path_above_the_namespace_falls_back_to_the_mount_root(tree: Tree) -> None:
    add_eight_cores(tree).join_cgroup2("/../other").write("sys/fs/cgroup/cpu.max", "200000 100000")
    tree.write("sys/fs/other/cpu.max", "100000 100000")
    assert read_tree_allocation(tree).cpus == (0, 1)


def test_a_mount_that_shows_a_container_alone_is_followed(tree: Tree) -> None:
    add_eight_cores(tree).join_cgroup1("cpu", "/docker/abc/inner", shows="/docker/abc")
    tree.add_group("cpu", {"cpu.cfs_quota_us": 500000, "cpu.cfs_period_us": 100000})
    tree.add_group("cpu/inner", {"cpu.cfs_quota_us": 300000, "cpu.cfs_period_us": 100000})
    assert read_tree_allocation(tree).cpus == (0, 1, 2)


def test_a_mount_point_with_a_blank_in_its_name_is_found(tree: Tree) -> None:
    add_eight_cores(tree).write("proc/self/cgroup", "0::/a").write("mnt/my groups/a/cpu.max", "200000 100000")
    tree.write("proc/self/mountinfo", "31 23 0:28 / /mnt/my\\040groups rw shared:1 - cgroup2 none rw")
    assert read_tree_allocation(tree).cpus == (0, 1)


def test_memory_limits_outside_a_container_are_seen_in_its_statistics(tree: Tree) -> None:
    add_eight_cores(tree).join_cgroup1("memory", "/docker/abc", shows="/docker/abc")
    tree.add_group("memory", {"memory.limit_in_bytes": 9223372036854771712})
    tree.add_group("memory", {"memory.stat": f"cache 0\nhierarchical_memory_limit {3 * GIB}\nrss 1"})
    assert read_tree_allocation(tree).memory_bytes == 3 * GIB


@pytest.mark.parametrize("text", ["", "x y", "100000", "-5 100000", "100000 0", "1e5 100000", "max", "9" * 5000])
def test_a_damaged_quota_is_ignored(tree: Tree, text: str) -> None:
    add_eight_cores(tree).join_cgroup2("/a").add_group(
        "a", {"cpu.max": text, "cpuset.cpus.effective": "7-", "memory.max": "?"}
    )
    result = read_tree_allocation(tree)
    assert len(result.cpus) == (1 if text == "100000" else 8)
    assert result.memory_bytes == 64 * GIB


def test_damaged_process_files_are_ignored(tree: Tree) -> None:
    add_eight_cores(tree).set_affinity("all").write("proc/self/cgroup", "nonsense\n1\n0::relative\n:::\n")
    tree.write("proc/self/mountinfo", "short - cgroup2\n1 2 3 / /x rw - cgroup2\n\x00")
    assert read_tree_allocation(tree).cpus == tuple(range(8))


def test_nothing_but_a_root_gives_one_cpu_and_no_memory(tree: Tree) -> None:
    result = read_tree_allocation(tree)
    assert (result.cpus, result.memory_bytes, result.limits) == ((0,), 0, ())


SLURM = {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_CPUS_PER_NODE": "4,2", "SLURM_MEM_PER_NODE": "8192"}


def test_slurms_grant_counts_on_a_host_of_the_job(tree: Tree) -> None:
    result = read_tree_allocation(add_eight_cores(tree), SLURM, "n2")
    assert result.cpus == (0, 1)
    assert result.memory_bytes == 8 * GIB
    assert list_sources(result) == [("slurm", 2), ("memory", 2)]
    assert "on n2" in result.limits[0].detail


def test_slurms_grant_is_ignored_on_a_login_node(tree: Tree) -> None:
    result = read_tree_allocation(add_eight_cores(tree), SLURM, "login")
    assert (len(result.cpus), result.memory_bytes, result.limits) == (8, 64 * GIB, ())


def test_slurms_grant_adds_nothing_to_a_cpuset_that_already_enforces_it(tree: Tree) -> None:
    add_eight_cores(tree).join_cgroup2("/job").add_group("job", {"cpuset.cpus.effective": "4-7"})
    result = read_tree_allocation(tree, SLURM, "n1")
    assert result.cpus == (4, 5, 6, 7)
    assert ("slurm", 4) not in list_sources(result)


def test_a_quota_within_an_affinity_stays_within_it(tree: Tree) -> None:
    add_two_sockets(tree).set_affinity("50-60,146-156").join_cgroup2("/a").add_group("a", {"cpu.max": "400000 100000"})
    assert read_tree_allocation(tree).cpus == (50, 51, 52, 53)


def test_choice_prefers_the_node_where_all_cores_fit() -> None:
    topology = Topology(tuple(Cpu(n, n, 0, 0 if n < 2 else 1) for n in range(8)))
    assert choose_cpus(topology, range(8), 4) == (2, 3, 4, 5)
    assert choose_cpus(topology, range(8), 2) == (0, 1)


def test_choice_takes_cores_of_a_second_node_before_smt_siblings() -> None:
    cpus = [Cpu(n, n % 4, 0, (n % 4) // 2) for n in range(8)]
    assert choose_cpus(Topology(tuple(cpus)), range(8), 4) == (0, 1, 2, 3)
    assert choose_cpus(Topology(tuple(cpus)), range(8), 5) == (0, 1, 2, 3, 4)


def test_choice_stays_on_the_socket_when_one_node_is_too_small() -> None:
    # Each pair of CPUs maps to its node and socket.
    nodes = {0: (0, 0), 1: (1, 0), 2: (2, 1), 3: (3, 1)}
    topology = Topology(tuple(Cpu(n, n, nodes[n // 2][1], nodes[n // 2][0]) for n in range(8)))
    assert choose_cpus(topology, range(2, 8), 4) == (2, 3, 4, 5)
    assert choose_cpus(topology, range(4, 8), 3) == (4, 5, 6)


cpu_strategy = st.builds(lambda n, smt, nodes: (n, smt, nodes), st.integers(1, 24), st.booleans(), st.integers(1, 12))


@given(cpu_strategy, st.data())
def test_any_choice_has_the_size_asked_for_and_wastes_no_core(
    shape: tuple[int, bool, int], data: st.DataObject
) -> None:
    num_cores, smt, num_nodes = shape
    cpus = [Cpu(n, n % num_cores, 0, (n % num_cores) % num_nodes) for n in range(num_cores * (2 if smt else 1))]
    allowed = data.draw(st.sets(st.sampled_from([cpu.number for cpu in cpus]), min_size=1))
    num = data.draw(st.integers(1, len(allowed)))
    topology = Topology(tuple(cpus))
    chosen = choose_cpus(topology, allowed, num)
    assert len(chosen) == num
    assert set(chosen) <= allowed
    assert topology.select_cpus(chosen).num_cores == min(num, topology.select_cpus(tuple(allowed)).num_cores)


def test_taskset_to_one_cpu_leaves_that_cpu(need: Callable[[bool, str], None]) -> None:
    need(shutil.which("taskset") is not None, "taskset")
    number = max(os.sched_getaffinity(0))
    program = (
        "from corewise.machine.allocation import read_allocation\n"
        "from corewise.machine.topology import read_topology\n"
        "print(list(read_allocation(read_topology()).cpus))"
    )
    command = ["taskset", "-c", str(number), sys.executable, "-c", program]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == f"[{number}]"
