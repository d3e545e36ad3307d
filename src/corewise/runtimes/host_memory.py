"""How much of this machine's memory may still be taken.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

from pathlib import Path
from typing import Iterator, Optional, Tuple

FILES = {  # of a control group: what it may hold, what it holds, and which of that can be given up
    2: ("memory.max", "memory.current", "inactive_file"),
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


def free_host_bytes(proc: str = "/proc", cgroups: str = "/sys/fs/cgroup") -> int:
    """The least of what the kernel calls available and what this process's control groups leave."""
    return max(0, min([_available_bytes(Path(proc)), *_left_by_groups(Path(proc), Path(cgroups))]))


def whole_host_bytes(proc: str = "/proc", cgroups: str = "/sys/fs/cgroup") -> int:
    """The least of the machine's memory and what this process's control groups may hold at the most."""
    limits = (_group_limit(*each) for each in _groups(Path(proc), Path(cgroups)))
    return min([_meminfo_bytes(Path(proc), "MemTotal:"), *(limit for limit in limits if limit is not None)])


def _available_bytes(proc: Path) -> int:
    return _meminfo_bytes(proc, "MemAvailable:")


def _meminfo_bytes(proc: Path, field: str) -> int:
    lines = (proc / "meminfo").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(field))


def _left_by_groups(proc: Path, cgroups: Path) -> Iterator[int]:
    for folder, version in _groups(proc, cgroups):
        left = _left_by_group(folder, version)
        if left is not None:
            yield left


def _groups(proc: Path, cgroups: Path) -> Iterator[Tuple[Path, int]]:
    """This process's control groups and those above, each with its version."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        version, root = (1, cgroups / "memory") if controllers else (2, cgroups)
        folder = root / path.lstrip("/")
        for each in (folder, *folder.parents):
            yield each, version
            if each == root:
                break


def _group_limit(folder: Path, version: int) -> Optional[int]:
    try:
        return int((folder / FILES[version][0]).read_text())
    except (OSError, ValueError):
        return None


def _left_by_group(folder: Path, version: int) -> Optional[int]:
    limit_name, used_name, spare_name = FILES[version]
    try:
        limit, used = (int((folder / name).read_text()) for name in (limit_name, used_name))
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no such group here, or `max`: no limit
        return None
    return limit - used + int(stat.get(spare_name, 0))
