"""Correct costs by the times of tasks that ran at the same time and shared caches and memory.

Measured side: standard library only, Python 3.9. Pure.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, Sequence, Tuple

from corewise.accelerate.malleable.execute.timeline import Span
from corewise.accelerate.malleable.plan.schedule import LanePlan


def update_costs(
    costs: Sequence[Mapping[int, float]], plan: LanePlan, calls: Sequence[Sequence[Span]]
) -> Tuple[Dict[int, float], ...]:
    """Scale each task's costs, at its planned width and below, to the median of its observed times.

    Narrower teams leave cores to others, so they meet at least as much contention as the planned one.
    """
    widths = {step.task: plan.lanes[step.lane].width for step in plan.steps}
    times_by_task: Dict[int, List[float]] = {}
    for spans in calls:
        for span in spans:
            times_by_task.setdefault(span.task, []).append(span.end_s - span.start_s)
    updated = []
    for task, cost in enumerate(costs):
        scaled = dict(cost)
        if task in times_by_task and cost[widths[task]] > 0:
            times = sorted(times_by_task[task])
            ratio = times[len(times) // 2] / cost[widths[task]]
            scaled = {width: s * ratio if width <= widths[task] else s for width, s in cost.items()}
        updated.append(scaled)
    return tuple(updated)
