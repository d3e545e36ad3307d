"""Read the limits of this process's control groups: CPU sets, CPU quota and memory, in cgroup v1 and v2.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Iterator

from corewise.measured.sysfs import read_cpu_list, read_int, read_text, to_int

# cgroup v1 reports "no limit" as a number near 2**63, so everything from here on is unlimited.
UNLIMITED_BYTES = 1 << 60
CPU_SET_FILES = {1: ("cpuset.effective_cpus", "cpuset.cpus"), 2: ("cpuset.cpus.effective",)}
MEMORY_LIMIT_FILES = {1: ("memory.limit_in_bytes",), 2: ("memory.max", "memory.high")}


@dataclass(frozen=True)
class CpuSet:
    """The CPUs that one hierarchy lets this process use."""

    cpus: tuple[int, ...]
    file: str


@dataclass(frozen=True)
class CpuQuota:
    """CPU time allowed per period of wall time."""

    quota_us: int
    period_us: int
    file: str

    @property
    def cpus(self) -> float:
        return self.quota_us / self.period_us

    @property
    def num_whole_cpus(self) -> int:
        return max(1, self.quota_us // self.period_us)


@dataclass(frozen=True)
class MemoryLimit:
    """Memory allowed before the kernel reclaims, throttles or kills."""

    limit_bytes: int
    file: str


@dataclass(frozen=True)
class Hierarchy:
    """One cgroup hierarchy; its folders lead from this process's group up to the visible root."""

    version: int
    folders: tuple[Path, ...]


@dataclass(frozen=True)
class _Mount:
    """One mounted hierarchy; `group` is the cgroup that appears at the mount point."""

    point: Path
    group: PurePosixPath
    version: int
    controllers: frozenset[str]


def read_cpu_sets(root: Path = Path("/")) -> tuple[CpuSet, ...]:
    """Return the CPU set of each hierarchy that has one."""
    cpu_sets: list[CpuSet] = []
    for hierarchy in find_hierarchies("cpuset", root):
        # The nearest group decides: a parent's set lacks the CPUs that it gave to a partition.
        files = (folder / name for folder in hierarchy.folders for name in CPU_SET_FILES[hierarchy.version])
        cpu_lists = ((file, read_cpu_list(file)) for file in files)
        cpu_sets += [CpuSet(cpus, _format_path(file, root)) for file, cpus in cpu_lists if cpus][:1]
    return tuple(cpu_sets)


def read_cpu_quota(root: Path = Path("/")) -> CpuQuota | None:
    """Return the smallest CPU quota of this process's groups and their ancestors, or None."""
    quotas = [
        quota
        for hierarchy in find_hierarchies("cpu", root)
        for folder in hierarchy.folders
        if (quota := _read_quota(folder, hierarchy.version, root)) is not None
    ]
    return min(quotas, key=lambda quota: quota.cpus, default=None)


def read_memory_limit(root: Path = Path("/")) -> MemoryLimit | None:
    """Return the smallest memory limit of this process's groups and their ancestors, or None."""
    limits: list[MemoryLimit] = []
    for hierarchy in find_hierarchies("memory", root):
        names = MEMORY_LIMIT_FILES[hierarchy.version]
        files = [folder / name for folder in hierarchy.folders for name in names]
        limits += [MemoryLimit(size, _format_path(file, root)) for file in files if (size := read_int(file))]
        if hierarchy.version == 1:
            limits += _read_ancestor_limit(hierarchy.folders[0] / "memory.stat", root)
    finite_limits = [limit for limit in limits if 0 < limit.limit_bytes < UNLIMITED_BYTES]
    return min(finite_limits, key=lambda limit: limit.limit_bytes, default=None)


def find_hierarchies(controller: str, root: Path = Path("/")) -> Iterator[Hierarchy]:
    """Yield the mounted hierarchies that may limit this process through the controller."""
    mounts = _read_mounts(root)
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if not colon or not path.startswith("/"):
            continue
        if number == "0" and not controllers:
            matching = [mount for mount in mounts if mount.version == 2]
        elif controller in controllers.split(","):
            matching = [mount for mount in mounts if mount.version == 1 and controller in mount.controllers]
        else:
            continue
        if matching:
            yield Hierarchy(matching[0].version, _list_folders(matching, PurePosixPath(path)))


def _read_quota(folder: Path, version: int, root: Path) -> CpuQuota | None:
    if version == 2:
        file = folder / "cpu.max"
        fields = (read_text(file) or "").split()
        quota = to_int(fields[0]) if fields else None
        period = to_int(fields[1]) if len(fields) > 1 else 100_000
    else:
        file = folder / "cpu.cfs_quota_us"
        quota, period = read_int(file), read_int(folder / "cpu.cfs_period_us")
    if quota is None or period is None or quota <= 0 or period <= 0:
        return None
    return CpuQuota(quota, period, _format_path(file, root))


def _read_ancestor_limit(stat: Path, root: Path) -> list[MemoryLimit]:
    """Return the limit of v1 ancestors that a container cannot see."""
    match = re.search(r"(?m)^hierarchical_memory_limit ([0-9]+)$", read_text(stat) or "")
    return [MemoryLimit(int(match[1]), _format_path(stat, root))] if match else []


def _list_folders(mounts: list[_Mount], path: PurePosixPath) -> tuple[Path, ...]:
    """Return the folders from the process's group up to the mount point that shows it."""
    for mount in mounts:
        if path.is_relative_to(mount.group) and ".." not in path.parts:
            below = path.relative_to(mount.group)
            if (mount.point / below).is_dir():
                return tuple(mount.point / part for part in (below, *below.parents))
    # A cgroup namespace hides the path, so the root of the mount is all that can be read.
    return (mounts[0].point,)


def _read_mounts(root: Path) -> list[_Mount]:
    mounts: dict[Path, _Mount] = {}
    for line in (read_text(root / "proc/self/mountinfo") or "").splitlines():
        left, dash, right = line.partition(" - ")
        fields, source = left.split(" "), right.split(" ")
        if not dash or len(fields) < 6 or len(source) < 3 or source[0] not in ("cgroup", "cgroup2"):
            continue
        point = root / _decode_field(fields[4]).lstrip("/")
        group = PurePosixPath(_decode_field(fields[3]))
        version = 2 if source[0] == "cgroup2" else 1
        mounts[point] = _Mount(point, group, version, frozenset(source[2].split(",")))
    return list(mounts.values())


def _decode_field(field: str) -> str:
    """Return a mountinfo field with its octal escapes (`\\040`) resolved."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def _format_path(file: Path, root: Path) -> str:
    return f"/{file.relative_to(root)}"
