"""Build plans: which tasks run at the same time, with how many cores, on which cores.

Measured side: standard library only, Python 3.9. Pure.
"""

from __future__ import annotations

from typing import Dict, Hashable, List, Mapping, Optional, Sequence, Set, Tuple

from corewise.accelerate.malleable.plan.core_allotment import choose_fastest_widths, improve_widths, widen_critical_path
from corewise.accelerate.malleable.plan.list_scheduling import Placement, compute_makespan_s, schedule_tasks
from corewise.accelerate.malleable.plan.schedule import CALLER, Lane, LanePlan, LaneStep, OperatorTask
from corewise.accelerate.malleable.plan.time_bounds import compute_lower_bound_s

Costs = Sequence[Mapping[int, float]]
# A plan within this ratio of the lower bound is not improved any further.
_NEAR_BOUND_RATIO = 1.02


def plan_moldable(
    tasks: Sequence[OperatorTask],
    costs: Costs,
    num_cores: int,
    handover_s: float,
    signatures: Optional[Sequence[Hashable]] = None,
) -> LanePlan:
    """Build the shortest plan found in which each task may have a different width."""

    def compute_length(widths: Sequence[int]) -> float:
        return compute_makespan_s(schedule_tasks(tasks, costs, widths, num_cores, handover_s))

    starts = [*widen_critical_path(tasks, costs, num_cores), choose_fastest_widths(costs)]
    starts += [tuple(width for _ in tasks) for width in (costs[0] if costs else ())]
    ranked = sorted(set(starts), key=compute_length)
    enough_s = _NEAR_BOUND_RATIO * compute_lower_bound_s(tasks, costs, num_cores)
    finalists = ranked[:1]
    if compute_length(ranked[0]) > enough_s:
        names = signatures or range(len(tasks))
        finalists = [improve_widths(start, tasks, costs, names, compute_length, enough_s) for start in ranked[:2]]
    return build_plan(tasks, costs, min(finalists, key=compute_length), num_cores, handover_s)


def plan_fixed(tasks: Sequence[OperatorTask], costs: Costs, num_cores: int, handover_s: float, inter: int) -> LanePlan:
    """Build a plan with `inter` lanes that share the cores evenly for the whole run."""
    widths = tuple(num_cores // inter for _ in tasks)
    return build_plan(tasks, costs, widths, num_cores, handover_s)


def build_plan(
    tasks: Sequence[OperatorTask], costs: Costs, widths: Sequence[int], num_cores: int, handover_s: float
) -> LanePlan:
    """Build the plan of list scheduling with these widths."""
    placements = schedule_tasks(tasks, costs, widths, num_cores, handover_s)
    return convert_placements(tasks, placements, num_cores)


def convert_placements(tasks: Sequence[OperatorTask], placements: Sequence[Placement], num_cores: int) -> LanePlan:
    """Convert placements to lanes and steps; a step waits for its data and for its cores."""
    in_order = sorted(placements, key=lambda placed: (placed.start_s, placed.end_s, placed.task))
    numbers = _assign_lane_numbers(in_order, num_cores)
    # All tasks that must have ended before a task starts.
    predecessors: Dict[int, Set[int]] = {}
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
        implied = set().union(*(predecessors[other] for other in direct)) if direct else set()
        predecessors[placed.task] = direct | implied
        after = direct - implied - ({previous} if previous is not None else set())
        steps.append(LaneStep(placed.task, lane, tuple(sorted(after))))
        last_in[lane] = placed.task
        for core in cores:
            last_on[core] = placed.task
    lanes = _assign_caller_lane(numbers, in_order, num_cores)
    return LanePlan(lanes, tuple(steps), compute_makespan_s(placements))


def _assign_lane_numbers(placements: Sequence[Placement], num_cores: int) -> Dict[Tuple[int, int], int]:
    numbers = {(0, num_cores): CALLER}
    for lane in sorted({(placed.first, placed.width) for placed in placements}):
        numbers.setdefault(lane, len(numbers))
    return numbers


def _assign_caller_lane(
    numbers: Mapping[Tuple[int, int], int], placements: Sequence[Placement], num_cores: int
) -> Tuple[Lane, ...]:
    """Build the lanes; the caller, otherwise idle, takes the busiest lane of width 1."""
    busy: Dict[Tuple[int, int], float] = {}
    for placed in placements:
        if placed.width == 1 < num_cores:
            key = (placed.first, placed.width)
            busy[key] = busy.get(key, 0.0) + placed.end_s - placed.start_s
    taken = max(busy, key=lambda lane: (busy[lane], -lane[0])) if busy else None
    return tuple(Lane(first, width, (first, width) == taken) for first, width in numbers)


def is_valid_plan(plan: LanePlan, tasks: Sequence[OperatorTask], num_cores: int) -> bool:
    """Return whether each task runs once, after its inputs, and never two at a time on one core."""
    if sorted(step.task for step in plan.steps) != list(range(len(tasks))):
        return False
    if not plan.lanes or (plan.lanes[CALLER].first, plan.lanes[CALLER].width) != (0, num_cores):
        return False
    if any(lane.first < 0 or lane.width < 1 or lane.first + lane.width > num_cores for lane in plan.lanes):
        return False
    predecessors: Dict[int, Set[int]] = {}
    last_in: Dict[int, int] = {}
    on_core: List[List[int]] = [[] for _ in range(num_cores)]
    for step in plan.steps:
        direct = {*step.after, *([last_in[step.lane]] if step.lane in last_in else [])}
        if not 0 <= step.lane < len(plan.lanes) or not direct <= predecessors.keys():
            return False
        ended = predecessors[step.task] = direct.union(*(predecessors[other] for other in direct))
        if not ended >= set(tasks[step.task].needs):
            return False
        lane = plan.lanes[step.lane]
        for core in range(lane.first, lane.first + lane.width):
            if not ended >= set(on_core[core]):
                return False
            on_core[core].append(step.task)
        last_in[step.lane] = step.task
    return True
