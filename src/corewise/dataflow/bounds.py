"""How fast a graph could run at best, from what its tasks take at each width.

Measured side: standard library only, Python 3.9. Pure.
"""

from __future__ import annotations

from typing import List, Mapping, Sequence

from corewise.dataflow.schedule import Task

Costs = Sequence[Mapping[int, float]]  # of each task: width to seconds


def critical_path_s(tasks: Sequence[Task], costs: Costs) -> float:
    """The longest chain, each task at its fastest width."""
    ends: List[float] = []
    for task, cost in zip(tasks, costs):
        ends.append(max((ends[other] for other in task.needs), default=0.0) + min(cost.values()))
    return max(ends, default=0.0)


def area_s(costs: Costs, num_cores: int) -> float:
    """All tasks at their thriftiest width, spread evenly over all cores."""
    return sum(min(width * s for width, s in cost.items()) for cost in costs) / num_cores


def lower_bound_s(tasks: Sequence[Task], costs: Costs, num_cores: int) -> float:
    """No schedule of these tasks, at these costs, ends sooner."""
    return max(critical_path_s(tasks, costs), area_s(costs, num_cores))
