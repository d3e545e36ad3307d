"""Time single tasks on single lanes, repeated by C++ threads without Python in the loop.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, List, Sequence, Tuple

from corewise.accelerate.capture.program import Program
from corewise.accelerate.kernels.build import load_native_module
from corewise.accelerate.malleable.execute.cpp_executor import NativeExecutor, get_native_graph, get_native_lanes
from corewise.accelerate.malleable.execute.thread_teams import Teams
from corewise.accelerate.malleable.plan.schedule import Lane

# Time limit of one measurement in seconds, not counting its first repetition.
MAX_MEASURING_S = 1.0


@dataclass(frozen=True)
class RecordedRun:
    """All values of one run of a program, as inputs for measuring its calls."""

    program: Program
    values: Any


def record_run(program: Program, values: List[Any]) -> RecordedRun:
    """Run the program on the calling thread in its current modes and keep all values."""
    return RecordedRun(program, load_native_module().record(get_native_graph(program), values))


def time_calls(
    recorded: RecordedRun,
    calls: Sequence[int],
    teams: Teams,
    lane: Lane,
    repeats: int,
    before: Sequence[int] = (),
    limit_s: float = MAX_MEASURING_S,
) -> List[float]:
    """Time the calls in sequence, once for each repetition; the first one is not warm.

    `before` are calls that run untimed ahead of each repetition, to leave caches as they would.
    """
    times_ns = load_native_module().measure(
        get_native_lanes(teams),
        get_native_graph(recorded.program),
        recorded.values,
        list(calls),
        list(before),
        _list_cpus(teams, lane),
        repeats,
        limit_s,
    )
    return [1e-9 * time_ns for time_ns in times_ns]


def time_training(
    executor: NativeExecutor,
    recorded: RecordedRun,
    task: int,
    lane: Lane,
    repeats: int,
    limit_s: float = MAX_MEASURING_S,
) -> Tuple[List[float], List[float]]:
    """Time a task's forward and backward pass, for values recorded in grad mode."""
    if executor.training_obstacle:
        raise ValueError(f"its tasks cannot be differentiated one by one: {executor.training_obstacle}")
    forward_ns, backward_ns = load_native_module().measure_training(
        executor.handle, recorded.values, task, _list_cpus(executor.teams, lane), repeats, limit_s
    )
    return [1e-9 * time_ns for time_ns in forward_ns], [1e-9 * time_ns for time_ns in backward_ns]


def _list_cpus(teams: Teams, lane: Lane) -> List[int]:
    """List the CPUs of a lane; none for the caller's thread at full width."""
    is_caller = lane.width == len(teams.cpus)
    return [] if is_caller else list(teams.cpus[lane.first : lane.first + lane.width])
