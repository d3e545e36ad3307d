"""The online CPUs of a machine and the caches they share, from /sys/devices/system."""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from corewise.machine.gpus import read_gpu_nodes
from corewise.machine.model import Cpu, Topology
from corewise.machine.sysfs import parse_cpu_list, read_cpu_list, read_int, read_text

__all__ = ["Cache", "format_cpu_list", "parse_cpu_list", "read_caches", "read_topology"]

CPU_DIR = "sys/devices/system/cpu"
NODE_DIR = "sys/devices/system/node"
SIZE_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True)
class Cache:
    """One cache and the CPUs that share it."""

    level: int
    type: str  # Data | Instruction | Unified
    size_bytes: int
    shared_cpus: tuple[int, ...]


def format_cpu_list(numbers: Iterable[int]) -> str:
    """The kernel's short form of the numbers: `0-3,8`."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def read_topology(root: Path = Path("/")) -> Topology:
    """The machine's online CPUs with their core, socket and NUMA node."""
    online = _online_cpus(root)
    node_of = _nodes_by_cpu(root)
    first_node = min(node_of.values(), default=0)
    cpus = tuple(
        Cpu(number, _core(root, number, online), _socket(root, number), node_of.get(number, first_node))
        for number in sorted(online)
    )
    present = read_cpu_list(root / CPU_DIR / "present")
    offline = set(present or read_cpu_list(root / CPU_DIR / "offline") or ()) - online
    gpu_nodes = read_gpu_nodes({cpu.node for cpu in cpus}, root)
    return Topology(cpus, tuple(sorted(offline)), gpu_nodes)


def read_caches(topology: Topology, root: Path = Path("/")) -> tuple[Cache, ...]:
    """Every cache of the online CPUs, once each, by level and first CPU."""
    found: dict[tuple[str, str], Cache | None] = {}
    for cpu in topology.cpus:
        folder = f"{root}/{CPU_DIR}/cpu{cpu.number}/cache"
        for index in sorted(_listdir(folder)):
            shared = read_text(Path(f"{folder}/{index}/shared_cpu_list")) or str(cpu.number)
            if (index, shared) not in found:
                found[index, shared] = _cache(Path(folder, index))
    caches = [cache for cache in found.values() if cache is not None]
    return tuple(sorted(caches, key=lambda c: (c.level, c.type, c.shared_cpus)))


def _online_cpus(root: Path) -> set[int]:
    listed = read_cpu_list(root / CPU_DIR / "online")
    if listed:
        return set(listed)
    numbers = {int(name) for name in _numbered(root / CPU_DIR, "cpu")}
    switched_on = {n for n in numbers if read_text(root / CPU_DIR / f"cpu{n}" / "online") != "0"}
    if switched_on:
        return switched_on
    stated = re.findall(r"(?m)^processor\s*:\s*(\d+)\s*$", read_text(root / "proc/cpuinfo") or "")
    if stated:
        return {int(n) for n in stated}
    return set(range(os.cpu_count() or 1)) if root == Path("/") else {0}


def _nodes_by_cpu(root: Path) -> dict[int, int]:
    nodes = sorted(int(name) for name in _numbered(root / NODE_DIR, "node"))
    lists = ((node, read_cpu_list(root / NODE_DIR / f"node{node}" / "cpulist")) for node in nodes)
    return {cpu: node for node, cpus in lists for cpu in cpus or ()}


def _numbered(folder: Path, prefix: str) -> list[str]:
    """The numbers N of the folder's entries named prefixN."""
    return [m[1] for m in (re.fullmatch(rf"{prefix}([0-9]+)", name) for name in _listdir(folder)) if m]


def _listdir(folder: Path | str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _core(root: Path, number: int, online: set[int]) -> int:
    folder = root / CPU_DIR / f"cpu{number}" / "topology"
    siblings = read_cpu_list(folder / "thread_siblings_list") or read_cpu_list(folder / "core_cpus_list")
    return min({number} | (set(siblings or ()) & online))


def _socket(root: Path, number: int) -> int:
    package = read_int(root / CPU_DIR / f"cpu{number}" / "topology/physical_package_id")
    return max(package or 0, 0)  # some kernels say -1 for "unknown"


def _cache(index: Path) -> Cache | None:
    shared = read_cpu_list(index / "shared_cpu_list")
    level = read_int(index / "level")
    size = re.fullmatch(r"([0-9]+)([KMG]?)", read_text(index / "size") or "")
    if shared is None or level is None or size is None:
        return None
    kind = read_text(index / "type") or "Unified"
    return Cache(level, kind, int(size[1]) * SIZE_UNITS[size[2]], shared)
