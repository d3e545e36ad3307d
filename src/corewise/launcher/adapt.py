"""Whether a tuned file fits this machine, and what becomes of its settings where it does not."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corewise.launcher.environment import PRELOADED_ALLOCATORS
from corewise.launcher.ranks import complete_params, place_params
from corewise.machine.allocation import read_hostname
from corewise.machine.model import Allocation, Topology
from corewise.machine.placement import PlacementError
from corewise.machine.processor import read_cpu_model
from corewise.spec.tuned import Fingerprint

GIB = 1 << 30
LEAST_MEMORY = 0.9  # of what the tuned machine had; more never hurts


@dataclass(frozen=True)
class Adapted:
    """Settings for this machine, and a sentence for each that was changed."""

    params: Mapping[str, Any]
    changes: tuple[str, ...]


def read_fingerprint(topology: Topology, allocation: Allocation, root: Path = Path("/")) -> Fingerprint:
    """This machine as a tuned file describes it; the shape of the allocation counts, not its CPU numbers."""
    usable = topology.restricted(allocation.cpus)
    nodes = []
    for node in usable.nodes:
        cpus = [cpu for cpu in usable.cpus if cpu.node == node]
        nodes.append((len({cpu.core for cpu in cpus}), len(cpus)))
    return Fingerprint(
        cpu_model=read_cpu_model(root),
        num_sockets=len(usable.sockets),
        nodes=tuple(sorted(nodes, reverse=True)),
        memory_bytes=allocation.memory_bytes,
        hostname=read_hostname(root),
    )


def differences(tuned: Fingerprint, here: Fingerprint) -> list[str]:
    """What of the machine a file was tuned on is not so here; none means that it fits."""
    found = []
    if tuned.cpu_model != here.cpu_model:
        found.append(f"processor: tuned on {tuned.cpu_model}, here {here.cpu_model}")
    if tuned.num_sockets != here.num_sockets:
        found.append(f"sockets: tuned on {tuned.num_sockets}, here {here.num_sockets}")
    if tuned.nodes != here.nodes:
        found.append(f"allocation: tuned on {_shape(tuned)}, here {_shape(here)}")
    if here.memory_bytes < LEAST_MEMORY * tuned.memory_bytes:
        found.append(
            f"memory: tuned with {tuned.memory_bytes / GIB:.1f} GiB, here {here.memory_bytes / GIB:.1f} GiB"
        )
    return found


def adapted(
    params: Mapping[str, Any],
    tuned: Fingerprint,
    topology: Topology,
    cpus: Collection[int],
    libraries: Collection[str],
    *,
    has_huge_pages: bool = True,
) -> Adapted:
    """The settings planned anew: processes in proportion to cores, all of which stay in use if they were."""
    changes: list[str] = []
    new = dict(params)
    usable = tuple(sorted(cpus))
    num_cores = topology.restricted(usable).num_cores
    if new.get("reserved_cores", 0) >= num_cores:
        changes.append(f"reserved_cores: {new['reserved_cores']} of {num_cores} become 0")
        new["reserved_cores"] = 0
    num_here = complete_params({**new, "processes": 1, "threads": None}, topology, usable)["threads"]
    _adapt_counts(new, _num_tuned(params, tuned), num_here, changes)
    _adapt_placement(new, topology, usable, changes)
    left = without_missing(new, libraries, has_huge_pages=has_huge_pages)
    return Adapted(left.params, (*changes, *left.changes))


def without_missing(
    params: Mapping[str, Any], libraries: Collection[str], *, has_huge_pages: bool
) -> Adapted:
    """The settings without libraries that are not installed here and pages that this kernel does not give."""
    changes: list[str] = []
    new = dict(params)
    for name, libraries_of in (("allocator", PRELOADED_ALLOCATORS), ("openmp", ("libiomp5",))):
        wanted = new.get(name)
        if wanted in libraries_of and wanted not in libraries:
            new[name] = "default"
            changes.append(f"{name}: {wanted} is not installed here; the default is used")
    if new.get("huge_pages") == "transparent" and not has_huge_pages:
        new["huge_pages"] = "default"
        changes.append("huge_pages: this kernel has them switched off; the default is used")
    return Adapted(new, tuple(changes))


def _num_tuned(params: Mapping[str, Any], tuned: Fingerprint) -> int:
    """Cores (CPUs with SMT) that the ranks had to themselves on the tuned machine."""
    num_reserved = int(params.get("reserved_cores", 0))
    if not params.get("smt", False):
        return max(1, tuned.num_cores - num_reserved)
    return max(1, tuned.num_cpus - num_reserved * (tuned.num_cpus // tuned.num_cores))


def _adapt_counts(new: dict[str, Any], num_tuned: int, num_here: int, changes: list[str]) -> None:
    processes, threads = int(new.get("processes", 1)), int(new.get("threads") or num_tuned)
    filled = processes * threads >= num_tuned
    if processes == 1:
        num_processes, num_threads = 1, max(1, round(threads * num_here / num_tuned))
    else:
        num_processes = max(1, round(processes * num_here / num_tuned))
        num_threads = num_here // num_processes if filled else min(threads, num_here // num_processes)
    num_threads = max(1, min(num_threads, num_here))
    new["processes"], new["threads"], new["oversubscribe"] = num_processes, num_threads, False
    if (num_processes, num_threads) != (processes, threads):
        changes.append(
            f"processes × threads: {processes} × {threads} on {num_tuned} cores become "
            f"{num_processes} × {num_threads} on {num_here}"
        )
    if num_processes != processes:
        changes.append("batch: the number of processes has changed, and with it the batch each must take")


def _adapt_placement(
    new: dict[str, Any], topology: Topology, cpus: tuple[int, ...], changes: list[str]
) -> None:
    try:
        place_params(topology, cpus, complete_params(new, topology, cpus))
    except PlacementError as problem:
        wanted = new.get("placement")
        if wanted not in ("numa", "gpu"):
            raise
        new["placement"] = "compact"
        changes.append(f"placement: {wanted} becomes compact: {problem}")


def _shape(machine: Fingerprint) -> str:
    sizes = "+".join(str(cores) for cores, _ in machine.nodes)
    nodes = "1 NUMA node" if len(machine.nodes) == 1 else f"{len(machine.nodes)} NUMA nodes ({sizes})"
    smt = f", {machine.num_cpus} CPUs" if machine.num_cpus != machine.num_cores else ""
    cores = "1 core" if machine.num_cores == 1 else f"{machine.num_cores} cores"
    return f"{cores}{smt} on {nodes}"
