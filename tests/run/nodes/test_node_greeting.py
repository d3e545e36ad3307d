"""Nodes must be alike, and nodes that are one machine get disjoint cores."""

from dataclasses import replace

import pytest

from corewise.errors import UserError
from corewise.machine.machine_model import Cpu, Topology
from corewise.run.machine_view import Host, read_host
from corewise.run.nodes.node_greeting import (
    Greeting,
    divide_shared_machines,
    require_same_machines,
    require_same_software,
)


def build_host(num_cores: int = 4, name: str = "n") -> Host:
    real = read_host()
    topology = Topology(tuple(Cpu(number, number, 0, 0) for number in range(num_cores)))
    allocation = replace(real.allocation, cpus=tuple(range(num_cores)), num_cores=num_cores)
    return replace(real, topology=topology, allocation=allocation, facts=replace(real.facts, hostname=name))


def build_greeting(node_rank: int, host: Host | None = None, boot_id: str | None = None) -> Greeting:
    versions = {"Corewise": "1", "Python": "3.12"}
    boot = f"boot-{node_rank}" if boot_id is None else boot_id
    return Greeting(node_rank, host or build_host(name=f"n{node_rank}"), boot, "127.0.0.1", "worker-1.pyz", versions)


def test_a_greeting_survives_the_journey() -> None:
    greeting = build_greeting(1, read_host())
    assert Greeting.from_json(greeting.to_json()) == greeting


def test_a_greeting_of_another_version_is_refused() -> None:
    data = build_greeting(0).to_json()
    del data["host"]["allocation"]
    with pytest.raises(UserError, match="another version of Corewise"):
        Greeting.from_json(data)


def test_different_versions_name_the_node_and_the_package() -> None:
    other = replace(build_greeting(1), versions={"Corewise": "2", "Python": "3.12"})
    with pytest.raises(UserError, match=r"node 1 \(n1\) has Corewise 2 instead of 1 on node 0 \(n0\)"):
        require_same_software([build_greeting(0), other])


def test_equal_versions_with_other_files_are_refused() -> None:
    other = replace(build_greeting(1), worker="worker-2.pyz")
    with pytest.raises(UserError, match="other files of Corewise"):
        require_same_software([build_greeting(0), other])


def test_another_type_of_machine_is_refused() -> None:
    other = build_greeting(1, replace(build_host(name="n1"), class_hash="other"))
    with pytest.raises(UserError, match=r"node 1 \(n1\) is another type of machine"):
        require_same_machines([build_greeting(0), other])


def test_a_smaller_allocation_is_refused() -> None:
    host = build_host(name="n1")
    small = replace(host, allocation=replace(host.allocation, cpus=(0, 1), num_cores=2))
    with pytest.raises(UserError, match="grants 2 cores, node 0"):
        require_same_machines([build_greeting(0), build_greeting(1, small)])


def test_different_machines_keep_their_allocations() -> None:
    greetings = [build_greeting(0), build_greeting(1)]
    assert divide_shared_machines(greetings) == greetings


def test_nodes_that_are_one_machine_get_disjoint_halves_of_cores_and_memory() -> None:
    host = build_host(4)
    divided = divide_shared_machines([build_greeting(0, host, "b"), build_greeting(1, host, "b")])
    assert [each.host.allocation.cpus for each in divided] == [(0, 1), (2, 3)]
    assert [each.host.allocation.num_cores for each in divided] == [2, 2]
    assert divided[0].host.allocation.memory_bytes == host.allocation.memory_bytes // 2


def test_nodes_that_the_scheduler_has_divided_already_are_left_alone() -> None:
    host = build_host(4)
    halves = [replace(host, allocation=replace(host.allocation, cpus=cpus, num_cores=2)) for cpus in ((0, 1), (2, 3))]
    greetings = [build_greeting(rank, half, "b") for rank, half in enumerate(halves)]
    assert divide_shared_machines(greetings) == greetings


def test_more_nodes_than_cores_on_one_machine_are_refused() -> None:
    host = build_host(1)
    with pytest.raises(UserError, match="2 nodes of this run are the same machine"):
        divide_shared_machines([build_greeting(0, host, "b"), build_greeting(1, host, "b")])
