"""How many cores each task gets: the critical path against the area, then improvement by trying.

Measured side: standard library only, Python 3.9. Pure. After CPA (Radulescu and van Gemund, 2001).
"""

from __future__ import annotations

from typing import Callable, Dict, Hashable, List, Mapping, Sequence, Tuple

from corewise.dataflow.schedule import Task
from corewise.dataflow.simulate import bottom_levels

Costs = Sequence[Mapping[int, float]]
Widths = Tuple[int, ...]
Length = Callable[[Sequence[int]], float]  # what a schedule of these widths takes
_NUM_SNAPSHOTS = 24
_SEARCH_WORK = 40_000  # tasks laid out during improvement, all trials together


def thriftiest(costs: Costs) -> Widths:
    """Each task at the width that uses the least of the cores."""
    return tuple(min(cost, key=lambda width: (width * cost[width], width)) for cost in costs)


def fastest(costs: Costs) -> Widths:
    """Each task at the narrowest width within 2 % of its fastest."""
    return tuple(min(width for width in cost if cost[width] <= 1.02 * min(cost.values())) for cost in costs)


def widened(tasks: Sequence[Task], costs: Costs, num_cores: int) -> List[Widths]:
    """Allotments from the thriftiest to the one whose critical path is no longer than its area."""
    widths = list(thriftiest(costs))
    path: List[Widths] = [tuple(widths)]
    for _ in range(8 * len(tasks)):
        times = [cost[width] for cost, width in zip(costs, widths)]
        area = sum(width * s for width, s in zip(widths, times)) / num_cores
        critical, length = _critical(tasks, times)
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


def _critical(tasks: Sequence[Task], times: Sequence[float]) -> Tuple[List[int], float]:
    """The tasks of a longest chain, and its length."""
    if not tasks:
        return [], 0.0
    levels = bottom_levels(tasks, times)
    followers: Dict[int, List[int]] = {}
    for number, task in enumerate(tasks):
        for other in task.needs:
            followers.setdefault(other, []).append(number)
    here = max(range(len(tasks)), key=lambda number: levels[number])
    length, chain = levels[here], [here]
    while here in followers:
        here = max(followers[here], key=lambda number: levels[number])
        chain.append(here)
    return chain, length


def improved(
    start: Widths,
    tasks: Sequence[Task],
    costs: Costs,
    kinds: Sequence[Hashable],
    length: Length,
    enough_s: float = 0.0,
) -> Widths:
    """Widths changed for all tasks of a kind or depth, and one by one, while that shortens the schedule.

    A schedule no longer than `enough_s` is not improved any further.
    """
    best, best_s = start, length(start)
    budget = max(60, _SEARCH_WORK // max(1, len(start)))
    alike: Dict[Hashable, List[int]] = {}
    depths: List[int] = []
    for number, (task, kind) in enumerate(zip(tasks, kinds)):
        depths.append(1 + max((depths[other] for other in task.needs), default=-1))
        for name in (("kind", kind), ("depth", depths[-1]), ("both", kind, depths[-1])):
            alike.setdefault(name, []).append(number)
    moves = [list(group) for group in {tuple(group) for group in alike.values() if len(group) > 1}]
    moves += [[number] for number in range(len(start))]
    moves.sort(key=lambda group: (-sum(costs[number][best[number]] for number in group), group))
    found_better = True
    while found_better and budget > 0:
        found_better = False
        for group in moves:
            for width in costs[group[0]]:
                if all(best[number] == width for number in group) or budget <= 0 or best_s <= enough_s:
                    continue
                tried = list(best)
                for number in group:
                    tried[number] = width
                tried_s = length(tuple(tried))
                budget -= 1
                if tried_s < best_s * 0.999:
                    best, best_s, found_better = tuple(tried), tried_s, True
    return best
