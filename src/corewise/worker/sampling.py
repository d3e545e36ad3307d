"""The timed loop.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
import math
import time
from typing import Any, Callable, Mapping, Sequence

from corewise.spec.trial import Protocol

START_MARGIN_S = 0.002  # what it takes every rank to read "go"


@dataclasses.dataclass(frozen=True)
class Go:
    """What every rank of a run does, decided once for all of them."""

    start_ns: int  # on the machine's monotonic clock
    num_samples: int
    steps_per_sample: int
    window_s: float  # 0: a fixed number of samples; else go on until the window ends

    def message(self) -> dict[str, Any]:
        return dict(dataclasses.asdict(self), cmd="go")

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> Go:
        return cls(**{f.name: message[f.name] for f in dataclasses.fields(cls)})


@dataclasses.dataclass(frozen=True)
class Sampled:
    """Durations of one step each, and how many steps fell into the common window."""

    samples_s: tuple[float, ...]
    steps_per_sample: int
    num_steps: int
    started_ns: int
    window_s: float
    window_steps: float


def decide(protocol: Protocol, expected_s: Sequence[float], independent: bool) -> Go:
    """How long to sample, from the step times the ranks expect."""
    slowest_s = max(max(expected_s), 1e-9)
    shortest_sample_s = protocol.min_sample_s / protocol.max_samples
    steps_per_sample = max(1, math.floor(shortest_sample_s / slowest_s))
    wanted = math.ceil(protocol.min_sample_s / (slowest_s * steps_per_sample))
    num_samples = min(max(wanted, protocol.min_samples), protocol.max_samples)
    window_s = num_samples * steps_per_sample * slowest_s if independent else 0.0
    margin_s = START_MARGIN_S if len(expected_s) > 1 else 0.0
    start_ns = time.monotonic_ns() + int(margin_s * 1e9)
    return Go(start_ns, num_samples, steps_per_sample, window_s)


def sample(step: Callable[[], None], go: Go) -> Sampled:
    """Time steps as `go` says; the clock is read once between neighbouring samples."""
    while time.monotonic_ns() < go.start_ns:
        pass  # at most START_MARGIN_S, and no sleep that would start ranks apart
    clock = time.perf_counter_ns
    per_sample, limit = go.steps_per_sample, go.num_samples
    inner = range(per_sample)
    marks = [clock()]
    started_ns = time.monotonic_ns()
    end = marks[0] + int(go.window_s * 1e9) if go.window_s else None
    while (marks[-1] < end) if end is not None else (len(marks) <= limit):
        for _ in inner:
            step()
        marks.append(clock())
    durations = [(b - a) / per_sample / 1e9 for a, b in zip(marks, marks[1:])]
    num_steps = len(durations) * per_sample
    elapsed_s = (marks[-1] - marks[0]) / 1e9
    window_s, window_steps = elapsed_s, float(num_steps)
    if end is not None:
        last = marks[-1] - marks[-2]
        within = (end - marks[-2]) / last if last else 1.0  # the part of the last sample inside the window
        window_s, window_steps = go.window_s, num_steps - per_sample * (1.0 - min(1.0, within))
    return Sampled(tuple(durations), per_sample, num_steps, started_ns, window_s, window_steps)
