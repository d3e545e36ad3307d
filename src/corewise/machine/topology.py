"""Read the online CPUs of a machine from /sys/devices/system."""

import os
import re
from collections.abc import Iterable
from pathlib import Path

from corewise.machine.core_classes import CPU_DIR, read_core_classes
from corewise.machine.gpus import read_gpu_nodes
from corewise.machine.machine_model import Cpu, Topology
from corewise.measured.sysfs import parse_cpu_list, read_cpu_list, read_int, read_text

__all__ = ["CPU_DIR", "format_cpu_list", "parse_cpu_list", "read_topology"]

NODE_DIR = "sys/devices/system/node"


def format_cpu_list(numbers: Iterable[int]) -> str:
    """Format CPU numbers in the kernel's short form: `0-3,8`."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def read_topology(root: Path = Path("/")) -> Topology:
    """Return the machine's online CPUs with their core, socket, NUMA node and class of core."""
    online = _read_online_cpus(root)
    node_of = _map_cpus_to_nodes(root)
    first_node = min(node_of.values(), default=0)
    class_of = {cpu: index for index, each in enumerate(read_core_classes(online, root)) for cpu in each.cpus}
    core_of = {number: _read_core(root, number, online) for number in sorted(online)}
    cpus = tuple(
        # SMT siblings share a core, so they are of one class.
        Cpu(number, core, _read_socket(root, number), node_of.get(number, first_node), class_of.get(core, 0))
        for number, core in core_of.items()
    )
    present = read_cpu_list(root / CPU_DIR / "present")
    offline = set(present or read_cpu_list(root / CPU_DIR / "offline") or ()) - online
    gpu_nodes = read_gpu_nodes({cpu.node for cpu in cpus}, root)
    return Topology(cpus, tuple(sorted(offline)), gpu_nodes)


def _read_online_cpus(root: Path) -> set[int]:
    listed = read_cpu_list(root / CPU_DIR / "online")
    if listed:
        return set(listed)
    numbers = {int(name) for name in _list_numbers(root / CPU_DIR, "cpu")}
    switched_on = {n for n in numbers if read_text(root / CPU_DIR / f"cpu{n}" / "online") != "0"}
    if switched_on:
        return switched_on
    listed_numbers = re.findall(r"(?m)^processor\s*:\s*(\d+)\s*$", read_text(root / "proc/cpuinfo") or "")
    if listed_numbers:
        return {int(n) for n in listed_numbers}
    return set(range(os.cpu_count() or 1)) if root == Path("/") else {0}


def _map_cpus_to_nodes(root: Path) -> dict[int, int]:
    nodes = sorted(int(name) for name in _list_numbers(root / NODE_DIR, "node"))
    lists = ((node, read_cpu_list(root / NODE_DIR / f"node{node}" / "cpulist")) for node in nodes)
    return {cpu: node for node, cpus in lists for cpu in cpus or ()}


def _list_numbers(folder: Path, prefix: str) -> list[str]:
    """Return the numbers N of the folder's entries named prefixN."""
    return [m[1] for m in (re.fullmatch(rf"{prefix}([0-9]+)", name) for name in _list_folder(folder)) if m]


def _list_folder(folder: Path | str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _read_core(root: Path, number: int, online: set[int]) -> int:
    folder = root / CPU_DIR / f"cpu{number}" / "topology"
    siblings = read_cpu_list(folder / "thread_siblings_list") or read_cpu_list(folder / "core_cpus_list")
    return min({number} | (set(siblings or ()) & online))


def _read_socket(root: Path, number: int) -> int:
    package = read_int(root / CPU_DIR / f"cpu{number}" / "topology/physical_package_id")
    # Some kernels report an unknown socket as -1.
    return max(package or 0, 0)
