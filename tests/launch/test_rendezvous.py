"""The variables that code written for torchrun reads, and a port that is reserved for rank 0."""

import socket

import pytest

from corewise.launch.rendezvous import RENDEZVOUS_NAMES, build_rendezvous_variables, has_rendezvous, reserve_port


def test_the_variables_are_those_of_torchrun_on_one_node() -> None:
    variables = build_rendezvous_variables(1, 4, 29500)
    assert {name: variables[name] for name in ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE")} == {
        "RANK": "1",
        "LOCAL_RANK": "1",
        "GROUP_RANK": "0",
        "WORLD_SIZE": "4",
    }
    assert variables["LOCAL_WORLD_SIZE"] == "4"
    assert (variables["MASTER_ADDR"], variables["MASTER_PORT"]) == ("127.0.0.1", "29500")
    assert set(variables) == set(RENDEZVOUS_NAMES)


def test_every_variable_torchrun_sets_for_a_worker_is_set() -> None:
    agent = pytest.importorskip("torch.distributed.elastic.agent.server.local_elastic_agent")
    with open(agent.__file__, encoding="utf-8") as file:
        source = file.read()
    for name in RENDEZVOUS_NAMES:
        assert f'"{name}"' in source


def test_an_outer_launcher_is_recognised() -> None:
    assert has_rendezvous(build_rendezvous_variables(0, 2, 1))
    assert not has_rendezvous({"RANK": "0", "WORLD_SIZE": "1"})


def test_a_reserved_port_is_assigned_to_nobody_but_can_be_bound() -> None:
    with reserve_port() as port:
        others = [socket.create_server(("127.0.0.1", 0)) for _ in range(50)]
        assert port not in {other.getsockname()[1] for other in others}
        # create_server sets SO_REUSEADDR, as servers do.
        with socket.create_server(("127.0.0.1", port)):
            pass
        for other in others:
            other.close()


def test_a_port_that_is_taken_is_refused() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(OSError, match="in use"),
        reserve_port(taken.getsockname()[1]),
    ):
        pass
