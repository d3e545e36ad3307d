"""What disturbed this process on its CPUs for a while: others' work, steal, throttling, switches, faults.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path
from types import TracebackType
from typing import Iterable, Mapping, Optional

TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")  # the grain of /proc/stat, 10 ms

MAX_OTHER_OF_WALL = 0.05  # a co-runner on one core takes half of it, however many cores the rank has
MAX_OTHER_OF_CPUS = 0.01  # kernel threads, interrupts and the error of the counters take up to this much
LEAST_CO_RUNNER = (
    0.4  # of the wall time: what a co-runner takes of one core, so never let more than this pass
)
MIN_TICKS = 3.0  # fewer are within the grain of /proc/stat
MIN_TICKS_PER_ROOT_CPU = (
    2.0  # each CPU's count is off by up to a tick; these errors add up like a random walk
)
MAX_STEAL_OF_CPUS = 0.02  # below it, the neighbours of a virtual machine are not felt

_Counts = Mapping[str, float]


class Disturbance:
    """Watches the given CPUs while its `with` block runs; afterwards `metrics` says what happened.

    Other ranks of the trial are not counted, since they have CPUs of their own.
    """

    def __init__(self, cpus: Iterable[int], proc: str = "/proc", cgroup_root: str = "/sys/fs/cgroup") -> None:
        self._cpus = frozenset(cpus)
        self._proc, self._cgroup_root = proc, cgroup_root
        self._before: _Counts = {}
        self.metrics: dict[str, float] = {}

    def __enter__(self) -> Disturbance:
        self._before = self._read()
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        problem: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        after = self._read()
        metrics = {name: max(0.0, after[name] - self._before[name]) for name in after}
        metrics["other_cpu_s"] = max(0.0, metrics["busy_cpu_s"] - metrics["own_cpu_s"])
        self.metrics = metrics

    def _read(self) -> _Counts:
        mine = resource.getrusage(resource.RUSAGE_SELF)
        reaped = resource.getrusage(resource.RUSAGE_CHILDREN)
        own_s = mine.ru_utime + mine.ru_stime + reaped.ru_utime + reaped.ru_stime
        return {
            "wall_s": time.perf_counter(),
            "own_cpu_s": own_s + _living_descendants_cpu_s(os.getpid(), self._proc),
            "involuntary_switches": float(mine.ru_nivcsw),
            "voluntary_switches": float(mine.ru_nvcsw),
            "minor_faults": float(mine.ru_minflt),
            "major_faults": float(mine.ru_majflt),
            **_read_cpu_use(self._cpus, self._proc),
            **_read_throttling(self._proc, self._cgroup_root),
        }


def disturbances(metrics: Mapping[str, float], num_cpus: int) -> list[str]:
    """Sentences saying what disturbed the interval; empty when nothing did."""
    wall_s, found = metrics["wall_s"], []
    grain_s = TICK_S * max(MIN_TICKS, MIN_TICKS_PER_ROOT_CPU * num_cpus**0.5)
    other_s, steal_s = metrics["other_cpu_s"], metrics["steal_s"]
    usual_s = min(MAX_OTHER_OF_CPUS * num_cpus, LEAST_CO_RUNNER) * wall_s
    if other_s > max(MAX_OTHER_OF_WALL * wall_s, usual_s, grain_s):
        found.append(f"other processes used {other_s:.2f} s of CPU on the rank's CPUs in {wall_s:.2f} s")
    if steal_s > max(MAX_STEAL_OF_CPUS * wall_s * num_cpus, grain_s):
        found.append(f"the hypervisor took {steal_s:.2f} s of CPU from the rank's CPUs in {wall_s:.2f} s")
    if metrics["throttled_periods"] > 0 or metrics["throttled_s"] > 0:
        periods = f"{metrics['throttled_periods']:.0f} periods, {metrics['throttled_s']:.2f} s"
        found.append(f"the CPU quota of the cgroup throttled the process ({periods})")
    return found


def _read_cpu_use(cpus: frozenset[int], proc: str) -> dict[str, float]:
    """Seconds the given CPUs were busy, and stolen from them, since the machine started."""
    busy_ticks = steal_ticks = 0
    with open(Path(proc, "stat"), encoding="ascii") as file:
        for line in file:
            if not line.startswith("cpu"):
                break
            name, *ticks = line.split()
            if name != "cpu" and int(name[3:]) in cpus:
                user, nice, system, _idle, _iowait, irq, softirq, steal = (int(t) for t in ticks[:8])
                busy_ticks += user + nice + system + irq + softirq
                steal_ticks += steal
    return {"busy_cpu_s": busy_ticks * TICK_S, "steal_s": steal_ticks * TICK_S}


def _living_descendants_cpu_s(pid: int, proc: str) -> float:
    """CPU seconds of the process's living children (loader workers), theirs, and those they have reaped."""
    total_s = 0.0
    for child in _children(pid, proc):
        try:
            after_name = Path(proc, str(child), "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        total_s += sum(int(ticks) for ticks in after_name[11:15]) * TICK_S
        total_s += _living_descendants_cpu_s(child, proc)
    return total_s


def _children(pid: int, proc: str) -> list[int]:
    found: list[int] = []
    for task in Path(proc, str(pid), "task").glob(
        "*/children"
    ):  # absent from some kernels: then none are counted
        try:
            found += (int(word) for word in task.read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def _read_throttling(proc: str, cgroup_root: str) -> dict[str, float]:
    """Periods and seconds the own cgroup, or one above it, was throttled; 0 where that cannot be read."""
    periods = seconds = 0.0
    for folder in _cpu_cgroups(proc, cgroup_root):
        try:
            lines = (folder / "cpu.stat").read_text().splitlines()
        except OSError:
            continue
        counts = {words[0]: int(words[1]) for words in map(str.split, lines) if len(words) == 2}
        periods += counts.get("nr_throttled", 0)
        seconds += counts.get("throttled_usec", 0) / 1e6 + counts.get("throttled_time", 0) / 1e9  # v2, v1
    return {"throttled_periods": periods, "throttled_s": seconds}


def _cpu_cgroups(proc: str, cgroup_root: str) -> list[Path]:
    """The folders of the own cgroup and of those above it, in version 1 or 2 of the hierarchy."""
    try:
        lines = Path(proc, "self", "cgroup").read_text().splitlines()
    except OSError:
        return []
    folders = []
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number != "0" and "cpu" not in controllers.split(","):
            continue
        mounts = ("", "unified") if number == "0" else (controllers, "cpu")
        mount = next((m for m in (Path(cgroup_root, name) for name in mounts) if m.is_dir()), None)
        if mount is not None:
            inner = Path(path.lstrip("/"))
            folders += [mount / part for part in (inner, *inner.parents)]
    return folders
