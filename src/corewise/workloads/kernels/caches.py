"""The size of this machine's last-level caches, so that arrays can be made larger.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Dict, Optional, Tuple

UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


@lru_cache(maxsize=8)
def last_level_cache_bytes(cpus: str = "/sys/devices/system/cpu") -> Optional[int]:
    """All caches of the highest level together, each counted once; None where the kernel does not tell."""
    found: Dict[Tuple[int, str], int] = {}
    for index in Path(cpus).glob("cpu[0-9]*/cache/index[0-9]*"):
        try:
            kind = (index / "type").read_text().strip()
            level = int((index / "level").read_text())
            size = (index / "size").read_text().strip()
            shared = (index / "shared_cpu_list").read_text().strip()
            if kind != "Instruction":
                found[level, shared] = int(size[:-1]) * UNITS[size[-1]]
        except (OSError, ValueError, KeyError, IndexError):
            continue
    if not found:
        return None
    highest = max(level for level, _ in found)
    return sum(size for (level, _), size in found.items() if level == highest) or None
