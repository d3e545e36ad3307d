"""Verify that the libraries of a trial are loaded in this process.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import os
from typing import Mapping


def find_missing_libraries(env: Mapping[str, str], openmp: str, maps_path: str = "/proc/self/maps") -> list[str]:
    """Find libraries of LD_PRELOAD, and the OpenMP library, that are not mapped into the process."""
    required = [os.path.realpath(p) for p in env.get("LD_PRELOAD", "").split(":") if p]
    if openmp == "libgomp":
        # The framework may bring a copy, whose path is unknown.
        required.append("libgomp")
    if not required:
        return []
    with open(maps_path, encoding="utf-8", errors="replace") as maps:
        mapped = maps.read()
    return [path for path in required if path not in mapped]
