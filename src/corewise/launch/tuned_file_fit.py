"""Checks whether a tuned file fits this machine, and adapts its settings where it does not."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corewise.launch.environment import PRELOADED_ALLOCATORS
from corewise.launch.ranks import fill_params, place_trial_ranks
from corewise.machine.allocation import read_hostname
from corewise.machine.core_classes import name_core_class
from corewise.machine.machine_model import Allocation, Topology
from corewise.machine.placement import PlacementError
from corewise.machine.processor import read_cpu_model
from corewise.measured.parameters import TrialParameters
from corewise.study.tuned_file import MachineFingerprint

GIB = 1 << 30
# A machine fits when it has at least this fraction of the memory of the tuned machine.
MIN_MEMORY_FRACTION = 0.9


@dataclass(frozen=True)
class FittedSettings:
    """Settings for this machine, and one sentence per changed setting."""

    params: Mapping[str, Any]
    changes: tuple[str, ...]


def read_fingerprint(topology: Topology, allocation: Allocation, root: Path = Path("/")) -> MachineFingerprint:
    """Read this machine's fingerprint; it holds the shape of the allocation, not its CPU numbers."""
    usable = topology.select_cpus(allocation.cpus)
    nodes = []
    for node in usable.nodes:
        cpus = [cpu for cpu in usable.cpus if cpu.node == node]
        nodes.append((len({cpu.core for cpu in cpus}), len(cpus)))
    return MachineFingerprint(
        cpu_model=read_cpu_model(root),
        num_sockets=len(usable.sockets),
        nodes=tuple(sorted(nodes, reverse=True)),
        core_classes=_count_cores_per_class(topology, usable),
        memory_bytes=allocation.memory_bytes,
        hostname=read_hostname(root),
    )


def _count_cores_per_class(topology: Topology, usable: Topology) -> tuple[int, ...]:
    """Count the allocation's cores of each class, fastest first; empty unless the machine is hybrid."""
    if len(topology.core_classes) < 2:
        return ()
    return tuple(len({cpu.core for cpu in usable.cpus if cpu.core_class == each}) for each in topology.core_classes)


def find_differences(tuned: MachineFingerprint, here: MachineFingerprint) -> list[str]:
    """List how this machine differs from the tuned one; an empty list means that the file fits."""
    found = []
    if tuned.cpu_model != here.cpu_model:
        found.append(f"processor: tuned on {tuned.cpu_model}, here {here.cpu_model}")
    if tuned.num_sockets != here.num_sockets:
        found.append(f"sockets: tuned on {tuned.num_sockets}, here {here.num_sockets}")
    if tuned.nodes != here.nodes:
        found.append(f"allocation: tuned on {_describe_shape(tuned)}, here {_describe_shape(here)}")
    # Older files do not hold classes.
    if tuned.core_classes and tuned.core_classes != here.core_classes:
        found.append(f"core types: tuned on {_describe_classes(tuned)}, here {_describe_classes(here)}")
    if here.memory_bytes < MIN_MEMORY_FRACTION * tuned.memory_bytes:
        found.append(f"memory: tuned with {tuned.memory_bytes / GIB:.1f} GiB, here {here.memory_bytes / GIB:.1f} GiB")
    return found


def fit_settings(
    params: Mapping[str, Any],
    tuned: MachineFingerprint,
    topology: Topology,
    cpus: Collection[int],
    libraries: Collection[str],
    *,
    has_huge_pages: bool = True,
) -> FittedSettings:
    """Adapt the settings: processes scale with cores, and a machine that was filled stays filled."""
    changes: list[str] = []
    new = dict(params)
    usable = tuple(sorted(cpus))
    num_cores = topology.select_cpus(usable).num_cores
    if new.get("reserved_cores", 0) >= num_cores:
        changes.append(f"reserved_cores: {new['reserved_cores']} of {num_cores} become 0")
        new["reserved_cores"] = 0
    num_here = fill_params({**new, "processes": 1, "threads": None}, topology, usable)["threads"]
    _fit_counts(new, _count_tuned_cores(params, tuned), num_here, changes)
    _fit_placement(new, topology, usable, changes)
    left = drop_unavailable(new, libraries, has_huge_pages=has_huge_pages)
    return FittedSettings(left.params, (*changes, *left.changes))


def drop_unavailable(params: Mapping[str, Any], libraries: Collection[str], *, has_huge_pages: bool) -> FittedSettings:
    """Drop libraries that are not installed here, and huge pages if the kernel has disabled them."""
    changes: list[str] = []
    new = dict(params)
    for name, libraries_of in (("allocator", PRELOADED_ALLOCATORS), ("openmp", ("libiomp5",))):
        wanted = new.get(name)
        if wanted in libraries_of and wanted not in libraries:
            new[name] = "default"
            changes.append(f"{name}: {wanted} is not installed here; the default is used")
    if new.get("huge_pages") == "transparent" and not has_huge_pages:
        new["huge_pages"] = "default"
        changes.append("huge_pages: disabled in this kernel; the default is used")
    return FittedSettings(new, tuple(changes))


def _count_tuned_cores(params: Mapping[str, Any], tuned: MachineFingerprint) -> int:
    """Count the cores (CPUs with SMT) that the ranks could use on the tuned machine."""
    num_reserved = int(params.get("reserved_cores", 0))
    if not params.get("smt", False):
        return max(1, tuned.num_cores - num_reserved)
    return max(1, tuned.num_cpus - num_reserved * (tuned.num_cpus // tuned.num_cores))


def _fit_counts(new: dict[str, Any], num_tuned: int, num_here: int, changes: list[str]) -> None:
    processes, threads = int(new.get("processes", 1)), int(new.get("threads") or num_tuned)
    was_filled = processes * threads >= num_tuned
    if processes == 1:
        num_processes, num_threads = 1, max(1, round(threads * num_here / num_tuned))
    else:
        num_processes = max(1, round(processes * num_here / num_tuned))
        num_threads = num_here // num_processes if was_filled else min(threads, num_here // num_processes)
    num_threads = max(1, min(num_threads, num_here))
    new["processes"], new["threads"], new["oversubscribe"] = num_processes, num_threads, False
    if (num_processes, num_threads) != (processes, threads):
        changes.append(
            f"processes × threads: {processes} × {threads} on {num_tuned} cores become "
            f"{num_processes} × {num_threads} on {num_here}"
        )
    if num_processes != processes:
        changes.append("batch: the number of processes has changed, so each process must use another batch size")


def _fit_placement(new: dict[str, Any], topology: Topology, cpus: tuple[int, ...], changes: list[str]) -> None:
    try:
        place_trial_ranks(topology, cpus, TrialParameters.from_mapping(fill_params(new, topology, cpus)))
    except PlacementError as problem:
        wanted = new.get("placement")
        if wanted not in ("numa", "gpu"):
            raise
        new["placement"] = "compact"
        changes.append(f"placement: {wanted} becomes compact: {problem}")


def _describe_shape(machine: MachineFingerprint) -> str:
    sizes = "+".join(str(cores) for cores, _ in machine.nodes)
    nodes = "1 NUMA node" if len(machine.nodes) == 1 else f"{len(machine.nodes)} NUMA nodes ({sizes})"
    smt = f", {machine.num_cpus} CPUs" if machine.num_cpus != machine.num_cores else ""
    cores = "1 core" if machine.num_cores == 1 else f"{machine.num_cores} cores"
    return f"{cores}{smt} on {nodes}"


def _describe_classes(machine: MachineFingerprint) -> str:
    num = len(machine.core_classes)
    shown = [f"{cores} {name_core_class(index, num)}" for index, cores in enumerate(machine.core_classes)]
    return " + ".join(shown) or "cores of one type"
