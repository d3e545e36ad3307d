"""Measure what disturbs a process on its CPUs: other processes, steal, throttling, switches, faults.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path
from types import TracebackType
from typing import Iterable, Mapping, Optional

# The resolution of /proc/stat, usually 10 ms.
TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")

# Allowed CPU time of other processes over wall time. A co-runner takes half a core, whatever the rank has.
MAX_OTHER_WALL_FRACTION = 0.05
# Kernel threads, interrupts and counter errors take up to this share of all CPUs.
MAX_OTHER_CPU_FRACTION = 0.01
# A co-runner takes at least this share of one core, so the limit never exceeds it.
CO_RUNNER_FRACTION = 0.4
# Fewer ticks are below the resolution of /proc/stat.
MIN_TICKS = 3.0
# The count of each CPU is off by up to one tick, and these errors add up like a random walk.
MIN_TICKS_PER_SQRT_CPU = 2.0
# Below this share, other virtual machines on the host have no visible effect.
MAX_STEAL_FRACTION = 0.02

_Counts = Mapping[str, float]


class DisturbanceProbe:
    """Watches the given CPUs while its `with` block runs; `metrics` holds the result.

    Other ranks of the trial are not counted, because they use different CPUs.
    """

    def __init__(self, cpus: Iterable[int], proc: str = "/proc", cgroup_root: str = "/sys/fs/cgroup") -> None:
        self._cpus = frozenset(cpus)
        self._proc, self._cgroup_root = proc, cgroup_root
        self._before: _Counts = {}
        self.metrics: dict[str, float] = {}

    def __enter__(self) -> DisturbanceProbe:
        self._before = self._read()
        return self

    def __exit__(
        self, category: Optional[type[BaseException]], problem: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        after = self._read()
        metrics = {name: max(0.0, after[name] - self._before[name]) for name in after}
        metrics["other_cpu_s"] = max(0.0, metrics["busy_cpu_s"] - metrics["own_cpu_s"])
        self.metrics = metrics

    def _read(self) -> _Counts:
        own = resource.getrusage(resource.RUSAGE_SELF)
        reaped = resource.getrusage(resource.RUSAGE_CHILDREN)
        own_s = own.ru_utime + own.ru_stime + reaped.ru_utime + reaped.ru_stime
        return {
            "wall_s": time.perf_counter(),
            "own_cpu_s": own_s + _sum_descendants_cpu_s(os.getpid(), self._proc),
            "involuntary_switches": float(own.ru_nivcsw),
            "voluntary_switches": float(own.ru_nvcsw),
            "minor_faults": float(own.ru_minflt),
            "major_faults": float(own.ru_majflt),
            **_read_cpu_use(self._cpus, self._proc),
            **_read_throttling(self._proc, self._cgroup_root),
        }


def describe_disturbances(metrics: Mapping[str, float], num_cpus: int) -> list[str]:
    """Describe each disturbance of the interval in one sentence; empty if there was none."""
    wall_s, sentences = metrics["wall_s"], []
    grain_s = TICK_S * max(MIN_TICKS, MIN_TICKS_PER_SQRT_CPU * num_cpus**0.5)
    other_s, steal_s = metrics["other_cpu_s"], metrics["steal_s"]
    allowed_s = min(MAX_OTHER_CPU_FRACTION * num_cpus, CO_RUNNER_FRACTION) * wall_s
    if other_s > max(MAX_OTHER_WALL_FRACTION * wall_s, allowed_s, grain_s):
        sentences.append(f"other processes used {other_s:.2f} s of CPU on the rank's CPUs in {wall_s:.2f} s")
    if steal_s > max(MAX_STEAL_FRACTION * wall_s * num_cpus, grain_s):
        sentences.append(f"the hypervisor took {steal_s:.2f} s of CPU from the rank's CPUs in {wall_s:.2f} s")
    if metrics["throttled_periods"] > 0 or metrics["throttled_s"] > 0:
        periods = f"{metrics['throttled_periods']:.0f} periods, {metrics['throttled_s']:.2f} s"
        sentences.append(f"the CPU quota of the cgroup throttled the process ({periods})")
    return sentences


def _read_cpu_use(cpus: frozenset[int], proc: str) -> dict[str, float]:
    """Read the seconds since boot in which the given CPUs were busy, or taken by the hypervisor."""
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


def _sum_descendants_cpu_s(pid: int, proc: str) -> float:
    """Sum the CPU seconds of living descendants (loader workers) and of those that they have reaped."""
    total_s = 0.0
    for child in _list_children(pid, proc):
        try:
            after_name = Path(proc, str(child), "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        total_s += sum(int(ticks) for ticks in after_name[11:15]) * TICK_S
        total_s += _sum_descendants_cpu_s(child, proc)
    return total_s


def _list_children(pid: int, proc: str) -> list[int]:
    children: list[int] = []
    # Some kernels lack these files, and then no children are counted.
    for file in Path(proc, str(pid), "task").glob("*/children"):
        try:
            children += (int(child) for child in file.read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            continue
    return children


def _read_throttling(proc: str, cgroup_root: str) -> dict[str, float]:
    """Read the periods and seconds in which the cgroup or a parent was throttled; 0 if unreadable."""
    periods = seconds = 0.0
    for folder in _list_cpu_cgroups(proc, cgroup_root):
        try:
            lines = (folder / "cpu.stat").read_text().splitlines()
        except OSError:
            continue
        counts = {parts[0]: int(parts[1]) for parts in map(str.split, lines) if len(parts) == 2}
        periods += counts.get("nr_throttled", 0)
        # Version 2 of cgroups counts microseconds, version 1 nanoseconds.
        seconds += counts.get("throttled_usec", 0) / 1e6 + counts.get("throttled_time", 0) / 1e9
    return {"throttled_periods": periods, "throttled_s": seconds}


def _list_cpu_cgroups(proc: str, cgroup_root: str) -> list[Path]:
    """List the folders of the cgroup of this process and its parents, in version 1 or 2."""
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
