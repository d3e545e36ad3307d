"""A tuned file on another machine: differences, adapted settings, and settings that only code can apply."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from tests.launch_parsing import parse_launch

from corewise.cli.launching import settings as launch_settings
from corewise.errors import UserError
from corewise.launch.code_settings import list_code_settings
from corewise.launch.tuned_file_fit import FittedSettings, find_differences, fit_settings, read_fingerprint
from corewise.machine.allocation import read_allocation
from corewise.machine.machine_model import Allocation, Cpu, Topology
from corewise.machine.topology import read_topology
from corewise.study.axes import AXES
from corewise.study.tuned_file import MachineFingerprint, TunedSettings, TuningSubject, write_tuned

GIB = 1 << 30
SIXTEEN = MachineFingerprint(cpu_model="Xeon", num_sockets=2, nodes=((8, 8), (8, 8)), memory_bytes=128 * GIB)


def machine(*cores_of_nodes: int) -> Topology:
    cpus: list[Cpu] = []
    for node, num_cores in enumerate(cores_of_nodes):
        cpus += [Cpu(len(cpus) + i, len(cpus) + i, node, node) for i in range(num_cores)]
    return Topology(tuple(cpus))


def adapt_to(params: dict[str, Any], topology: Topology, libraries: tuple[str, ...] = ()) -> FittedSettings:
    return fit_settings(params, SIXTEEN, topology, [cpu.number for cpu in topology.cpus], libraries)


def test_this_machine_does_not_differ_from_itself() -> None:
    topology = read_topology()
    here = read_fingerprint(topology, read_allocation(topology))
    assert find_differences(here, here) == []
    assert here.num_cores == read_allocation(topology).num_cores


def test_each_difference_is_named_with_both_sides() -> None:
    here = MachineFingerprint(cpu_model="EPYC", num_sockets=1, nodes=((2, 4),), memory_bytes=16 * GIB)
    assert find_differences(SIXTEEN, here) == [
        "processor: tuned on Xeon, here EPYC",
        "sockets: tuned on 2, here 1",
        "allocation: tuned on 16 cores on 2 NUMA nodes (8+8), here 2 cores, 4 CPUs on 1 NUMA node",
        "memory: tuned with 128.0 GiB, here 16.0 GiB",
    ]


def test_other_types_of_cores_are_a_difference_unless_the_file_is_older() -> None:
    cpus = [Cpu(n, n, 0, 0, core_class=int(n >= 2)) for n in range(4)]
    fast, slow = (
        read_fingerprint(Topology(tuple(cpus)), Allocation(numbers, 2, 8 * GIB)) for numbers in ((0, 1), (2, 3))
    )
    assert (fast.core_classes, slow.core_classes) == ((2, 0), (0, 2))
    (difference,) = find_differences(fast, slow)
    assert difference == "core types: tuned on 2 performance + 0 efficiency, here 0 performance + 2 efficiency"
    assert find_differences(dataclasses.replace(fast, core_classes=()), slow) == []


def test_host_name_and_more_memory_are_ignored() -> None:
    assert find_differences(SIXTEEN, dataclasses.replace(SIXTEEN, hostname="b", memory_bytes=500 * GIB)) == []


@pytest.mark.parametrize(
    ("tuned", "cores", "becomes"),
    [
        # Fewer processes of the same width.
        ((4, 4), (8,), (2, 4)),
        ((4, 4), (16, 16), (8, 4)),
        ((4, 4), (2,), (1, 2)),
        ((1, 16), (2,), (1, 2)),
        # Settings that used half of the cores still use half of them.
        ((1, 8), (4,), (1, 2)),
        ((16, 1), (6,), (6, 1)),
        # Settings that used all cores still use all of them.
        ((4, 4), (6,), (2, 3)),
        ((2, 4), (8,), (1, 4)),
    ],
)
def test_processes_scale_with_the_cores(
    tuned: tuple[int, int], cores: tuple[int, ...], becomes: tuple[int, int]
) -> None:
    new = adapt_to({"processes": tuned[0], "threads": tuned[1]}, machine(*cores))
    assert (new.params["processes"], new.params["threads"]) == becomes
    assert any(f"{tuned[0]} × {tuned[1]} on 16 cores become" in change for change in new.changes)


def test_unavailable_settings_are_replaced_and_reported() -> None:
    params = {"processes": 1, "threads": 16, "placement": "numa", "allocator": "tcmalloc", "reserved_cores": 3}
    new = adapt_to(params, machine(1, 1))
    assert (new.params["placement"], new.params["allocator"], new.params["reserved_cores"]) == ("compact", "default", 0)
    assert [change.split(":")[0] for change in new.changes] == [
        "reserved_cores",
        "processes × threads",
        "placement",
        "allocator",
    ]
    unchanged = adapt_to({"processes": 2, "threads": 8, "allocator": "tcmalloc"}, machine(8, 8), ("tcmalloc",))
    assert unchanged.changes == ()


def test_disabled_huge_pages_are_replaced_and_reported() -> None:
    params = {"processes": 1, "threads": 16, "huge_pages": "transparent"}
    topology = machine(8, 8)
    for has, pages, num_changes in ((True, "transparent", 0), (False, "default", 1)):
        new = fit_settings(params, SIXTEEN, topology, range(16), (), has_huge_pages=has)
        assert (new.params["huge_pages"], len(new.changes)) == (pages, num_changes)


@pytest.mark.parametrize("adapt", [False, True])
def test_unavailable_settings_of_a_file_for_this_machine_are_reported_with_the_file(
    adapt: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topology = read_topology()
    allocation = read_allocation(topology)
    file = tmp_path / "tuned.yaml"
    params = {"processes": 1, "allocator": "tcmalloc", "huge_pages": "transparent"}
    here = read_fingerprint(topology, allocation)
    write_tuned(file, TunedSettings(subject=TuningSubject(command=("x",)), params=params, machine=here))
    monkeypatch.setattr(launch_settings, "_find_library", lambda name, program: None)
    monkeypatch.setattr(launch_settings, "TRANSPARENT_HUGE_PAGES", tmp_path / "none")
    arguments = ["--config", str(file), *["--adapt"] * adapt, "--", "python"]
    if adapt:
        found = launch_settings.resolve_settings(parse_launch(arguments), "python", topology, allocation)
        assert (found.params["allocator"], found.params["huge_pages"]) == ("default", "default")
        assert len([note for note in found.notes if note.startswith("adapted ")]) == 3
        return
    for overrides, message in (((), "allocator: tcmalloc: not"), (("--allocator", "default"), "huge_pages: tra")):
        with pytest.raises(UserError, match=f"{file}: {message}.*--adapt"):
            launch_settings.resolve_settings(parse_launch([*overrides, *arguments]), "python", topology, allocation)


def test_a_batch_that_does_not_divide_evenly_is_still_split() -> None:
    lines = list_code_settings({"processes": 6, "batch": 64, "batch_scope": "global"})
    assert lines["batch: 64 in all"] == "batch_size=11 in 4 of the 6 processes, 10 in the others"


def test_settings_that_only_code_can_apply_come_with_their_line() -> None:
    params = {
        "memory_format": "channels_last",
        "execution": "compile",
        "dtype": "float32",
        "interop_threads": 2,
        "processes": 4,
        "batch": 16,
        "batch_scope": "global",
        "allocator": "tcmalloc",
        "collectives": "shared",
    }
    lines = list_code_settings(params)
    assert list(lines) == [
        "memory_format: channels_last",
        "execution: compile",
        "collectives: shared",
        "interop_threads: 2",
        "batch: 16 in all",
    ]
    assert "corewise.collectives.attach(ddp)" in lines["collectives: shared"]
    assert lines["execution: compile"] == "model = torch.compile(model)"
    assert lines["batch: 16 in all"] == "batch_size=4 in each of the 4 processes"
    assert list_code_settings({name: axis.default for name, axis in AXES.items()}) == {}
