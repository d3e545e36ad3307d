"""Sizes of the caches that this process uses, on its CPUs or its GPU.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch

from corewise.measured.cache_sizes import CPU_FOLDER, read_caches, sum_last_level_bytes

# Usual sizes, for machines that do not report theirs.
UNKNOWN_BYTES = 32 * 2**20
UNKNOWN_CORE_BYTES = 2**20


def read_last_level_cache_bytes(on_gpu: bool, folder: Path = CPU_FOLDER) -> int:
    """Return the total size of the last-level caches of the CPUs of this process, or of its GPU."""
    if on_gpu:
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        return int(getattr(properties, "L2_cache_size", 0)) or UNKNOWN_BYTES
    return sum_last_level_bytes(read_caches(os.sched_getaffinity(0), folder)) or UNKNOWN_BYTES


def read_core_cache_bytes(folder: Path = CPU_FOLDER) -> int:
    """Return the size of the private cache of one core (level 2)."""
    caches = read_caches([min(os.sched_getaffinity(0))], folder)
    return max((cache.size_bytes for cache in caches if cache.level == 2), default=0) or UNKNOWN_CORE_BYTES
