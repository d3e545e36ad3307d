"""The CPUs this process may use now, in the order in which teams take them.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import operator
import os
import threading
from pathlib import Path
from typing import Dict, Iterable, Iterator, List, Optional, Sequence, Tuple


def usable_cpus(num_threads: int, cgroup_root: str = "/sys/fs/cgroup") -> Tuple[int, ...]:
    """Allowed CPUs, at most `num_threads` and the cgroup's quota; one of each core before their siblings."""
    allowed = sorted(os.sched_getaffinity(0))
    quota = cpu_quota(cgroup_root)
    most = min(num_threads, len(allowed), max(1, int(quota)) if quota else len(allowed))
    return tuple(sorted(_one_per_core_first(allowed)[:most])) if most < len(allowed) else tuple(allowed)


def checked_cpus(cpus: Iterable[int]) -> Tuple[int, ...]:
    """These CPUs, if threads can be pinned to each of them; a ValueError names those that cannot be had."""
    try:
        found = tuple(dict.fromkeys(map(operator.index, cpus)))
    except TypeError:
        raise ValueError(f"cpus={cpus!r}: a list of CPU numbers is needed, such as [0, 1]") from None
    if not found:
        raise ValueError("cpus is empty: name CPUs, or leave it out for all that this process may use")
    refused: List[int] = []
    looking = threading.Thread(target=lambda: refused.extend(cpu for cpu in found if not _can_have(cpu)))
    looking.start()  # a thread of its own: this one's affinity stays
    looking.join()
    if refused:
        raise ValueError(f"cpus={list(found)}: this process cannot have {', '.join(map(str, refused))}")
    return found


def _can_have(cpu: int) -> bool:
    try:
        os.sched_setaffinity(0, (cpu,))
    except (OSError, ValueError, OverflowError):
        return False
    return True


def _one_per_core_first(cpus: Sequence[int]) -> List[int]:
    rank: Dict[Tuple[str, str], int] = {}
    ranked = []
    for cpu in cpus:
        folder = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
        try:
            core = ((folder / "physical_package_id").read_text(), (folder / "core_id").read_text())
        except OSError:
            core = ("", str(cpu))
        rank[core] = rank.get(core, -1) + 1
        ranked.append((rank[core], cpu))
    return [cpu for _, cpu in sorted(ranked)]


def cpu_quota(root: str = "/sys/fs/cgroup") -> Optional[float]:
    """The least number of CPUs that the cgroups of this process grant, None without a limit."""
    found = [limit for limit in _limits(Path(root)) if limit is not None]
    return min(found) if found else None


def _limits(root: Path) -> Iterator[Optional[float]]:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:  # version 2
            yield from (_unified_limit(folder) for folder in _upwards(root, path))
        elif "cpu" in controllers.split(","):
            yield from (_version_1_limit(folder) for folder in _upwards(root / "cpu", path))


def _upwards(root: Path, path: str) -> Iterator[Path]:
    folder = root / path.lstrip("/")
    while True:
        yield folder
        if folder == root or root not in folder.parents:
            return
        folder = folder.parent


def _unified_limit(folder: Path) -> Optional[float]:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else int(quota) / int(period)


def _version_1_limit(folder: Path) -> Optional[float]:
    try:
        quota = int((folder / "cpu.cfs_quota_us").read_text())
        period = int((folder / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
    return quota / period if quota > 0 else None
