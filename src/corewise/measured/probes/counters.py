"""Count what the threads of a rank do while it samples: instructions, cycles, cache misses and migrations.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import TracebackType
from typing import Any, Mapping, Optional

from corewise.measured.probes.counter_events import choose_events, read_processor
from corewise.measured.probes.counter_names import NO_COUNTS, PERF
from corewise.measured.probes.perf_events import (
    CYCLES,
    HARDWARE,
    INSTRUCTIONS,
    MIGRATIONS,
    SOFTWARE,
    Event,
    EventSet,
    EventsUnavailable,
    list_tids,
    open_event,
)

_USER, _ALL = "user", "user and kernel"


class CounterProbe:
    """Opens counters for every thread of the process; they count between `start` and `stop`.

    Threads that start later are counted too, processes that exist already (loader workers) are not. Without
    hardware counters the facts hold the reason. Migrations are counted in any case.

    Attributes:
        metrics: the counts after `stop`: `perf_instructions`, `perf_cycles`, `perf_llc_misses`, `cpu_migrations`.
        facts: the source of the counts, or the reason why there are none.
        note: the reason, if the study asked for hardware counters and there are none.

    Example:
        >>> with CounterProbe("auto") as counters:
        ...     counters.start()
        ...     counters.stop()
        >>> counters.facts["counters"] in ("perf", "none")
        True
    """

    def __init__(self, choice: str, proc: str = "/proc") -> None:
        self._choice, self._proc = choice, proc
        self._sets: dict[str, EventSet] = {}
        self._migrations: Optional[EventSet] = None
        self._migrations_before = 0.0
        self.metrics: dict[str, float] = {}
        self.facts: dict[str, Any] = {"counters": "none"}
        self.note = ""

    def __enter__(self) -> CounterProbe:
        tids = list_tids(self._proc)
        try:
            self._migrations = EventSet([Event(SOFTWARE, MIGRATIONS)], tids, user_only=False)
        except EventsUnavailable:
            self._migrations_before = read_migrations(self._proc)
        if self._choice in ("auto", PERF):
            try:
                self._open_hardware(tids)
            except EventsUnavailable as problem:
                self._close_hardware()
                self.facts["counters_reason"] = str(problem)
                if self._choice == PERF:
                    self.note = f"{NO_COUNTS}{PERF}: {problem}"
        return self

    def __exit__(
        self, category: Optional[type[BaseException]], problem: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self._close_hardware()
        if self._migrations is not None:
            self._migrations.close()

    def start(self) -> None:
        """Start counting, directly before the first step."""
        for each in self._list_sets():
            each.enable()

    def stop(self) -> None:
        """Stop counting, and store the counts in `metrics`."""
        for each in self._list_sets():
            each.disable()
        if self._migrations is not None:
            self.metrics["cpu_migrations"] = self._migrations.read() or 0.0
        else:
            self.metrics["cpu_migrations"] = max(0.0, read_migrations(self._proc) - self._migrations_before)
        counts = {name: each.read() for name, each in self._sets.items()}
        self.metrics.update({f"{PERF}_{name}": count for name, count in counts.items() if count is not None})
        if self._sets:
            # The share of the time in which the PMU counted; below 1, counts are extrapolated.
            self.facts["perf_running_share"] = min(each.read_running_share() for each in self._sets.values())
        if counts.get("instructions", 0.0) is None:
            self.facts["counters_reason"] = "the PMU never counted instructions: other programs use all its counters"

    def _open_hardware(self, tids: list[int]) -> None:
        chosen = choose_events(read_processor())
        user_only = not can_count_kernel(self._proc)
        for name, events in chosen.events.items():
            try:
                self._sets[name] = EventSet(events, tids, user_only=user_only)
            except EventsUnavailable:
                # Instructions per cycle are worth having without misses.
                if name != "llc_misses":
                    raise
        self.facts.update(counters=PERF, counters_scope=_USER if user_only else _ALL)
        if "llc_misses" in self._sets:
            self.facts["perf_miss_event"] = chosen.miss_event

    def _close_hardware(self) -> None:
        for each in self._sets.values():
            each.close()
        self._sets = {}

    def _list_sets(self) -> list[EventSet]:
        return [*self._sets.values(), *([self._migrations] if self._migrations is not None else [])]


def can_count_kernel(proc: str = "/proc") -> bool:
    """Return whether this user may count what the kernel does, too; perf_event_paranoid decides."""
    try:
        fd = open_event(Event(HARDWARE, INSTRUCTIONS), list_tids(proc)[0], user_only=False)
    except EventsUnavailable as problem:
        return problem.code not in (errno.EACCES, errno.EPERM)
    if fd is not None:
        os.close(fd)
    return True


def explain_missing_counters(proc: str = "/proc") -> str:
    """Explain why this machine has no hardware counters for us; empty if it has them."""
    try:
        for config in (CYCLES, INSTRUCTIONS):
            user_only = not can_count_kernel(proc)
            EventSet([Event(HARDWARE, config)], list_tids(proc)[:1], user_only=user_only).close()
    except EventsUnavailable as problem:
        return str(problem)
    return ""


def read_migrations(proc: str = "/proc") -> float:
    """Sum the migrations of this process's threads so far; 0 if the kernel does not report them."""
    total = 0.0
    for file in Path(proc, "self", "task").glob("*/sched"):
        try:
            fields: Mapping[str, str] = dict(_split_field(line) for line in file.read_text().splitlines())
        except OSError:
            continue
        total += float(fields.get("se.nr_migrations") or 0)
    return total


def _split_field(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name.strip(), value.strip()
