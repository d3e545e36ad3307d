"""Plans: which tasks run together, with how many cores each, on which cores.

Measured side: standard library only, Python 3.9. Pure.
"""

from __future__ import annotations

from typing import Dict, Hashable, List, Mapping, Optional, Sequence, Set, Tuple

from corewise.dataflow.allot import fastest, improved, widened
from corewise.dataflow.bounds import lower_bound_s
from corewise.dataflow.schedule import CALLER, Lane, Plan, Step, Task
from corewise.dataflow.simulate import Placement, laid_out, makespan_s

Costs = Sequence[Mapping[int, float]]
_NEAR_BOUND = 1.02  # of the time no schedule can beat: not worth searching on


def moldable(
    tasks: Sequence[Task],
    costs: Costs,
    num_cores: int,
    handover_s: float,
    kinds: Optional[Sequence[Hashable]] = None,
) -> Plan:
    """The shortest plan found in which each task has a width of its own."""

    def length(widths: Sequence[int]) -> float:
        return makespan_s(laid_out(tasks, costs, widths, num_cores, handover_s))

    starts = [*widened(tasks, costs, num_cores), fastest(costs)]
    starts += [tuple(width for _ in tasks) for width in (costs[0] if costs else ())]
    ranked = sorted(set(starts), key=length)
    enough_s = _NEAR_BOUND * lower_bound_s(tasks, costs, num_cores)
    finalists = ranked[:1]
    if length(ranked[0]) > enough_s:
        names = kinds or range(len(tasks))
        finalists = [improved(start, tasks, costs, names, length, enough_s) for start in ranked[:2]]
    return planned(tasks, costs, min(finalists, key=length), num_cores, handover_s)


def fixed(tasks: Sequence[Task], costs: Costs, num_cores: int, handover_s: float, inter: int) -> Plan:
    """A fixed setting: so many lanes, each with an equal share of the cores, for the whole run."""
    widths = tuple(num_cores // inter for _ in tasks)
    return planned(tasks, costs, widths, num_cores, handover_s)


def planned(
    tasks: Sequence[Task], costs: Costs, widths: Sequence[int], num_cores: int, handover_s: float
) -> Plan:
    """The plan of list scheduling with these widths."""
    placements = laid_out(tasks, costs, widths, num_cores, handover_s)
    return plan_of(tasks, placements, num_cores)


def plan_of(tasks: Sequence[Task], placements: Sequence[Placement], num_cores: int) -> Plan:
    """Placements as lanes and steps; a step waits for its data and for its cores."""
    in_order = sorted(placements, key=lambda placed: (placed.start_s, placed.end_s, placed.task))
    numbers = _lane_numbers(in_order, num_cores)
    before: Dict[int, Set[int]] = {}  # all tasks that have ended when this one starts, by waiting
    last_on: List[Optional[int]] = [None] * num_cores
    last_in: Dict[int, int] = {}
    steps = []
    for placed in in_order:
        cores = range(placed.first, placed.first + placed.width)
        direct = set(tasks[placed.task].needs)
        direct |= {other for other in (last_on[core] for core in cores) if other is not None}
        lane = numbers[placed.first, placed.width]
        previous = last_in.get(lane)
        if previous is not None:
            direct.add(previous)
        implied = set().union(*(before[other] for other in direct)) if direct else set()
        before[placed.task] = direct | implied
        after = direct - implied - ({previous} if previous is not None else set())
        steps.append(Step(placed.task, lane, tuple(sorted(after))))
        last_in[lane] = placed.task
        for core in cores:
            last_on[core] = placed.task
    lanes = _with_callers_branch(numbers, in_order, num_cores)
    return Plan(lanes, tuple(steps), makespan_s(placements))


def _lane_numbers(placements: Sequence[Placement], num_cores: int) -> Dict[Tuple[int, int], int]:
    numbers = {(0, num_cores): CALLER}
    for lane in sorted({(placed.first, placed.width) for placed in placements}):
        numbers.setdefault(lane, len(numbers))
    return numbers


def _with_callers_branch(
    numbers: Mapping[Tuple[int, int], int], placements: Sequence[Placement], num_cores: int
) -> Tuple[Lane, ...]:
    """The lanes; the caller, idle while others run, takes the busiest of those one core wide."""
    busy: Dict[Tuple[int, int], float] = {}
    for placed in placements:
        if placed.width == 1 < num_cores:
            key = (placed.first, placed.width)
            busy[key] = busy.get(key, 0.0) + placed.end_s - placed.start_s
    taken = max(busy, key=lambda lane: (busy[lane], -lane[0])) if busy else None
    return tuple(Lane(first, width, (first, width) == taken) for first, width in numbers)


def is_valid(plan: Plan, tasks: Sequence[Task], num_cores: int) -> bool:
    """Whether each task runs once, after what it needs, and never two at a time on one core."""
    if sorted(step.task for step in plan.steps) != list(range(len(tasks))):
        return False
    if not plan.lanes or (plan.lanes[CALLER].first, plan.lanes[CALLER].width) != (0, num_cores):
        return False
    if any(lane.first < 0 or lane.width < 1 or lane.first + lane.width > num_cores for lane in plan.lanes):
        return False
    before: Dict[int, Set[int]] = {}
    last_in: Dict[int, int] = {}
    on_core: List[List[int]] = [[] for _ in range(num_cores)]
    for step in plan.steps:
        direct = {*step.after, *([last_in[step.lane]] if step.lane in last_in else [])}
        if not 0 <= step.lane < len(plan.lanes) or not direct <= before.keys():
            return False
        ended = before[step.task] = direct.union(*(before[other] for other in direct))
        if not ended >= set(tasks[step.task].needs):
            return False
        lane = plan.lanes[step.lane]
        for core in range(lane.first, lane.first + lane.width):
            if not ended >= set(on_core[core]):
                return False
            on_core[core].append(step.task)
        last_in[step.lane] = step.task
    return True
