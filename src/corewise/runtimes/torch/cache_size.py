"""How much the last cache before memory holds, of this process's CPU or GPU.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch

UNKNOWN_BYTES = 32 * 2**20
UNKNOWN_CORE_BYTES = 2**20
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}
CPUS = Path("/sys/devices/system/cpu")


def last_level_cache_bytes(on_gpu: bool, cpus: Path = CPUS) -> int:
    """Bytes of the outermost cache; a usual size where it is not told."""
    if on_gpu:
        told = getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "L2_cache_size", 0)
        return int(told) or UNKNOWN_BYTES
    cpu = min(os.sched_getaffinity(0))
    sizes = [_bytes(each) for each in (cpus / f"cpu{cpu}" / "cache").glob("index*/size")]
    return max(sizes, default=0) or UNKNOWN_BYTES


def core_cache_bytes(cpus: Path = CPUS) -> int:
    """Bytes of the cache that a core has to itself, code and data together."""
    caches = cpus / f"cpu{min(os.sched_getaffinity(0))}" / "cache"
    sizes = [_bytes(each / "size") for each in caches.glob("index*") if _bytes(each / "level") == 2]
    return max(sizes, default=0) or UNKNOWN_CORE_BYTES


def _bytes(path: Path) -> int:
    try:
        text = path.read_text(encoding="ascii").strip()
        return int(text[:-1]) * UNITS[text[-1]] if text[-1:] in UNITS else int(text)
    except (OSError, ValueError):
        return 0
