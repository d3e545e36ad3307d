"""How much the last cache before memory holds, of this process's CPU or GPU.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Dict, Tuple

import torch

UNKNOWN_BYTES = 32 * 2**20
UNKNOWN_CORE_BYTES = 2**20
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}
CPUS = Path("/sys/devices/system/cpu")


def last_level_cache_bytes(on_gpu: bool, cpus: Path = CPUS) -> int:
    """Bytes of the outermost caches that this process's CPUs use, together; a usual size where not told."""
    if on_gpu:
        told = getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "L2_cache_size", 0)
        return int(told) or UNKNOWN_BYTES
    found: Dict[Tuple[int, str], int] = {}  # by level and by the CPUs that share it
    for cpu in os.sched_getaffinity(0):
        for index in (cpus / f"cpu{cpu}" / "cache").glob("index*"):
            found[_bytes(index / "level"), _shared_by(index, cpu)] = _bytes(index / "size")
    last = max((level for level, _ in found), default=0)
    return sum(size for (level, _), size in found.items() if level == last) or UNKNOWN_BYTES


def core_cache_bytes(cpus: Path = CPUS) -> int:
    """Bytes of the cache that a core has to itself, code and data together."""
    caches = cpus / f"cpu{min(os.sched_getaffinity(0))}" / "cache"
    sizes = [_bytes(each / "size") for each in caches.glob("index*") if _bytes(each / "level") == 2]
    return max(sizes, default=0) or UNKNOWN_CORE_BYTES


def _shared_by(index: Path, cpu: int) -> str:
    try:
        return (index / "shared_cpu_list").read_text(encoding="ascii").strip()
    except OSError:
        return str(cpu)


def _bytes(path: Path) -> int:
    try:
        text = path.read_text(encoding="ascii").strip()
        return int(text[:-1]) * UNITS[text[-1]] if text[-1:] in UNITS else int(text)
    except (OSError, ValueError):
        return 0
