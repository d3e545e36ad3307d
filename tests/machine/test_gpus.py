"""Which NUMA nodes GPUs belong to, and ranks placed near them."""

from pathlib import Path

import pytest
from tests.machine.sysfs_trees import Tree

from corewise.machine.gpus import Gpu, count_visible_gpus, find_visible_gpus, read_gpu_nodes
from corewise.machine.machine_model import Cpu, Topology
from corewise.machine.placement import PlacementError, place_ranks

TWO_NODES = Topology(tuple(Cpu(n, n, n // 4, n // 4) for n in range(8)), gpu_nodes=(1, 0))


def add_gpus(tree: Tree, *nodes: str) -> Path:
    for number, node in enumerate(nodes):
        address = f"0000:{number}A:00.0"
        tree.write(f"proc/driver/nvidia/gpus/{address}/information", f"GPU UUID: GPU-{number}")
        tree.write(f"sys/bus/pci/devices/{address.lower()}/numa_node", node)
    return tree.root


def test_the_kernel_says_which_node_a_gpu_belongs_to(tree: Tree) -> None:
    assert read_gpu_nodes({0, 1}, add_gpus(tree, "1", "0")) == (1, 0)


def test_a_gpu_of_no_known_node_belongs_to_the_only_one_or_none_is_known(tree: Tree) -> None:
    root = add_gpus(tree, "0", "-1")
    assert read_gpu_nodes({0}, root) == (0, 0)
    assert read_gpu_nodes({0, 1}, root) == ()


def test_a_machine_without_gpus_has_no_nodes_of_them(tree: Tree) -> None:
    assert read_gpu_nodes({0}, tree.root) == ()


@pytest.mark.parametrize(("shown", "places"), [("1,0", [1, 0]), ("GPU-b", [1]), ("", []), ("0,7,1", [0]), (" 1 ", [1])])
def test_visible_gpus_are_those_cuda_would_show(shown: str, places: list[int]) -> None:
    assert find_visible_gpus(["GPU-a0", "GPU-b0"], shown) == places


@pytest.mark.parametrize(
    ("shown", "number"), [(None, 3), ("1", 1), ("", 0), ("2,0", 2), ("-1", 0), ("MIG-c7,MIG-d8", 1)]
)
def test_gpus_that_are_hidden_do_not_count(shown: str | None, number: int) -> None:
    assert count_visible_gpus([Gpu("H200", f"GPU-{name}") for name in "abc"], shown) == number


def test_each_rank_is_placed_on_the_node_of_its_gpu() -> None:
    ranks = place_ranks(TWO_NODES, range(8), num_processes=2, num_threads=4, policy="gpu")
    assert [rank.cpus for rank in ranks] == [(4, 5, 6, 7), (0, 1, 2, 3)]
    assert [rank.memory_nodes for rank in ranks] == [(1,), (0,)]


def test_ranks_of_one_gpu_share_its_node_without_sharing_cpus() -> None:
    one_gpu = Topology(TWO_NODES.cpus, gpu_nodes=(1,))
    ranks = place_ranks(one_gpu, range(8), num_processes=2, num_threads=2, policy="gpu")
    assert sorted(cpu for rank in ranks for cpu in rank.cpus) == [4, 5, 6, 7]


def test_what_does_not_fit_near_the_gpu_is_refused_with_the_reason() -> None:
    with pytest.raises(PlacementError, match="the allocation has 4 on its NUMA node"):
        place_ranks(TWO_NODES, range(8), num_processes=1, num_threads=5, policy="gpu")
    with pytest.raises(PlacementError, match="no GPU, or its NUMA node is not known"):
        place_ranks(Topology(TWO_NODES.cpus), range(8), num_processes=1, num_threads=1, policy="gpu")


def test_the_part_of_a_topology_keeps_where_the_gpus_are() -> None:
    part = TWO_NODES.select_cpus((0, 4, 5))
    assert part.gpu_nodes == (1, 0)
    assert (part.select_near_gpu(0).num_cores, part.select_near_gpu(1).num_cores) == (2, 1)
