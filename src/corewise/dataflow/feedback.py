"""Costs corrected by what tasks took beside each other, where they share caches and memory.

Measured side: standard library only, Python 3.9. Pure.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, Sequence, Tuple

from corewise.dataflow.schedule import Plan
from corewise.dataflow.timeline import Span


def corrected(
    costs: Sequence[Mapping[int, float]], plan: Plan, calls: Sequence[Sequence[Span]]
) -> Tuple[Dict[int, float], ...]:
    """Costs with each task's time at its planned width as it was seen; narrower ones grow alike.

    Narrower teams leave cores to others, so they meet at least as much company as the planned one did.
    """
    widths = {step.task: plan.lanes[step.lane].width for step in plan.steps}
    seen: Dict[int, List[float]] = {}
    for spans in calls:
        for span in spans:
            seen.setdefault(span.task, []).append(span.end_s - span.start_s)
    found = []
    for task, cost in enumerate(costs):
        new = dict(cost)
        if task in seen and cost[widths[task]] > 0:
            times = sorted(seen[task])
            ratio = times[len(times) // 2] / cost[widths[task]]
            new = {width: s * ratio if width <= widths[task] else s for width, s in cost.items()}
        found.append(new)
    return tuple(found)
