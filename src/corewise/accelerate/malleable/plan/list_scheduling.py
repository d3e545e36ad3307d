"""List scheduling: place tasks of given widths on cores, and estimate the duration.

Measured side: standard library only, Python 3.9. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Mapping, Sequence, Tuple

from corewise.accelerate.malleable.plan.lane_widths import list_slots
from corewise.accelerate.malleable.plan.schedule import OperatorTask


@dataclass(frozen=True)
class Placement:
    """Where and when one task runs."""

    task: int
    first: int
    width: int
    start_s: float
    end_s: float


def compute_bottom_levels(tasks: Sequence[OperatorTask], times_s: Sequence[float]) -> List[float]:
    """Compute for each task the longest path from its start to the end."""
    levels = list(times_s)
    for number in range(len(tasks) - 1, -1, -1):
        for other in tasks[number].needs:
            levels[other] = max(levels[other], times_s[other] + levels[number])
    return levels


def schedule_tasks(
    tasks: Sequence[OperatorTask],
    costs: Sequence[Mapping[int, float]],
    widths: Sequence[int],
    num_cores: int,
    handover_s: float,
) -> Tuple[Placement, ...]:
    """Place each task, by urgency, where it can start first; prefer the lane of a producer.

    Urgency is the longest path to the end. A task follows those it needs. Starting on other cores than the
    last of its producers costs a hand-over.
    """
    times = [cost[width] for cost, width in zip(costs, widths)]
    levels = compute_bottom_levels(tasks, times)
    free = [0.0] * num_cores
    placed: List[Placement] = [Placement(0, 0, 0, 0.0, 0.0)] * len(tasks)
    order = sorted(range(len(tasks)), key=lambda number: (-levels[number], number))
    for number in _sort_topologically(tasks, order):
        width, needs = widths[number], tasks[number].needs
        best, best_key = 0, (float("inf"), 0.0, 0)
        for first in list_slots(width, num_cores):
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
            # Among equal starts, prefer the lane of a producer, then idle neighbour cores (neighbours may
            # share a physical core, even if a virtual machine hides it), then the cores that were idle for
            # the shortest time.
            neighbour = first + width if first // width % 2 == 0 else first - width
            is_neighbour_busy = _is_busy(free, neighbour, width, start)
            key = (start, is_near + 0.5 * is_neighbour_busy, -int(1e9 * min(free[first : first + width])))
            if key < best_key:
                best, best_key = first, key
        start = best_key[0]
        placed[number] = Placement(number, best, width, start, start + times[number])
        for core in range(best, best + width):
            free[core] = start + times[number]
    return tuple(placed)


def _is_busy(free: Sequence[float], first: int, width: int, at_s: float) -> bool:
    """Return whether a task runs at that time on one of these cores."""
    return any(until > at_s for until in free[first : first + width])


def _sort_topologically(tasks: Sequence[OperatorTask], wanted: Sequence[int]) -> List[int]:
    """Sort so that each task follows those it needs; tasks of no duration have equal urgency."""
    done = [False] * len(tasks)
    ordered: List[int] = []
    for number in wanted:
        waiting = [number]
        while waiting:
            task = waiting[-1]
            missing = [other for other in tasks[task].needs if not done[other]]
            if done[task] or not missing:
                waiting.pop()
                if not done[task]:
                    done[task] = True
                    ordered.append(task)
            else:
                waiting += missing
    return ordered


def compute_makespan_s(placements: Sequence[Placement]) -> float:
    """Compute when the last task ends."""
    return max((placed.end_s for placed in placements), default=0.0)
