"""Choose how many cores each task gets: balance critical path and area, then search locally.

Measured side: standard library only, Python 3.9. Pure. After CPA (Radulescu and van Gemund, 2001).
"""

from __future__ import annotations

from typing import Callable, Dict, Hashable, List, Mapping, Sequence, Tuple

from corewise.accelerate.malleable.plan.list_scheduling import compute_bottom_levels
from corewise.accelerate.malleable.plan.schedule import OperatorTask

Costs = Sequence[Mapping[int, float]]
Widths = Tuple[int, ...]
# Returns the seconds that a schedule with these widths takes.
EstimateMakespan = Callable[[Sequence[int]], float]
_NUM_SNAPSHOTS = 24
# Tasks placed during the local search, summed over all trial schedules. Bounds its run time.
_MAX_PLACED_TASKS = 40_000


def choose_cheapest_widths(costs: Costs) -> Widths:
    """Choose for each task the width with the least core-seconds."""
    return tuple(min(cost, key=lambda width: (width * cost[width], width)) for cost in costs)


def choose_fastest_widths(costs: Costs) -> Widths:
    """Choose for each task the narrowest width within 2 % of its fastest."""
    return tuple(min(width for width in cost if cost[width] <= 1.02 * min(cost.values())) for cost in costs)


def widen_critical_path(tasks: Sequence[OperatorTask], costs: Costs, num_cores: int) -> List[Widths]:
    """List allotments from the cheapest to the first whose critical path is no longer than its area."""
    widths = list(choose_cheapest_widths(costs))
    path: List[Widths] = [tuple(widths)]
    for _ in range(8 * len(tasks)):
        times = [cost[width] for cost, width in zip(costs, widths)]
        area = sum(width * s for width, s in zip(widths, times)) / num_cores
        critical, length = _find_critical_path(tasks, times)
        if length <= area * (1 + 1e-9):
            break
        gains: Dict[int, Tuple[float, int]] = {}
        for number in critical:
            wider = [w for w in costs[number] if w > widths[number] and costs[number][w] < times[number]]
            if wider:
                width = min(wider)
                spared = times[number] - costs[number][width]
                added = (width * costs[number][width] - widths[number] * times[number]) / num_cores
                gains[number] = (spared - max(0.0, added), width)
        if not gains:
            break
        chosen = max(gains, key=lambda number: gains[number])
        widths[chosen] = gains[chosen][1]
        path.append(tuple(widths))
    stride = max(1, len(path) // _NUM_SNAPSHOTS)
    return [*path[::stride], path[-1]]


def _find_critical_path(tasks: Sequence[OperatorTask], times: Sequence[float]) -> Tuple[List[int], float]:
    """Find the tasks of a longest chain, and its length."""
    if not tasks:
        return [], 0.0
    levels = compute_bottom_levels(tasks, times)
    followers: Dict[int, List[int]] = {}
    for number, task in enumerate(tasks):
        for other in task.needs:
            followers.setdefault(other, []).append(number)
    current = max(range(len(tasks)), key=lambda number: levels[number])
    length, chain = levels[current], [current]
    while current in followers:
        current = max(followers[current], key=lambda number: levels[number])
        chain.append(current)
    return chain, length


def improve_widths(
    start: Widths,
    tasks: Sequence[OperatorTask],
    costs: Costs,
    signatures: Sequence[Hashable],
    estimate_s: EstimateMakespan,
    enough_s: float = 0.0,
) -> Widths:
    """Improve widths by local search, for groups of similar tasks and for single tasks.

    A schedule no longer than `enough_s` is not improved any further.
    """
    best, best_s = start, estimate_s(start)
    budget = max(60, _MAX_PLACED_TASKS // max(1, len(start)))
    groups: Dict[Hashable, List[int]] = {}
    depths: List[int] = []
    for number, (task, signature) in enumerate(zip(tasks, signatures)):
        depths.append(1 + max((depths[other] for other in task.needs), default=-1))
        for name in (("signature", signature), ("depth", depths[-1]), ("both", signature, depths[-1])):
            groups.setdefault(name, []).append(number)
    moves = [list(group) for group in {tuple(group) for group in groups.values() if len(group) > 1}]
    moves += [[number] for number in range(len(start))]
    moves.sort(key=lambda group: (-sum(costs[number][best[number]] for number in group), group))
    has_improved = True
    while has_improved and budget > 0:
        has_improved = False
        for group in moves:
            for width in costs[group[0]]:
                if all(best[number] == width for number in group) or budget <= 0 or best_s <= enough_s:
                    continue
                tried = list(best)
                for number in group:
                    tried[number] = width
                tried_s = estimate_s(tuple(tried))
                budget -= 1
                if tried_s < best_s * 0.999:
                    best, best_s, has_improved = tuple(tried), tried_s, True
    return best
