"""Times of single tasks on single lanes, repeated by C++ threads without Python in the loop.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, List, Sequence, Tuple

from corewise.dataflow.native.build import native_module
from corewise.dataflow.native_executor import NativeExecutor, native_graph, native_lanes
from corewise.dataflow.program import Program
from corewise.dataflow.schedule import Lane
from corewise.dataflow.teams import Teams

MOST_S = 1.0  # one measurement takes no longer, but for its first repetition


@dataclass(frozen=True)
class Recorded:
    """All values of one run of a program, as inputs for measuring its calls."""

    program: Program
    values: Any


def recorded(program: Program, values: List[Any]) -> Recorded:
    """The values of a run on the calling thread, in its present modes; buffers are written as in any run."""
    return Recorded(program, native_module().record(native_graph(program), values))


def seconds_of_calls(
    known: Recorded,
    calls: Sequence[int],
    teams: Teams,
    lane: Lane,
    repeats: int,
    before: Sequence[int] = (),
    limit_s: float = MOST_S,
) -> List[float]:
    """Seconds of the calls one after the other, once for each repetition; the first is not warm.

    `before` are calls that run untimed ahead of each repetition, to leave caches as they would.
    """
    found = native_module().measure(
        native_lanes(teams),
        native_graph(known.program),
        known.values,
        list(calls),
        list(before),
        _cpus(teams, lane),
        repeats,
        limit_s,
    )
    return [1e-9 * one for one in found]


def seconds_of_training(
    executor: NativeExecutor, known: Recorded, task: int, lane: Lane, repeats: int, limit_s: float = MOST_S
) -> Tuple[List[float], List[float]]:
    """Seconds of a task's forward and of its backward, for values recorded in grad mode."""
    if executor.training_obstacle:
        raise ValueError(f"its tasks are not differentiated one by one: {executor.training_obstacle}")
    there, back = native_module().measure_training(
        executor.bound, known.values, task, _cpus(executor.teams, lane), repeats, limit_s
    )
    return [1e-9 * one for one in there], [1e-9 * one for one in back]


def _cpus(teams: Teams, lane: Lane) -> List[int]:
    """The lane's, none for the caller's own thread at full width."""
    is_caller = lane.width == len(teams.cpus)
    return [] if is_caller else list(teams.cpus[lane.first : lane.first + lane.width])
