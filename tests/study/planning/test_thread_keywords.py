from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from corewise.study.planning.expansion import Expansion, MachineView, expand_study
from corewise.study.study import load_study

# Two sockets of eight cores with two hardware threads each.
MACHINE = MachineView(num_cores=16, num_cpus=32, num_sockets=2, socket_cores=8, socket_cpus=16)


@pytest.fixture
def expand(tmp_path: Path) -> Any:
    def build(axes: str, machine: MachineView = MACHINE) -> Expansion:
        file = tmp_path / "study.yaml"
        file.write_text(f"workload: resnet18\nmode: train\naxes: {{{axes}}}\n")
        return expand_study(load_study(file), machine)

    return build


def list_threads(expansion: Expansion) -> list[Any]:
    return [point.params["threads"] for point in expansion.points]


def test_a_socket_and_a_node_are_numbers_of_cores(expand: Any) -> None:
    assert list_threads(expand("threads: [4, socket, node]")) == [4, 8, 16]


def test_with_smt_they_are_numbers_of_cpus(expand: Any) -> None:
    assert list_threads(expand("threads: [socket, node], smt: true")) == [16, 32]


def test_equal_keywords_make_one_point(expand: Any) -> None:
    one_socket = replace(MACHINE, num_cores=8, num_cpus=16, num_sockets=1)
    assert list_threads(expand("threads: [socket, node, allocation]", one_socket)) == [8]


def test_without_a_whole_socket_the_point_is_skipped_with_the_reason(expand: Any) -> None:
    part = replace(MACHINE, num_cores=6, num_cpus=12, socket_cores=0, socket_cpus=0)
    expansion = expand("threads: [socket, node]", part)
    assert list_threads(expansion) == [6]
    [skipped] = expansion.skipped
    assert skipped.params["threads"] == "socket"
    assert "the allocation of 6 cores holds no socket as a whole" in skipped.reason


def test_a_socket_for_each_process_fits_the_node(expand: Any) -> None:
    assert list_threads(expand("threads: socket, processes: 2, batch_scope: process")) == [8]
    assert "use fewer" in expand("threads: socket, processes: 3").skipped[0].reason
