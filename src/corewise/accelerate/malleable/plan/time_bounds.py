"""Compute lower bounds of a schedule's length from the costs of its tasks.

Measured side: standard library only, Python 3.9. Pure.
"""

from __future__ import annotations

from typing import List, Mapping, Sequence

from corewise.accelerate.malleable.plan.schedule import OperatorTask

# Seconds of each task by width.
Costs = Sequence[Mapping[int, float]]


def compute_critical_path_s(tasks: Sequence[OperatorTask], costs: Costs) -> float:
    """Compute the length of the longest chain, each task at its fastest width."""
    ends: List[float] = []
    for task, cost in zip(tasks, costs):
        ends.append(max((ends[other] for other in task.needs), default=0.0) + min(cost.values()))
    return max(ends, default=0.0)


def compute_area_s(costs: Costs, num_cores: int) -> float:
    """Compute the least core-seconds of all tasks, spread evenly over the cores."""
    return sum(min(width * s for width, s in cost.items()) for cost in costs) / num_cores


def compute_lower_bound_s(tasks: Sequence[OperatorTask], costs: Costs, num_cores: int) -> float:
    """Compute a bound that no schedule of these tasks at these costs can beat."""
    return max(compute_critical_path_s(tasks, costs), compute_area_s(costs, num_cores))
