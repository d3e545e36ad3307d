"""What the control groups of this process allow: CPU sets, CPU quota, memory; v1, v2 and both at once."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from corewise.machine.sysfs import read_cpu_list, read_int, read_text, to_int

UNLIMITED_BYTES = 1 << 60  # v1 says "no limit" with a number near 2**63


@dataclass(frozen=True)
class CpuSet:
    """The CPUs one hierarchy lets this process use."""

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
class _Mount:
    point: Path
    shows: PurePosixPath  # which cgroup appears at the mount point
    version: int
    controllers: frozenset[str]


@dataclass(frozen=True)
class _Hierarchy:
    version: int
    levels: tuple[Path, ...]  # this process's group first, the root of the hierarchy last


def read_cpu_sets(root: Path = Path("/")) -> tuple[CpuSet, ...]:
    """The CPU set of each hierarchy that has one."""
    names = {1: ("cpuset.effective_cpus", "cpuset.cpus"), 2: ("cpuset.cpus.effective",)}
    found = []
    for hierarchy in _hierarchies(root, "cpuset"):
        # The nearest level that says: a parent's set leaves out CPUs it gave away to a partition.
        files = (level / name for level in hierarchy.levels for name in names[hierarchy.version])
        sets = ((file, read_cpu_list(file)) for file in files)
        found += [CpuSet(cpus, _shown(file, root)) for file, cpus in sets if cpus][:1]
    return tuple(found)


def read_cpu_quota(root: Path = Path("/")) -> CpuQuota | None:
    """The least CPU quota over this process's groups and all their ancestors, or None."""
    quotas = [
        quota
        for hierarchy in _hierarchies(root, "cpu")
        for level in hierarchy.levels
        if (quota := _quota(level, hierarchy.version, root)) is not None
    ]
    return min(quotas, key=lambda q: q.cpus, default=None)


def read_memory_limit(root: Path = Path("/")) -> MemoryLimit | None:
    """The least memory limit over this process's groups and all their ancestors, or None."""
    names = {1: ("memory.limit_in_bytes",), 2: ("memory.max", "memory.high")}
    limits = []
    for hierarchy in _hierarchies(root, "memory"):
        files = [level / name for level in hierarchy.levels for name in names[hierarchy.version]]
        limits += [MemoryLimit(size, _shown(file, root)) for file in files if (size := read_int(file))]
        if hierarchy.version == 1:
            limits += _ancestors_limit(hierarchy.levels[0] / "memory.stat", root)
    real = [limit for limit in limits if 0 < limit.limit_bytes < UNLIMITED_BYTES]
    return min(real, key=lambda limit: limit.limit_bytes, default=None)


def _quota(level: Path, version: int, root: Path) -> CpuQuota | None:
    if version == 2:
        file = level / "cpu.max"
        words = (read_text(file) or "").split()
        quota = to_int(words[0]) if words else None
        period = to_int(words[1]) if len(words) > 1 else 100_000
    else:
        file = level / "cpu.cfs_quota_us"
        quota, period = read_int(file), read_int(level / "cpu.cfs_period_us")
    if quota is None or period is None or quota <= 0 or period <= 0:
        return None
    return CpuQuota(quota, period, _shown(file, root))


def _ancestors_limit(stat: Path, root: Path) -> list[MemoryLimit]:
    """The limit of v1 ancestors that lie outside a container's view."""
    match = re.search(r"(?m)^hierarchical_memory_limit ([0-9]+)$", read_text(stat) or "")
    return [MemoryLimit(int(match[1]), _shown(stat, root))] if match else []


def _hierarchies(root: Path, controller: str) -> Iterator[_Hierarchy]:
    mounts = _mounts(root)
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if not colon or not path.startswith("/"):
            continue
        if number == "0" and not controllers:
            fitting = [m for m in mounts if m.version == 2]
        elif controller in controllers.split(","):
            fitting = [m for m in mounts if m.version == 1 and controller in m.controllers]
        else:
            continue
        if fitting:
            yield _Hierarchy(fitting[0].version, _levels(fitting, PurePosixPath(path)))


def _levels(mounts: list[_Mount], path: PurePosixPath) -> tuple[Path, ...]:
    """The folders from the process's group up to the mount point that shows it."""
    for mount in mounts:
        if path.is_relative_to(mount.shows) and ".." not in path.parts:
            below = path.relative_to(mount.shows)
            if (mount.point / below).is_dir():
                return tuple(mount.point / part for part in (below, *below.parents))
    return (mounts[0].point,)  # a cgroup namespace hides the way: its root is all that can be seen


def _mounts(root: Path) -> list[_Mount]:
    mounts: dict[Path, _Mount] = {}
    for line in (read_text(root / "proc/self/mountinfo") or "").splitlines():
        left, dash, right = line.partition(" - ")
        fields, kind = left.split(" "), right.split(" ")
        if not dash or len(fields) < 6 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        point = root / _unescaped(fields[4]).lstrip("/")
        shows = PurePosixPath(_unescaped(fields[3]))
        version = 2 if kind[0] == "cgroup2" else 1
        mounts[point] = _Mount(point, shows, version, frozenset(kind[2].split(",")))
    return list(mounts.values())


def _unescaped(field: str) -> str:
    """A mountinfo field with its octal escapes (`\\040`) resolved."""
    return re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), field)


def _shown(file: Path, root: Path) -> str:
    return f"/{file.relative_to(root)}"
