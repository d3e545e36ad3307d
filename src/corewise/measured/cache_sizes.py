"""Read the sizes of CPU caches from /sys/devices/system/cpu.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from corewise.measured.sysfs import read_cpu_list, read_int, read_text

CPU_FOLDER = Path("/sys/devices/system/cpu")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True)
class Cache:
    """One cache and the CPUs that share it. Its type is Data, Instruction or Unified."""

    level: int
    type: str
    size_bytes: int
    shared_cpus: tuple[int, ...]


def read_caches(cpus: Iterable[int], folder: Path = CPU_FOLDER) -> tuple[Cache, ...]:
    """Return every cache of these CPUs once, ordered by level, type and first CPU."""
    caches_by_place: dict[tuple[str, str], Cache | None] = {}
    for cpu in cpus:
        # Strings are faster than Path objects, and a large machine has thousands of these files.
        place = f"{folder}/cpu{cpu}/cache"
        for index in sorted(os.listdir(place)) if os.path.isdir(place) else ():
            shared = read_text(Path(f"{place}/{index}/shared_cpu_list")) or str(cpu)
            if (index, shared) not in caches_by_place:
                caches_by_place[index, shared] = _read_cache(Path(place, index), cpu)
    caches = [cache for cache in caches_by_place.values() if cache is not None]
    return tuple(sorted(caches, key=lambda c: (c.level, c.type, c.shared_cpus)))


def sum_last_level_bytes(caches: Iterable[Cache]) -> int:
    """Return the total size of the data caches of the highest level; 0 if none is known."""
    sizes: dict[int, int] = {}
    for cache in caches:
        if cache.type != "Instruction":
            sizes[cache.level] = sizes.get(cache.level, 0) + cache.size_bytes
    return sizes[max(sizes)] if sizes else 0


def _read_cache(index: Path, cpu: int) -> Cache | None:
    level = read_int(index / "level")
    size = re.fullmatch(r"([0-9]+)([KMG]?)", read_text(index / "size") or "")
    if level is None or size is None:
        return None
    shared = read_cpu_list(index / "shared_cpu_list") or (cpu,)
    return Cache(level, read_text(index / "type") or "Unified", int(size[1]) * _UNITS[size[2]], shared)
