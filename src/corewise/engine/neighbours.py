"""Who else works on the CPUs that are ours but that no rank of a run uses."""

import os
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
MAX_BUSY_CPUS = 0.25  # more work than this beside a run takes memory bandwidth and cache from it
MAX_BUSY_PART = 0.01  # of many idle CPUs the system itself uses this much


class Neighbours:
    """Watches idle CPUs of the allocation while its `with` block runs; `told` says what was seen.

    CPUs beyond the allocation are other people's: a shared node is what it is.
    """

    def __init__(self, idle_cpus: Iterable[int], proc: Path = Path("/proc")) -> None:
        self._cpus, self._proc = frozenset(idle_cpus), proc
        self._began_s = self._before_s = 0.0
        self.told: tuple[str, ...] = ()

    def __enter__(self) -> "Neighbours":
        self._before_s, self._began_s = self._busy_s(), time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        busy_s, wall_s = self._busy_s() - self._before_s, time.monotonic() - self._began_s
        num = len(self._cpus)
        limit_s = max(max(MAX_BUSY_CPUS, MAX_BUSY_PART * num) * wall_s, 5 * TICK_S)
        if self._cpus and wall_s > 0 and busy_s > limit_s:
            self.told = (
                f"other processes kept {busy_s / wall_s:.1f} of the {num} idle CPUs of the allocation busy",
            )

    def _busy_s(self) -> float:
        ticks = 0
        try:
            lines = (self._proc / "stat").read_text(encoding="ascii").splitlines()
        except OSError:
            return 0.0
        for line in lines:
            name, *counts = line.split()
            if name.startswith("cpu") and name != "cpu" and int(name[3:]) in self._cpus:
                user, nice, system, _idle, _iowait, irq, softirq = (int(count) for count in counts[:7])
                ticks += user + nice + system + irq + softirq
        return ticks * TICK_S
