"""Detects load from other processes on CPUs of the allocation that no rank of a run uses."""

import os
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

from corewise.shared_cores import parse_busy_ticks

TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
# More load than this, in CPUs, takes memory bandwidth and cache from the run.
MAX_BUSY_CPUS = 0.25
# The system itself may use this fraction of many idle CPUs.
MAX_BUSY_PART = 0.01


class NeighbourWatch:
    """Watches idle CPUs of the allocation during its `with` block; `disturbances` holds the result.

    CPUs outside the allocation belong to other users and are not watched.
    """

    def __init__(self, idle_cpus: Iterable[int], proc: Path = Path("/proc")) -> None:
        self._cpus, self._proc = frozenset(idle_cpus), proc
        self._began_s = self._before_s = 0.0
        self.disturbances: tuple[str, ...] = ()

    def __enter__(self) -> "NeighbourWatch":
        self._before_s, self._began_s = self._read_busy_s(), time.monotonic()
        return self

    def __exit__(
        self, category: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        busy_s, wall_s = self._read_busy_s() - self._before_s, time.monotonic() - self._began_s
        num = len(self._cpus)
        limit_s = max(max(MAX_BUSY_CPUS, MAX_BUSY_PART * num) * wall_s, 5 * TICK_S)
        if self._cpus and wall_s > 0 and busy_s > limit_s:
            self.disturbances = (
                f"other processes kept {busy_s / wall_s:.1f} of the {num} idle CPUs of the allocation busy",
            )

    def _read_busy_s(self) -> float:
        try:
            busy_ticks = parse_busy_ticks((self._proc / "stat").read_text(encoding="ascii"))
        except OSError:
            return 0.0
        return sum(ticks for cpu, ticks in busy_ticks.items() if cpu in self._cpus) * TICK_S
