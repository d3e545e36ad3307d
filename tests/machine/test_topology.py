import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.machine.sysfs_trees import Tree

from corewise.machine.machine_model import Cpu
from corewise.machine.topology import CPU_DIR, format_cpu_list, parse_cpu_list, read_topology
from corewise.measured.cache_sizes import read_caches


@given(st.sets(st.integers(0, 4096)))
def test_a_formatted_cpu_list_parses_to_the_same_cpus(numbers: set[int]) -> None:
    assert parse_cpu_list(format_cpu_list(numbers)) == tuple(sorted(numbers))


@given(st.text(alphabet="0123456789,- x", max_size=12))
def test_any_text_is_a_cpu_list_or_a_value_error(text: str) -> None:
    try:
        numbers = parse_cpu_list(text)
    except ValueError:
        return
    assert list(numbers) == sorted(set(numbers))


def test_cpu_lists_are_written_as_the_kernel_writes_them() -> None:
    assert format_cpu_list([8, 3, 2, 1, 0]) == "0-3,8"
    assert parse_cpu_list("0-3,8\n") == (0, 1, 2, 3, 8)
    assert parse_cpu_list("") == ()


@pytest.mark.parametrize("text", ["3-1", "a", "1-", "-1", "1--2", "0-99999999999", "0x1", "1_0", "²"])
def test_a_malformed_cpu_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a CPU list"):
        parse_cpu_list(text)


def test_siblings_numbered_apart_share_the_lowest_number_as_core(tree: Tree) -> None:
    tree.add_cpus([(0, 4), (1, 5), (2, 6), (3, 7)])
    topology = read_topology(tree.root)
    assert [cpu.core for cpu in topology.cpus] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert topology.num_cores == 4


def test_siblings_numbered_adjacent_share_the_lowest_number_as_core(tree: Tree) -> None:
    tree.add_cpus([(0, 1), (2, 3), (4, 5), (6, 7)])
    assert [cpu.core for cpu in read_topology(tree.root).cpus] == [0, 0, 2, 2, 4, 4, 6, 6]


def test_twelve_numa_nodes_stay_twelve(tree: Tree) -> None:
    tree.add_cpus([(n,) for n in range(24)], nodes=[(2 * n, 2 * n + 1) for n in range(12)])
    topology = read_topology(tree.root)
    assert topology.nodes == tuple(range(12))
    assert [cpu.node for cpu in topology.cpus if cpu.number in (2, 20, 22)] == [1, 10, 11]


def test_uneven_nodes_keep_their_own_cpus(tree: Tree) -> None:
    tree.add_cpus([(n,) for n in range(4)], nodes=[(0, 1, 2), (3,)], sockets=[(0, 1, 2), (3,)])
    topology = read_topology(tree.root)
    assert [(cpu.node, cpu.socket) for cpu in topology.cpus] == [(0, 0), (0, 0), (0, 0), (1, 1)]


def test_offline_cpus_are_left_out_and_named(tree: Tree) -> None:
    tree.add_cpus([(0, 4), (1, 5), (2, 6), (3, 7)], offline=(0, 3, 7))
    topology = read_topology(tree.root)
    assert [cpu.number for cpu in topology.cpus] == [1, 2, 4, 5, 6]
    assert next(cpu.core for cpu in topology.cpus if cpu.number == 4) == 4
    assert topology.offline == (0, 3, 7)


def test_cpus_that_could_be_plugged_in_are_not_called_offline(tree: Tree) -> None:
    tree.add_cpus([(0,), (1,)]).write("sys/devices/system/cpu/offline", "2-255")
    assert read_topology(tree.root).offline == ()


def test_no_node_folder_means_one_node(tree: Tree) -> None:
    tree.add_cpus([(0,), (1,)])
    assert read_topology(tree.root).nodes == (0,)


def test_memory_only_nodes_hold_no_cpus(tree: Tree) -> None:
    tree.add_cpus([(0,), (1,)], nodes=[(0,), (1,), ()])
    assert read_topology(tree.root).nodes == (0, 1)


def test_no_topology_folder_makes_each_cpu_its_own_core(tree: Tree) -> None:
    tree.write("sys/devices/system/cpu/online", "0-2")
    assert read_topology(tree.root).cpus == tuple(Cpu(n, n, 0, 0) for n in range(3))


def test_cpus_are_found_without_the_online_file(tree: Tree) -> None:
    tree.add_folder("sys/devices/system/cpu/cpu0").write("sys/devices/system/cpu/cpu10/online", "1")
    tree.write("sys/devices/system/cpu/cpu2/online", "0").add_folder("sys/devices/system/cpu/cpufreq")
    assert [cpu.number for cpu in read_topology(tree.root).cpus] == [0, 10]


def test_cpuinfo_serves_where_sys_is_hidden(tree: Tree) -> None:
    tree.write("proc/cpuinfo", "processor\t: 0\nmodel name\t: X\n\nprocessor\t: 1\nmodel name\t: X\n")
    assert [cpu.number for cpu in read_topology(tree.root).cpus] == [0, 1]


def test_an_empty_root_is_one_cpu(tree: Tree) -> None:
    assert read_topology(tree.root).cpus == (Cpu(0, 0, 0, 0),)


def test_damaged_files_count_as_missing(tree: Tree) -> None:
    tree.add_cpus([(0, 1), (2, 3)], nodes=[(0, 1), (2, 3)])
    tree.write("sys/devices/system/cpu/cpu3/topology/thread_siblings_list", "zwei")
    tree.write("sys/devices/system/cpu/cpu2/topology/physical_package_id", "-1")
    tree.write("sys/devices/system/node/node1/cpulist", "2-x")
    assert read_topology(tree.root).cpus == (Cpu(0, 0, 0, 0), Cpu(1, 0, 0, 0), Cpu(2, 2, 0, 0), Cpu(3, 3, 0, 0))


def test_each_cache_is_listed_once_with_the_cpus_that_share_it(tree: Tree) -> None:
    tree.add_cpus([(0,), (1,)])
    for number in (0, 1):
        base = f"sys/devices/system/cpu/cpu{number}/cache"
        caches = (("1", "Data", "48K", number), ("2", "Unified", "2048K", number), ("3", "Unified", "32M", "0-1"))
        for index, (level, cache_type, size, shared) in enumerate(caches):
            folder = f"{base}/index{index}"
            tree.write(f"{folder}/level", level).write(f"{folder}/type", cache_type)
            tree.write(f"{folder}/size", size).write(f"{folder}/shared_cpu_list", shared)
    tree.write("sys/devices/system/cpu/cpu1/cache/index9/level", "many")
    caches = read_caches([cpu.number for cpu in read_topology(tree.root).cpus], tree.root / CPU_DIR)
    assert [(c.level, c.type, c.size_bytes, c.shared_cpus) for c in caches] == [
        (1, "Data", 48 << 10, (0,)),
        (1, "Data", 48 << 10, (1,)),
        (2, "Unified", 2 << 20, (0,)),
        (2, "Unified", 2 << 20, (1,)),
        (3, "Unified", 32 << 20, (0, 1)),
    ]


def test_this_machine_has_at_least_the_cpus_of_this_process() -> None:
    import os

    assert os.sched_getaffinity(0) <= {cpu.number for cpu in read_topology().cpus}
