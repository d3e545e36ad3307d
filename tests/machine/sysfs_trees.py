"""Synthetic /sys and /proc trees."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from corewise.machine.topology import format_cpu_list

GIB = 1 << 30


class Tree:
    """Files under a root that stands for /; every method returns the tree."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, text: object) -> "Tree":
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
        return self

    def add_cpus(
        self,
        cores: Sequence[Sequence[int]],
        nodes: Sequence[Iterable[int]] = (),
        sockets: Sequence[Iterable[int]] = (),
        offline: Iterable[int] = (),
    ) -> "Tree":
        """Cores as lists of their CPUs; nodes and sockets as lists of CPUs, all on 0 where not given."""
        present = sorted(number for core in cores for number in core)
        online = [number for number in present if number not in set(offline)]
        base = "sys/devices/system/cpu"
        self.write(f"{base}/present", format_cpu_list(present))
        self.write(f"{base}/online", format_cpu_list(online))
        self.write(f"{base}/offline", format_cpu_list(offline))
        for core in cores:
            for number in set(core) & set(online):
                siblings = [n for n in core if n in online]
                self.write(f"{base}/cpu{number}/topology/thread_siblings_list", format_cpu_list(siblings))
                package = next((i for i, members in enumerate(sockets) if number in members), 0)
                self.write(f"{base}/cpu{number}/topology/physical_package_id", package)
        for node, members in enumerate(nodes):
            numbers = [n for n in members if n in online]
            self.write(f"sys/devices/system/node/node{node}/cpulist", format_cpu_list(numbers))
        return self

    def set_memory(self, total_bytes: int, **others: int) -> "Tree":
        sizes = {"MemTotal": total_bytes, **others}
        lines = [f"{key}: {size // 1024} kB" for key, size in sizes.items()]
        return self.write("proc/meminfo", "\n".join(lines))

    def set_affinity(self, text: str) -> "Tree":
        return self.write("proc/self/status", f"Name:\tpython\nCpus_allowed_list:\t{text}")

    def join_cgroup2(self, path: str, shows: str = "/", at: str = "/sys/fs/cgroup") -> "Tree":
        """This process in the given group of the v2 hierarchy."""
        self._append("proc/self/cgroup", f"0::{path}")
        self._append("proc/self/mountinfo", f"31 23 0:28 {shows} {at} rw,nosuid - cgroup2 cgroup2 rw")
        return self.add_folder(at)

    def join_cgroup1(self, controllers: str, path: str, shows: str = "/") -> "Tree":
        """This process in the given group of a v1 hierarchy."""
        at = f"/sys/fs/cgroup/{controllers}"
        self._append("proc/self/cgroup", f"4:{controllers}:{path}")
        self._append("proc/self/mountinfo", f"33 31 0:29 {shows} {at} rw - cgroup cgroup rw,{controllers}")
        return self.add_folder(at)

    def add_group(self, folder: str, files: Mapping[str, object]) -> "Tree":
        """Files of one control group, its folder below /sys/fs/cgroup."""
        for name, text in files.items():
            self.write(f"sys/fs/cgroup/{folder}/{name}", text)
        return self

    def add_folder(self, path: str) -> "Tree":
        (self.root / path.lstrip("/")).mkdir(parents=True, exist_ok=True)
        return self

    def _append(self, path: str, line: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        with open(file, "a") as lines:
            lines.write(line + "\n")


def add_two_sockets(tree: Tree) -> Tree:
    """Two sockets of 48 cores with two threads each, siblings numbered apart."""
    cores = [(n, n + 96) for n in range(96)]
    halves = [[n for core in part for n in core] for part in (cores[:48], cores[48:])]
    return tree.add_cpus(cores, nodes=halves, sockets=halves).set_memory(512 * GIB)


def add_core_i9_13900k(tree: Tree) -> Tree:
    """Eight performance cores with two threads each, two of them favoured, and 16 efficiency cores without SMT."""
    tree.add_cpus([*((2 * n, 2 * n + 1) for n in range(8)), *((n,) for n in range(16, 32))], nodes=[range(32)])
    tree.write("sys/devices/cpu_core/cpus", "0-15").write("sys/devices/cpu_atom/cpus", "16-31")
    for cpu in range(32):
        frequency = 4_300_000 if cpu >= 16 else 5_800_000 if cpu in (8, 9, 10, 11) else 5_500_000
        tree.write(f"sys/devices/system/cpu/cpu{cpu}/cpufreq/cpuinfo_max_freq", frequency)
    return tree.set_memory(64 * GIB)


def add_snapdragon_865(tree: Tree) -> Tree:
    """Four little cores first, then three big ones, then one big core with a higher clock."""
    return _add_capacities(tree, [284] * 4 + [871] * 3 + [1024])


def add_apple_m1(tree: Tree) -> Tree:
    """Under Linux: four efficiency cores first, then four performance cores."""
    return _add_capacities(tree, [459] * 4 + [1024] * 4)


def _add_capacities(tree: Tree, capacities: Sequence[int]) -> Tree:
    tree.add_cpus([(n,) for n in range(len(capacities))]).set_memory(8 * GIB)
    for cpu, capacity in enumerate(capacities):
        tree.write(f"sys/devices/system/cpu/cpu{cpu}/cpu_capacity", capacity)
    return tree
