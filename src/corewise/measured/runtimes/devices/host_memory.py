"""Read how much of this host's memory the process may take now, and how much it may ever hold.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

from pathlib import Path
from typing import Iterator

from corewise.measured.cgroups import MEMORY_LIMIT_FILES, find_hierarchies, read_memory_limit
from corewise.measured.sysfs import parse_kib, read_int, read_table, read_text, to_int

# Per cgroup version: the file with the memory in use, and the key of its reclaimable part in memory.stat.
USAGE_SOURCES = {1: ("memory.usage_in_bytes", "total_inactive_file"), 2: ("memory.current", "inactive_file")}


def read_free_host_bytes(root: Path = Path("/")) -> int:
    """Return the least of the kernel's available memory and what each control group leaves."""
    return max(0, min([_read_meminfo_bytes(root, "MemAvailable"), *_list_free_group_bytes(root)]))


def read_total_host_bytes(root: Path = Path("/")) -> int:
    """Return the least of the host's memory and the limits of this process's control groups."""
    total_bytes, limit = _read_meminfo_bytes(root, "MemTotal"), read_memory_limit(root)
    return total_bytes if limit is None else min(total_bytes, limit.limit_bytes)


def _read_meminfo_bytes(root: Path, field: str) -> int:
    num_bytes = parse_kib(read_table(root / "proc/meminfo").get(field))
    if num_bytes is None:
        raise OSError(f"{root / 'proc/meminfo'} has no {field}")
    return num_bytes


def _list_free_group_bytes(root: Path) -> Iterator[int]:
    """Yield what each limited control group leaves, counting page cache that can be reclaimed as free."""
    for hierarchy in find_hierarchies("memory", root):
        usage_file, reclaimable_key = USAGE_SOURCES[hierarchy.version]
        for folder in hierarchy.folders:
            used_bytes = read_int(folder / usage_file)
            lines = (read_text(folder / "memory.stat") or "").splitlines()
            stat = dict(line.partition(" ")[::2] for line in lines)
            for name in MEMORY_LIMIT_FILES[hierarchy.version]:
                limit_bytes = read_int(folder / name)
                if limit_bytes is not None and used_bytes is not None:
                    yield limit_bytes - used_bytes + (to_int(stat.get(reclaimable_key)) or 0)
