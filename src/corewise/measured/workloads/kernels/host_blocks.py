"""Process results of a device on the host, block by block.

Measured side: standard library only, Python 3.9. A check reads gigabytes back from a GPU. One
thread would need a minute for what the kernel computes in milliseconds.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Callable, List, Sequence, TypeVar

# With eight threads, the transfer from the device or the host's memory bandwidth is the limit.
MAX_THREADS = 8
BlockResult = TypeVar("BlockResult")


def map_blocks(work: Callable[[int], BlockResult], starts: Sequence[int], device: str) -> List[BlockResult]:
    """Call `work` for the start of each block and return the results in order.

    Results of a GPU are processed by several threads, which end with the call. On a CPU the caller works
    alone, because the framework already uses the threads of the trial.
    """
    num_threads = min(MAX_THREADS, len(starts), len(os.sched_getaffinity(0))) if device != "cpu" else 1
    if num_threads < 2:
        return [work(start) for start in starts]
    with ThreadPoolExecutor(num_threads) as threads:
        return list(threads.map(work, starts))
