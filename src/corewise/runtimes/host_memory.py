"""How much of this machine's memory may still be taken.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

from pathlib import Path
from typing import Iterator, Optional

FILES = {  # of a control group: what it may hold, what it holds, and which of that can be given up
    2: ("memory.max", "memory.current", "inactive_file"),
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


def free_host_bytes(proc: str = "/proc", cgroups: str = "/sys/fs/cgroup") -> int:
    """The least of what the kernel calls available and what this process's control groups leave."""
    return max(0, min([_available_bytes(Path(proc)), *_left_by_groups(Path(proc), Path(cgroups))]))


def _available_bytes(proc: Path) -> int:
    lines = (proc / "meminfo").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))


def _left_by_groups(proc: Path, cgroups: Path) -> Iterator[int]:
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
            left = _left_by_group(each, version)
            if left is not None:
                yield left
            if each == root:
                break


def _left_by_group(folder: Path, version: int) -> Optional[int]:
    limit_name, used_name, spare_name = FILES[version]
    try:
        limit, used = (int((folder / name).read_text()) for name in (limit_name, used_name))
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no such group here, or `max`: no limit
        return None
    return limit - used + int(stat.get(spare_name, 0))
