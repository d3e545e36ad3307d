"""Measure how much of the allocation's CPUs other processes use.

Our own processes do not count: this process and its descendants. A container shows only its own processes, so
the busiest ones may stay unnamed while their load is still visible in /proc/stat.
"""

import os
import re
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from corewise.shared_cores import is_busy_load, parse_busy_ticks

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# The window must be long against the tick of /proc/stat (10 ms), and short against the patience of a user.
WINDOW_S = 0.5
# A process below this load, in CPUs, is not named.
MIN_NAMED_CPUS = 0.1
MAX_NAMED = 3


@dataclass(frozen=True)
class ProcessTimes:
    """One process in /proc: its name, its parent, its CPU time in ticks, and the CPU where it ran last.

    `reaped_ticks` is the CPU time of its children that have ended.
    """

    pid: int
    name: str
    parent: int
    ticks: int
    reaped_ticks: int
    cpu: int


@dataclass(frozen=True)
class BusyProcess:
    """A process of others and the CPUs that it kept busy."""

    pid: int
    name: str
    num_cpus: float


@dataclass(frozen=True)
class ForeignLoad:
    """The load of other processes on the CPUs of the allocation, over a short window.

    Attributes:
        num_cpus: CPUs of the allocation.
        others_cpus: How many of them other processes kept busy.
        busy_shares: Busy share of each CPU, between 0 and 1, including our own processes.
        processes: The busiest processes of others that are visible, busiest first.
        waiting_share: Share of the window in which some task of the machine waited for a CPU; None if unknown.
        window_s: Length of the window.
    """

    num_cpus: int
    others_cpus: float
    busy_shares: Mapping[int, float]
    processes: tuple[BusyProcess, ...]
    waiting_share: float | None
    window_s: float

    @property
    def is_busy(self) -> bool:
        """Whether others use enough of the allocation to slow down parallel programs."""
        return is_busy_load(self.others_cpus, self.num_cpus)

    def to_json(self) -> dict[str, Any]:
        """Return the load as JSON values."""
        return {**asdict(self), "is_busy": self.is_busy}

    def describe(self) -> str:
        """Describe the load in one clause, with the busiest processes."""
        text = f"other processes keep {self.others_cpus:.1f} of {_format_cpus(self.num_cpus)} of the allocation busy"
        named = ", ".join(f"{each.name} (pid {each.pid}) {each.num_cpus:.1f}" for each in self.processes)
        return f"{text}: {named}" if named else text


@dataclass(frozen=True)
class _Snapshot:
    at_s: float
    busy_ticks: Mapping[int, int]
    processes: Mapping[int, ProcessTimes]
    waiting_us: int | None


class LoadWindow:
    """A window that opens when it is created; `measure` closes it."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._before = _take_snapshot(proc)

    def measure(self, cpus: Collection[int], window_s: float = WINDOW_S) -> ForeignLoad:
        """Return the load on these CPUs since the start, after waiting until `window_s` has passed."""
        time.sleep(max(0.0, self._before.at_s + window_s - time.monotonic()))
        return _compare(self._before, _take_snapshot(self._proc), frozenset(cpus), os.getpid())


def measure_foreign_load(cpus: Collection[int], window_s: float = WINDOW_S, proc: Path = Path("/proc")) -> ForeignLoad:
    """Measure for `window_s` seconds how much of these CPUs other processes use."""
    return LoadWindow(proc).measure(cpus, window_s)


def parse_process_stat(stat: str) -> ProcessTimes | None:
    """Return the times of one process from the text of /proc/PID/stat; None if the text is incomplete."""
    # The name is in parentheses and may contain any character, including parentheses.
    match = re.match(r"(\d+) \((.*)\) (.*)", stat, re.DOTALL)
    fields = match.group(3).split() if match else []
    if match is None or len(fields) < 37:
        return None
    user, system, reaped_user, reaped_system = (int(field) for field in fields[11:15])
    # The name is shown on terminals, so it must not hold control characters.
    name = "".join(letter if letter.isprintable() else "?" for letter in match.group(2))
    return ProcessTimes(
        int(match.group(1)), name, int(fields[1]), user + system, reaped_user + reaped_system, int(fields[36])
    )


def parse_waiting_us(pressure: str) -> int | None:
    """Return the microseconds in which some task waited, from the text of /proc/pressure/cpu; None if absent."""
    match = re.search(r"^some .*total=(\d+)", pressure, re.MULTILINE)
    return int(match.group(1)) if match else None


def find_descendants(processes: Iterable[ProcessTimes], root: int) -> set[int]:
    """Return the process numbers of the root and of all its descendants."""
    children: dict[int, list[int]] = {}
    for each in processes:
        children.setdefault(each.parent, []).append(each.pid)
    found, waiting = set[int](), [root]
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting += children.get(pid, [])
    return found


def _take_snapshot(proc: Path) -> _Snapshot:
    processes = {}
    for folder in proc.glob("[0-9]*"):
        times = parse_process_stat(_read(folder / "stat"))
        if times is not None:
            processes[times.pid] = times
    busy = parse_busy_ticks(_read(proc / "stat"))
    return _Snapshot(time.monotonic(), busy, processes, parse_waiting_us(_read(proc / "pressure" / "cpu")))


def _read(path: Path) -> str:
    """Read a file of /proc; an empty text if it is absent, or if its process has ended."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _compare(before: _Snapshot, after: _Snapshot, cpus: frozenset[int], own_pid: int) -> ForeignLoad:
    window_s = max(after.at_s - before.at_s, 1 / TICKS_PER_S)
    window_ticks = window_s * TICKS_PER_S
    busy = {
        cpu: max(0, after.busy_ticks[cpu] - before.busy_ticks[cpu])
        for cpu in sorted(cpus & after.busy_ticks.keys() & before.busy_ticks.keys())
    }
    own = find_descendants([*before.processes.values(), *after.processes.values()], own_pid)
    own_ticks = sum(_count_ticks(after.processes[pid], before, reaped=True) for pid in own & after.processes.keys())
    others_ticks = max(0, sum(busy.values()) - own_ticks)
    used = {
        each: _count_ticks(each, before) / window_ticks
        for each in after.processes.values()
        if each.pid not in own and each.cpu in cpus
    }
    busiest = sorted((each for each in used if used[each] >= MIN_NAMED_CPUS), key=lambda each: -used[each])
    waiting_share = None
    if before.waiting_us is not None and after.waiting_us is not None:
        waiting_share = round(min(1.0, (after.waiting_us - before.waiting_us) / 1e6 / window_s), 3)
    return ForeignLoad(
        num_cpus=len(cpus),
        others_cpus=round(min(float(len(busy)), others_ticks / window_ticks), 2),
        busy_shares={cpu: round(min(1.0, ticks / window_ticks), 3) for cpu, ticks in busy.items()},
        processes=tuple(BusyProcess(each.pid, each.name, round(used[each], 2)) for each in busiest[:MAX_NAMED]),
        waiting_share=waiting_share,
        window_s=round(window_s, 3),
    )


def _count_ticks(after: ProcessTimes, before: _Snapshot, *, reaped: bool = False) -> int:
    """Count the ticks of a process since the first snapshot; all of them if it started since."""
    earlier = before.processes.get(after.pid)
    ticks = after.ticks - (earlier.ticks if earlier else 0)
    if reaped:
        ticks += after.reaped_ticks - (earlier.reaped_ticks if earlier else 0)
    return max(0, ticks)


def _format_cpus(number: int) -> str:
    return f"{number} CPU" if number == 1 else f"{number} CPUs"
