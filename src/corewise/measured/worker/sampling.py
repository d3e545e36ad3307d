"""Plan and run the timed loop.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
import math
import time
from typing import Any, Callable, Mapping, Sequence

from corewise.measured.trial import Protocol

# The time in which every rank reads the plan.
START_MARGIN_S = 0.002


@dataclasses.dataclass(frozen=True)
class SamplingPlan:
    """The sampling of all ranks of a run.

    Attributes:
        start_ns: start time on the monotonic clock of the machine.
        window_s: sample until this window ends, or 0 for a fixed number of samples.
    """

    start_ns: int
    num_samples: int
    steps_per_sample: int
    window_s: float

    def to_message(self) -> dict[str, Any]:
        return dict(dataclasses.asdict(self), cmd="go")

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> SamplingPlan:
        return cls(**{f.name: message[f.name] for f in dataclasses.fields(cls)})


@dataclasses.dataclass(frozen=True)
class SampledSteps:
    """Seconds per step of each sample, and the number of steps in the common window."""

    samples_s: tuple[float, ...]
    steps_per_sample: int
    num_steps: int
    started_ns: int
    window_s: float
    window_steps: float


def plan_sampling(protocol: Protocol, expected_s: Sequence[float], independent: bool) -> SamplingPlan:
    """Plan how long to sample, from the expected step times of the ranks."""
    slowest_s = max(max(expected_s), 1e-9)
    shortest_sample_s = protocol.min_sample_s / protocol.max_samples
    steps_per_sample = max(1, math.floor(shortest_sample_s / slowest_s))
    needed = math.ceil(protocol.min_sample_s / (slowest_s * steps_per_sample))
    num_samples = min(max(needed, protocol.min_samples), protocol.max_samples)
    window_s = num_samples * steps_per_sample * slowest_s if independent else 0.0
    margin_s = START_MARGIN_S if len(expected_s) > 1 else 0.0
    start_ns = time.monotonic_ns() + int(margin_s * 1e9)
    return SamplingPlan(start_ns, num_samples, steps_per_sample, window_s)


def take_samples(
    step: Callable[[], None], plan: SamplingPlan, on_start: Callable[[], None] = lambda: None
) -> SampledSteps:
    """Time steps according to the plan; the clock is read once between neighbouring samples.

    `on_start` is called directly before the first step, and is not timed.
    """
    # Spin for at most START_MARGIN_S: after a sleep the ranks would not start together.
    while time.monotonic_ns() < plan.start_ns:
        pass
    on_start()
    clock = time.perf_counter_ns
    per_sample, limit = plan.steps_per_sample, plan.num_samples
    inner = range(per_sample)
    marks = [clock()]
    started_ns = time.monotonic_ns()
    end = marks[0] + int(plan.window_s * 1e9) if plan.window_s else None
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
        # Count only the part of the last sample that lies inside the window.
        within = (end - marks[-2]) / last if last else 1.0
        window_s, window_steps = plan.window_s, num_steps - per_sample * (1.0 - min(1.0, within))
    return SampledSteps(tuple(durations), per_sample, num_steps, started_ns, window_s, window_steps)
