"""Measure whether other processes use the same CPUs as this one.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import os
import re
import resource
import time
from typing import Collection, Dict, Optional, Tuple

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# A shorter window is too close to the tick of /proc/stat, which is 10 ms.
MIN_WINDOW_S = 0.2
# Less load than this, in CPUs, may come from the kernel or from the resolution of the counters.
BUSY_CPUS = 0.5
# The system itself may use this fraction of many CPUs.
BUSY_FRACTION = 0.02


def parse_busy_ticks(stat: str) -> Dict[int, int]:
    """Return the ticks since boot in which each CPU was busy, from the text of /proc/stat."""
    busy = {}
    for line in stat.splitlines():
        name, *counts = line.split() or [""]
        if re.fullmatch(r"cpu\d+", name) and len(counts) >= 4 and all(count.isdigit() for count in counts):
            user, nice, system, _idle, _iowait, irq, softirq = [*map(int, counts), 0, 0, 0][:7]
            busy[int(name[3:])] = user + nice + system + irq + softirq
    return busy


def is_busy_load(others_cpus: float, num_cpus: int) -> bool:
    """Return whether others use enough of these CPUs to slow down parallel programs."""
    return others_cpus >= max(BUSY_CPUS, BUSY_FRACTION * num_cpus)


class SharedCoresWindow:
    """A window that opens when it is created. Processes that this one started count as others."""

    def __init__(self, cpus: Collection[int], proc: str = "/proc") -> None:
        self._cpus, self._proc = frozenset(cpus), proc
        self._began = self._read()

    def measure_others_cpus(self) -> Optional[float]:
        """Return how many of the CPUs others have kept busy since the start; None if unknown or too early."""
        wall_s, busy_s, own_s = (after - before for before, after in zip(self._began, self._read()))
        if wall_s < MIN_WINDOW_S:
            return None
        return min(float(len(self._cpus)), max(0.0, busy_s - own_s) / wall_s)

    def is_busy(self) -> Optional[bool]:
        """Return whether others slow this process down; None if that is unknown."""
        others_cpus = self.measure_others_cpus()
        return None if others_cpus is None else is_busy_load(others_cpus, len(self._cpus))

    def _read(self) -> Tuple[float, float, float]:
        try:
            with open(os.path.join(self._proc, "stat"), encoding="ascii") as file:
                ticks = parse_busy_ticks(file.read())
        except OSError:
            ticks = {}
        own = resource.getrusage(resource.RUSAGE_SELF)
        busy = sum(count for cpu, count in ticks.items() if cpu in self._cpus)
        return time.monotonic(), busy / _TICKS_PER_S, own.ru_utime + own.ru_stime


def are_cores_busy(cpus: Collection[int], window_s: float = MIN_WINDOW_S) -> bool:
    """Measure for `window_s` seconds whether others use these CPUs."""
    window = SharedCoresWindow(cpus)
    time.sleep(max(window_s, MIN_WINDOW_S))
    return bool(window.is_busy())
