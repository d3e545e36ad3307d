"""Work on the host with what a device computed, block by block.

Measured side: standard library only, Python 3.9. Gigabytes of numbers come back from a GPU to be checked:
one thread would take a minute where the kernel takes milliseconds.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Callable, List, Sequence, TypeVar

MOST_THREADS = 8  # by then the way from the device, or the host's memory, is the limit
Made = TypeVar("Made")


def over_blocks(work: Callable[[int], Made], starts: Sequence[int], device: str) -> List[Made]:
    """What the work makes of every block, in their order.

    Beside a GPU by several threads, which end with the call; where the device is the host, by the caller: its
    framework's threads are those that the trial has asked for.
    """
    num_threads = min(MOST_THREADS, len(starts), len(os.sched_getaffinity(0))) if device != "cpu" else 1
    if num_threads < 2:
        return [work(start) for start in starts]
    with ThreadPoolExecutor(num_threads) as threads:
        return list(threads.map(work, starts))
