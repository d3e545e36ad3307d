"""A fixed piece of arithmetic whose time tells how fast this CPU runs just now.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import itertools
import time

NUM_STEPS = 200_000  # some 5 to 10 ms on today's cores
NUM_REPEATS = 3  # the best of them: a lasting slowdown is looked for, not one interrupt


def run_canary() -> float:
    """Seconds the loop took, best of three."""
    return min(_loop() for _ in range(NUM_REPEATS))


def _loop() -> float:
    value = 0
    started = time.perf_counter()
    for _ in itertools.repeat(None, NUM_STEPS):
        value = (value + 7) & 127  # integers below 257 are never allocated
    elapsed_s = time.perf_counter() - started
    if value != (7 * NUM_STEPS) & 127:
        raise ArithmeticError("the canary loop computed a wrong number: this CPU cannot be trusted")
    return elapsed_s
