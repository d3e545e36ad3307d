"""Proof that the libraries a trial asks for really are in the process.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import os
from typing import Mapping


def missing_libraries(env: Mapping[str, str], openmp: str, maps_path: str = "/proc/self/maps") -> list[str]:
    """The libraries of the trial's LD_PRELOAD, and its OpenMP library, that are not mapped."""
    wanted = [os.path.realpath(p) for p in env.get("LD_PRELOAD", "").split(":") if p]
    if openmp == "libgomp":
        wanted.append("libgomp")  # the framework's own copy, wherever it lies
    if not wanted:
        return []
    with open(maps_path, encoding="utf-8", errors="replace") as maps:
        mapped = maps.read()
    return [path for path in wanted if path not in mapped]
