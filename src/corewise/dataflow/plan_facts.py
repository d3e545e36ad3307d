"""What runs and why, as plain values that a record can hold.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List

from corewise.dataflow.entries import Entry
from corewise.dataflow.explain import task_name
from corewise.dataflow.malleable import Malleable
from corewise.dataflow.program import Program
from corewise.dataflow.schedule import Task
from corewise.dataflow.tasks import CallCosts, task_costs

_NUMBERS = re.compile(r"(_default)?(_\d+)*$")


def plan_facts(made: Malleable) -> Dict[str, Any]:
    """The last plan met: candidates, choice, bound, the graph with its widths, and one call's times.

    Without a plan, the reason alone.
    """
    entry = made._last
    if entry is None:
        return {"chosen": "plain", "reason": made.explain()}
    if entry.decision is None:
        return {"chosen": "plain", "reason": entry.reason}
    decision = entry.decision
    return {
        "chosen": decision.chosen,
        "reason": entry.reason,
        "executor": decision.executor.name if decision.executor is not None else "none",
        "candidates_s": dict(decision.times_s),
        "expected_s": dict(decision.expected_s),
        "bound_s": decision.bound_s,
        "was_kept": decision.was_kept,
        "num_operators": sum(len(task.calls) for task in decision.tasks),
        "num_packed": len(entry.bound.program.packs) if entry.has_packs and entry.bound else 0,
        "num_winograd": entry.bound.program.num_winograd if entry.has_packs and entry.bound else 0,
        "num_own_lstms": entry.bound.program.num_own if entry.bound and entry.is_planned else 0,
        "tasks": _tasks(entry),
        "timeline": [
            {
                "task": ran.task,
                "cpus": list(ran.cpus),
                "start_s": ran.start_s,
                "end_s": ran.end_s,
                "is_backward": ran.is_backward,
            }
            for ran in made.timeline()
        ],
    }


def _tasks(entry: Entry) -> List[Dict[str, Any]]:
    """Each task of the graph: its name, what it needs, the width it has and its seconds at all widths."""
    decision, bound = entry.decision, entry.bound
    if decision is None or bound is None:
        return []
    plan = decision.plan
    widths = {} if plan is None else {step.task: plan.lanes[step.lane].width for step in plan.steps}
    costs = task_costs(decision.tasks, decision.call_costs)
    return [
        {
            "name": task_name(bound.program, task, decision.call_costs),
            "kind": _kind(bound.program, task, decision.call_costs),
            "num_operators": len(task.calls),
            "needs": list(task.needs),
            "width": widths.get(number),
            "seconds_at": {str(width): seconds for width, seconds in costs[number].items()},
        }
        for number, task in enumerate(decision.tasks)
    ]


def _kind(program: Program, task: Task, costs: CallCosts) -> str:
    """The operator of its costliest call, without the number that tells calls apart; "slice" for one."""
    if program.num_slices and all(program.slices[call] is not None for call in task.calls):
        return "slice"
    dear = max(task.calls, key=lambda call: min(costs[call].values()))
    return _NUMBERS.sub("", program.calls[dear].name)
