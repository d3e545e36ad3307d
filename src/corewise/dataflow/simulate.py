"""List scheduling: tasks of given widths laid onto cores, and what that takes.

Measured side: standard library only, Python 3.9. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Mapping, Sequence, Tuple

from corewise.dataflow.lanes import slots
from corewise.dataflow.schedule import Task


@dataclass(frozen=True)
class Placement:
    """Where and when one task runs."""

    task: int
    first: int
    width: int
    start_s: float
    end_s: float


def bottom_levels(tasks: Sequence[Task], times_s: Sequence[float]) -> List[float]:
    """For each task the longest way from its start to the end of all."""
    levels = list(times_s)
    for number in range(len(tasks) - 1, -1, -1):
        for other in tasks[number].needs:
            levels[other] = max(levels[other], times_s[other] + levels[number])
    return levels


def laid_out(
    tasks: Sequence[Task],
    costs: Sequence[Mapping[int, float]],
    widths: Sequence[int],
    num_cores: int,
    handover_s: float,
) -> Tuple[Placement, ...]:
    """Each task, by urgency, where it can start first; near its producers where that makes no difference.

    Urgency is the longest way to the end; a task comes after those it needs. Starting on other cores than
    the last of its producers costs a hand-over.
    """
    times = [cost[width] for cost, width in zip(costs, widths)]
    levels = bottom_levels(tasks, times)
    free = [0.0] * num_cores
    placed: List[Placement] = [Placement(0, 0, 0, 0.0, 0.0)] * len(tasks)
    order = sorted(range(len(tasks)), key=lambda number: (-levels[number], number))
    for number in _topological(tasks, order):
        width, needs = widths[number], tasks[number].needs
        best, best_key = 0, (float("inf"), 0.0, 0)
        for first in slots(width, num_cores):
            lane = (first, width)
            start = max(free[first : first + width])
            is_near = 1
            for other in needs:
                end = placed[other].end_s
                if (placed[other].first, placed[other].width) != lane:
                    end += handover_s
                else:
                    is_near = 0
                start = end if end > start else start
            # Of equal starts: where a producer ran, then beside idle cores (neighbours may share a physical
            # core, whatever a virtual machine tells), then where the cores were idle the shortest.
            beside = first + width if first // width % 2 == 0 else first - width
            crowded = _is_busy(free, beside, width, start)
            key = (start, is_near + 0.5 * crowded, -int(1e9 * min(free[first : first + width])))
            if key < best_key:
                best, best_key = first, key
        start = best_key[0]
        placed[number] = Placement(number, best, width, start, start + times[number])
        for core in range(best, best + width):
            free[core] = start + times[number]
    return tuple(placed)


def _is_busy(free: Sequence[float], first: int, width: int, at_s: float) -> bool:
    """Whether something still runs at that time on one of these cores."""
    return any(until > at_s for until in free[first : first + width])


def _topological(tasks: Sequence[Task], wanted: Sequence[int]) -> List[int]:
    """The wanted order with each task after those it needs (tasks that take no time have equal urgency)."""
    done = [False] * len(tasks)
    found: List[int] = []
    for number in wanted:
        waiting = [number]
        while waiting:
            one = waiting[-1]
            missing = [other for other in tasks[one].needs if not done[other]]
            if done[one] or not missing:
                waiting.pop()
                if not done[one]:
                    done[one] = True
                    found.append(one)
            else:
                waiting += missing
    return found


def makespan_s(placements: Sequence[Placement]) -> float:
    """When the last task ends."""
    return max((placed.end_s for placed in placements), default=0.0)
