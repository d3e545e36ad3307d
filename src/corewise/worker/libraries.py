"""Proof that a preloaded library really is in the process.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import os
from typing import Mapping


def missing_libraries(env: Mapping[str, str], maps_path: str = "/proc/self/maps") -> list[str]:
    """The libraries named in the trial's LD_PRELOAD that are not mapped."""
    wanted = [os.path.realpath(p) for p in env.get("LD_PRELOAD", "").split(":") if p]
    if not wanted:
        return []
    with open(maps_path, encoding="utf-8", errors="replace") as maps:
        mapped = maps.read()
    return [path for path in wanted if path not in mapped]
