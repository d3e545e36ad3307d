"""Count how many calls used a plan, and why the others did not.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import Counter as CounterType

PLAIN_IS_BEST = "plain execution was fastest for these inputs"
TIMED_PLAINLY = "plain execution was compared with the plan, or inputs share memory"
SEEN_RARELY = "inputs of this size were too rare for a plan; prepare() makes one"
NO_CORES = "this process may use only one core"
# Calls whose reasons are shown; the others are added up.
_MAX_REASONS = 4


class CallCounts:
    """Counts calls by the reason for plain execution; an empty reason stands for a plan."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: CounterType[str] = Counter()

    def add(self, reason: str = "") -> None:
        """Count one call."""
        with self._lock:
            self._counts[reason] += 1

    def describe(self) -> str:
        """Describe the counts in one sentence; empty without calls."""
        with self._lock:
            counts = Counter(self._counts)
        if not counts:
            return ""
        num_planned = counts.pop("", 0)
        num_plain = sum(counts.values())
        text = f"Calls so far: {num_planned} used a plan, {num_plain} ran the module itself"
        most = counts.most_common(_MAX_REASONS)
        reasons = [f"{num}: {reason}" for reason, num in most]
        num_others = num_plain - sum(num for _, num in most)
        reasons += [f"{num_others}: other reasons"] if num_others else []
        return f"{text} ({'; '.join(reasons)})." if reasons else f"{text}."
