"""Split the time of training steps: input, computing, exposed communication, waiting for the slowest rank.

A step reads the clock a few times and stores the differences. What needs the figures of all ranks is computed after
sampling.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections import deque
from typing import Callable, Deque, Dict, Iterable, List, Sequence, Tuple

# Far more steps than a median needs.
MAX_STEPS = 4096

GatherRows = Callable[[List[float]], List[List[float]]]


@dataclasses.dataclass(frozen=True)
class StepTimes:
    """The seconds of one step on one rank.

    Attributes:
        total_s: the whole step.
        input_s: waiting for the batch.
        sync_s: before the forward pass, while the buffers of the first rank are sent to the others.
        tail_s: from the last local gradient to the end of the backward pass: nothing hides this communication.
        reduction_s: at least one bucket of gradients was on its way, other ranks' delays included.
    """

    total_s: float
    input_s: float
    sync_s: float
    tail_s: float
    reduction_s: float

    @property
    def compute_s(self) -> float:
        return self.total_s - self.input_s - self.sync_s - self.tail_s


class StepTimeline:
    """Collects the times of the latest steps of a rank."""

    def __init__(self) -> None:
        self._steps: Deque[StepTimes] = deque(maxlen=MAX_STEPS)
        # Another thread adds buckets. They are complete when the backward pass returns, which waits for them.
        self._buckets: List[Tuple[float, float]] = []
        self._start = self._input = self._forward = self._forward_in_model = self._backward = 0.0
        self.num_buckets = 0

    def begin_step(self) -> None:
        self._buckets = []
        self._forward_in_model = 0.0
        self._start = time.perf_counter()

    def mark_input(self) -> None:
        """Note that the batch has arrived."""
        self._input = time.perf_counter()

    def mark_forward(self) -> None:
        """Note that the wrapped model begins: DistributedDataParallel has sent its buffers."""
        self._forward_in_model = time.perf_counter()

    def mark_backward(self) -> None:
        """Note that the backward pass has returned."""
        self._backward = time.perf_counter()

    def add_bucket(self, ready: float, done: float) -> None:
        """Note when a bucket of local gradients was complete, and when it was averaged."""
        self._buckets.append((ready, done))

    def end_step(self) -> None:
        end, buckets = time.perf_counter(), self._buckets
        self.num_buckets = len(buckets)
        sync_s = self._forward_in_model - self._input if self._forward_in_model else 0.0
        tail_s = self._backward - max(ready for ready, _ in buckets) if buckets else 0.0
        self._steps.append(
            StepTimes(end - self._start, self._input - self._start, sync_s, tail_s, measure_union(buckets))
        )

    def take_last(self, num_steps: int) -> List[StepTimes]:
        """Return the times of the last steps, as many as are stored."""
        return list(self._steps)[-num_steps:]


def measure_union(intervals: Iterable[Tuple[float, float]]) -> float:
    """Return the length of the union of intervals: overlapping parts count once."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(intervals):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def summarize_local_steps(steps: Sequence[StepTimes]) -> Dict[str, float]:
    """Return the medians that one rank knows alone."""
    if not steps:
        return {}
    return {
        "compute_s": statistics.median(step.compute_s for step in steps),
        "input_s": statistics.median(step.input_s for step in steps),
    }


def summarize_shared_steps(steps: Sequence[StepTimes], rank: int, gather: GatherRows) -> Dict[str, float]:
    """Return the medians of communication; all ranks call it together with the same number of steps.

    An average is complete on all ranks at the same moment, up to the latency of a message. In each step, the rank with
    the shortest tail was the last to arrive, and its tail is communication alone. What the tail of another rank is
    longer, that rank waited. This needs no common clock.

    Args:
        gather: returns the list of every rank.
    """
    if not steps:
        return {}
    tails = gather([step.tail_s for step in steps])
    alone = [min(of_ranks) for of_ranks in zip(*tails)]
    waits = [tail - shortest for tail, shortest in zip(tails[rank], alone)]
    # Handing a bucket over to the thread that averages it is exposed, but no part of the reduction.
    return {
        "communication_s": statistics.median(
            max(step.reduction_s, shortest) + step.sync_s for shortest, step in zip(alone, steps)
        ),
        "exposed_communication_s": statistics.median(shortest + step.sync_s for shortest, step in zip(alone, steps)),
        "imbalance_s": statistics.median(waits),
    }
