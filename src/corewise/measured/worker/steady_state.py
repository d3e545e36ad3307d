"""Detect when the steps of a process have become steady.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import median_low
from typing import Deque, Sequence

# Steps longer than this are compared in windows of two.
_SLOW_STEP_S = 1.0
_SLOW_WINDOW = 2
# The reason in records for which a warm-up ended.
STEADY = "steady"


def is_steady(step_times_s: Sequence[float], tolerance: float, window: int = 5) -> bool:
    """Return whether the last two windows of steps agree within `tolerance` and show no downward trend.

    The median tolerates one outlier in each window. A window of two is represented by its lower step, because
    disturbances only lengthen a step. Too few steps are never steady.
    """
    _check_settings(tolerance, window)
    for step_s in step_times_s:
        _check_step(step_s)
    window = min(window, _SLOW_WINDOW) if _has_only_slow_steps(step_times_s[-2 * _SLOW_WINDOW :]) else window
    if len(step_times_s) < 2 * window:
        return False
    recent = list(step_times_s[-2 * window :])
    early, late = median_low(recent[:window]), median_low(recent[window:])
    if abs(late - early) > tolerance * early:
        return False
    return not _is_still_falling(recent, tolerance)


class WarmUp:
    """Counts warm-up steps until they are steady or the time limit is reached, never before `min_steps`."""

    def __init__(self, min_steps: int, max_s: float, tolerance: float, window: int = 5) -> None:
        _check_settings(tolerance, window)
        if min_steps < 0 or not max_s >= 0:
            raise ValueError(f"min_steps and max_s must be at least 0, not {min_steps!r} and {max_s!r}")
        self.min_steps = min_steps
        self.max_s = max_s
        self.tolerance = tolerance
        self.window = window
        self.num_steps = 0
        self.total_s = 0.0
        self._recent: Deque[float] = deque(maxlen=2 * max(window, _SLOW_WINDOW))
        self._reason = ""

    def add(self, step_s: float) -> None:
        """Add the time of one step."""
        _check_step(step_s)
        self.num_steps += 1
        self.total_s += step_s
        self._recent.append(step_s)
        if self._reason or self.num_steps < self.min_steps:
            return
        if is_steady(list(self._recent), self.tolerance, self.window):
            self._reason = STEADY
        elif self.total_s >= self.max_s:
            self._reason = "time limit"

    @property
    def finished(self) -> bool:
        """Whether sampling may begin."""
        return bool(self._reason)

    @property
    def is_steady(self) -> bool:
        """Whether the warm-up ended because its steps had become steady."""
        return self._reason == STEADY

    @property
    def reason(self) -> str:
        """Why the warm-up ended: "steady", "time limit", or "" while it continues."""
        return self._reason


def _is_still_falling(recent: Sequence[float], tolerance: float) -> bool:
    """Return whether each third (of four steps: each step) is faster than the previous one.

    The total decrease must exceed half the tolerance, because such a trend continues beyond these steps.
    """
    size = max(1, len(recent) // 3)
    start = len(recent) % size
    levels = [median_low(recent[i : i + size]) for i in range(start, len(recent), size)]
    falling = all(later < earlier for earlier, later in zip(levels, levels[1:]))
    return falling and levels[0] - levels[-1] > tolerance / 2 * levels[0]


def _has_only_slow_steps(steps_s: Sequence[float]) -> bool:
    return len(steps_s) > 0 and min(steps_s) > _SLOW_STEP_S


def _check_step(step_s: float) -> None:
    if not (math.isfinite(step_s) and step_s >= 0):
        raise ValueError(f"a step's time must be finite and not negative, not {step_s!r}")


def _check_settings(tolerance: float, window: int) -> None:
    if not (math.isfinite(tolerance) and tolerance >= 0):
        raise ValueError(f"tolerance must be a finite number of at least 0, not {tolerance!r}")
    if window < 2:
        raise ValueError(f"a window holds at least 2 steps, not {window!r}")
