"""Time a fixed loop that shows how fast this CPU runs at the moment.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import itertools
import time

# These steps take about 5 to 10 ms on current cores.
NUM_STEPS = 200_000
# The best repeat counts: the canary detects a lasting slowdown, not one interrupt.
NUM_REPEATS = 3


def run_canary() -> float:
    """Time the loop and return the seconds of its best repeat."""
    return min(_time_loop() for _ in range(NUM_REPEATS))


def _time_loop() -> float:
    value = 0
    started = time.perf_counter()
    for _ in itertools.repeat(None, NUM_STEPS):
        # Python caches integers below 257, so nothing is allocated.
        value = (value + 7) & 127
    elapsed_s = time.perf_counter() - started
    if value != (7 * NUM_STEPS) & 127:
        raise ArithmeticError("the canary loop computed a wrong number: this CPU cannot be trusted")
    return elapsed_s
