"""Shares of an allocation: node processes on one machine get disjoint whole cores."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.machine.test_placement import build_machine

from corewise.machine.allocation import split_allocation
from corewise.machine.machine_model import Cpu, Topology


def split(topology: Topology, num_shares: int, cpus: tuple[int, ...] | None = None) -> list[tuple[int, ...]]:
    usable = tuple(cpu.number for cpu in topology.cpus) if cpus is None else cpus
    return [split_allocation(topology, usable, index, num_shares) for index in range(num_shares)]


def test_two_cores_are_one_for_each_of_two_shares() -> None:
    assert split(build_machine([[2]]), 2) == [(0,), (1,)]


def test_one_share_is_the_whole_allocation() -> None:
    assert split(build_machine([[4]], 2), 1, (1, 2, 5, 7)) == [(1, 2, 5, 7)]


def test_hardware_threads_of_a_core_stay_together() -> None:
    assert split(build_machine([[4]], 2), 2) == [(0, 1, 4, 5), (2, 3, 6, 7)]
    assert split(build_machine([[2]], 2, adjacent=True), 2) == [(0, 1), (2, 3)]


def test_shares_follow_the_numa_nodes() -> None:
    assert split(build_machine([[3], [2]]), 2) == [(0, 1), (3, 4)]


def test_cores_that_are_left_over_stay_unused() -> None:
    assert split(build_machine([[5]]), 2) == [(0, 1), (2, 3)]


def test_every_share_gets_fast_and_slow_cores() -> None:
    hybrid = Topology(tuple(Cpu(n, n, 0, 0, int(n >= 4)) for n in range(8)))
    assert split(hybrid, 2) == [(0, 1, 4, 5), (2, 3, 6, 7)]


def test_classes_with_too_few_cores_are_divided_together() -> None:
    hybrid = Topology(tuple(Cpu(n, n, 0, 0, int(n >= 1)) for n in range(4)))
    assert split(hybrid, 2) == [(0, 1), (2, 3)]


def test_cpus_outside_the_topology_are_not_used() -> None:
    assert split(build_machine([[4]]), 2, (0, 1, 2, 3, 64, 65)) == [(0, 1), (2, 3)]


def test_fewer_cores_than_shares_are_refused_with_both_numbers() -> None:
    with pytest.raises(ValueError, match="2 cores cannot be split into 3 shares of whole cores"):
        split_allocation(build_machine([[2]], 2), range(4), 0, 3)


@pytest.mark.parametrize(("index", "num_shares"), [(-1, 2), (2, 2), (0, 0)])
def test_a_share_that_does_not_exist_is_refused(index: int, num_shares: int) -> None:
    with pytest.raises(ValueError, match=f"share {index} of {num_shares} does not exist"):
        split_allocation(build_machine([[4]]), range(4), index, num_shares)


@given(
    sizes=st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=2), min_size=1, max_size=2),
    num_siblings=st.integers(1, 2),
    classes=st.integers(1, 3),
    data=st.data(),
)
def test_shares_are_disjoint_whole_cores_of_equal_number(
    sizes: list[list[int]], num_siblings: int, classes: int, data: st.DataObject
) -> None:
    machine = build_machine(sizes, num_siblings)
    mixed = Topology(tuple(Cpu(c.number, c.core, c.socket, c.node, c.core % classes) for c in machine.cpus))
    num_shares = data.draw(st.integers(1, mixed.num_cores))
    core_of = {cpu.number: cpu.core for cpu in mixed.cpus}
    shares = split(mixed, num_shares)
    used = [cpu for share in shares for cpu in share]
    assert len(used) == len(set(used))
    assert {len(share) for share in shares} == {mixed.num_cores // num_shares * num_siblings}
    for share in shares:
        assert len({core_of[cpu] for cpu in share}) * num_siblings == len(share)
