"""Find the CPUs that this process may use now.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import operator
import os
import threading
from pathlib import Path
from typing import Dict, Iterable, Iterator, List, Optional, Sequence, Tuple


def list_usable_cpus(num_threads: int, cgroup_root: str = "/sys/fs/cgroup") -> Tuple[int, ...]:
    """List the allowed CPUs, at most `num_threads` and the cgroup quota; one per core before siblings."""
    allowed = sorted(os.sched_getaffinity(0))
    quota = read_cpu_quota(cgroup_root)
    num_cpus = min(num_threads, len(allowed), max(1, int(quota)) if quota else len(allowed))
    return tuple(sorted(_order_by_core(allowed)[:num_cpus])) if num_cpus < len(allowed) else tuple(allowed)


def validate_cpus(cpus: Iterable[int]) -> Tuple[int, ...]:
    """Return these CPUs; raise ValueError with those that threads cannot be pinned to."""
    try:
        requested = tuple(dict.fromkeys(map(operator.index, cpus)))
    except TypeError:
        raise ValueError(f"cpus={cpus!r}: expected a list of CPU numbers, for example [0, 1]") from None
    if not requested:
        raise ValueError("cpus is empty: name at least one CPU, or omit it to use all allowed CPUs")
    refused: List[int] = []
    prober = threading.Thread(target=lambda: refused.extend(cpu for cpu in requested if not _can_pin_to(cpu)))
    # A separate thread tries them, so that the affinity of this one does not change.
    prober.start()
    prober.join()
    if refused:
        raise ValueError(f"cpus={list(requested)}: this process cannot run on {', '.join(map(str, refused))}")
    return requested


def _can_pin_to(cpu: int) -> bool:
    try:
        os.sched_setaffinity(0, (cpu,))
    except (OSError, ValueError, OverflowError):
        return False
    return True


def _order_by_core(cpus: Sequence[int]) -> List[int]:
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


def read_cpu_quota(root: str = "/sys/fs/cgroup") -> Optional[float]:
    """Return the smallest CPU quota of this process's cgroups, or None without a limit."""
    limits = [limit for limit in _read_limits(Path(root)) if limit is not None]
    return min(limits) if limits else None


def _read_limits(root: Path) -> Iterator[Optional[float]]:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        # An empty list of controllers means cgroup version 2.
        if not controllers:
            yield from (_read_cgroup2_limit(folder) for folder in _walk_upwards(root, path))
        elif "cpu" in controllers.split(","):
            yield from (_read_cgroup1_limit(folder) for folder in _walk_upwards(root / "cpu", path))


def _walk_upwards(root: Path, path: str) -> Iterator[Path]:
    folder = root / path.lstrip("/")
    while True:
        yield folder
        if folder == root or root not in folder.parents:
            return
        folder = folder.parent


def _read_cgroup2_limit(folder: Path) -> Optional[float]:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else int(quota) / int(period)


def _read_cgroup1_limit(folder: Path) -> Optional[float]:
    try:
        quota = int((folder / "cpu.cfs_quota_us").read_text())
        period = int((folder / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
    return quota / period if quota > 0 else None
