"""Which sources of instruction counts this machine has, and why it lacks the others."""

import shutil
from dataclasses import dataclass

from corewise.measured.probes.counter_events import choose_events, read_processor
from corewise.measured.probes.counter_names import CACHEGRIND, PERF
from corewise.measured.probes.counters import can_count_kernel, explain_missing_counters

VALGRIND_HINT = "install it, for example with `apt install valgrind` or `dnf install valgrind`"


@dataclass(frozen=True)
class CounterSource:
    """A source of counts; `problem` says why it is missing, and is empty if it is there."""

    name: str
    problem: str
    detail: str = ""

    def describe(self) -> str:
        """Describe the source in one line."""
        return f"none: {self.problem}" if self.problem else self.detail


def read_counter_sources() -> tuple[CounterSource, ...]:
    """Try hardware counters, and look for valgrind."""
    problem = explain_missing_counters()
    return (
        CounterSource(PERF, problem, "" if problem else _describe_hardware()),
        CounterSource(CACHEGRIND, explain_missing_valgrind(), "valgrind; only with `counters: cachegrind`"),
    )


def explain_missing_valgrind() -> str:
    """Explain why cachegrind cannot run here; empty if it can."""
    return "" if shutil.which("valgrind") else f"valgrind is not on the PATH: {VALGRIND_HINT}"


def _describe_hardware() -> str:
    chosen = choose_events(read_processor())
    misses = f"last-level misses ({chosen.miss_event})" if chosen.miss_event else "no event for last-level misses"
    scope = "user and kernel" if can_count_kernel() else "user only, as perf_event_paranoid demands"
    return f"cycles, instructions, {misses}; {scope}"
