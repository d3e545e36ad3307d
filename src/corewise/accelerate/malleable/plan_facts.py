"""Collect what runs and why, as plain values for a record.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List

from corewise.accelerate.capture.program import Program
from corewise.accelerate.malleable.explanation import describe_task
from corewise.accelerate.malleable.module_wrapper import Malleable
from corewise.accelerate.malleable.plan.schedule import OperatorTask
from corewise.accelerate.malleable.plan.task_merging import CallCosts, sum_task_costs
from corewise.accelerate.malleable.planned_module import PlannedModule

_NAME_SUFFIX = re.compile(r"(_default)?(_\d+)*$")


def collect_plan_facts(model: Malleable) -> Dict[str, Any]:
    """Collect candidates, choice, bound, task graph with widths, and one call's times, of the last plan.

    Without a plan, only the reason.
    """
    planned = model._last_plan
    if planned is None:
        return {"chosen": "plain", "reason": model.explain()}
    if planned.decision is None:
        return {"chosen": "plain", "reason": planned.reason}
    decision = planned.decision
    return {
        "chosen": decision.chosen,
        "reason": planned.reason,
        "executor": decision.executor.name if decision.executor is not None else "none",
        "candidates_s": dict(decision.times_s),
        "expected_s": dict(decision.expected_s),
        "bound_s": decision.bound_s,
        "was_kept": decision.is_cached,
        "num_operators": sum(len(task.calls) for task in decision.tasks),
        "num_packed": len(planned.bound.program.packs) if planned.has_packs and planned.bound else 0,
        "num_winograd": planned.bound.program.num_winograd if planned.has_packs and planned.bound else 0,
        "num_own_lstms": planned.bound.program.num_own_lstms if planned.bound and planned.is_planned else 0,
        "tasks": _describe_tasks(planned),
        "timeline": [
            {
                "task": span.task,
                "cpus": list(span.cpus),
                "start_s": span.start_s,
                "end_s": span.end_s,
                "is_backward": span.is_backward,
            }
            for span in model.timeline()
        ],
    }


def _describe_tasks(planned: PlannedModule) -> List[Dict[str, Any]]:
    """Describe each task: name, predecessors, width, and seconds at all widths."""
    decision, bound = planned.decision, planned.bound
    if decision is None or bound is None:
        return []
    plan = decision.plan
    widths = {} if plan is None else {step.task: plan.lanes[step.lane].width for step in plan.steps}
    costs = sum_task_costs(decision.tasks, decision.call_costs)
    return [
        {
            "name": describe_task(bound.program, task, decision.call_costs),
            "kind": _name_operator(bound.program, task, decision.call_costs),
            "num_operators": len(task.calls),
            "needs": list(task.needs),
            "width": widths.get(number),
            "seconds_at": {str(width): seconds for width, seconds in costs[number].items()},
        }
        for number, task in enumerate(decision.tasks)
    ]


def _name_operator(program: Program, task: OperatorTask, costs: CallCosts) -> str:
    """Name the operator of the costliest call without its number, or "slice" for a slice."""
    if program.num_slices and all(program.slices[call] is not None for call in task.calls):
        return "slice"
    costliest = max(task.calls, key=lambda call: min(costs[call].values()))
    return _NAME_SUFFIX.sub("", program.calls[costliest].name)
