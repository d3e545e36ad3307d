"""The time that a step spends in messages, and the rest.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections import deque
from typing import Any, Deque, Dict, Iterator, Mapping

from corewise.measured.runtimes.communication.communicator import Communicator

# Steps whose medians are reported.
NUM_TIMES_KEPT = 101


class TimedCommunicator(Communicator):
    """Passes messages through another communicator and adds up the seconds that they take.

    Waiting for a slower rank counts as communication.
    """

    def __init__(self, communicator: Communicator) -> None:
        self._inner = communicator
        self.backend, self.rank, self.num_ranks = communicator.backend, communicator.rank, communicator.num_ranks
        self.seconds = 0.0

    def send(self, array: Any, to: int) -> None:
        with self._measure():
            self._inner.send(array, to)

    def receive(self, array: Any, source: int) -> None:
        with self._measure():
            self._inner.receive(array, source)

    def exchange(self, sent: Any, to: int, received: Any, source: int) -> None:
        with self._measure():
            self._inner.exchange(sent, to, received, source)

    def allreduce(self, array: Any) -> None:
        with self._measure():
            self._inner.allreduce(array)

    def allgather(self, gathered: Any, piece: Any) -> None:
        with self._measure():
            self._inner.allgather(gathered, piece)

    def all_to_all(self, received: Any, sent: Any) -> None:
        with self._measure():
            self._inner.all_to_all(received, sent)

    def broadcast(self, array: Any, root: int) -> None:
        with self._measure():
            self._inner.broadcast(array, root)

    def reduce_scatter(self, piece: Any, array: Any) -> None:
        with self._measure():
            self._inner.reduce_scatter(piece, array)

    def barrier(self) -> None:
        with self._measure():
            self._inner.barrier()

    def agree(self, flag: bool) -> bool:
        with self._measure():
            return self._inner.agree(flag)

    @contextlib.contextmanager
    def _measure(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - began


class StepTimes:
    """Seconds of the activities in the last steps."""

    def __init__(self) -> None:
        self._seconds: Dict[str, Deque[float]] = {}

    def add(self, **seconds: float) -> None:
        """Add the seconds of one step, by activity."""
        for name, value in seconds.items():
            self._seconds.setdefault(name, deque(maxlen=NUM_TIMES_KEPT)).append(value)

    @contextlib.contextmanager
    def measure(self, messages: TimedCommunicator) -> Iterator[None]:
        """Measure a step whose messages overlap nothing."""
        began, before_s = time.perf_counter(), messages.seconds
        yield
        communication_s = messages.seconds - before_s
        self.add(compute=time.perf_counter() - began - communication_s, communication=communication_s)

    def compute_medians(self) -> Mapping[str, float]:
        """Return the median of each activity as a metric, for example `compute_s`."""
        return {f"{name}_s": statistics.median(times_s) for name, times_s in self._seconds.items()}
