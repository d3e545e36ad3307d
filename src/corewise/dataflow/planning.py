"""From a captured program to what runs: costs, plans, candidates timed, the best chosen; or what was kept.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Hashable, List, Mapping, Optional, Sequence, Tuple

import torch
from torch.utils import _pytree as pytree

from corewise.dataflow import executors, kept_costs
from corewise.dataflow.binding import Bound
from corewise.dataflow.bounds import lower_bound_s
from corewise.dataflow.choose import best_of, timed_in_turns, typical
from corewise.dataflow.cost import measure_costs
from corewise.dataflow.feedback import corrected
from corewise.dataflow.kept_costs import Kept
from corewise.dataflow.lanes import widths_for
from corewise.dataflow.plan import fixed, is_valid, moldable
from corewise.dataflow.program import Program
from corewise.dataflow.schedule import CALLER, Plan, Task
from corewise.dataflow.tasks import CallCosts, merged, task_costs
from corewise.dataflow.teams import Teams
from corewise.dataflow.timeline import Span
from corewise.dataflow.training_cost import measure_backward, with_backward

PLAIN = "plain"
_CORRECTING = 0.05  # share of the time for one correction
_CORRECTED = ("moldable, corrected", "moldable, corrected twice")
_OVERHEADS_PER_TASK = 2  # a task takes at least so many hand-overs
_MEASURING, _MEASURING_BACK, _RACING = 0.45, 0.2, 0.35  # shares of the time planning may take


@dataclass
class Decision:
    """What runs for inputs of one kind, and what is known about it."""

    chosen: str
    executor: Optional[executors.Executor]  # None: the module itself
    tasks: Tuple[Task, ...]
    call_costs: Tuple[Dict[int, float], ...]
    times_s: Dict[str, float]  # of the candidates, as measured
    expected_s: Dict[str, float] = field(default_factory=dict)  # of the plans
    bound_s: float = 0.0
    planning_s: float = 0.0
    was_kept: bool = False
    measured: Optional[Tuple[Dict[int, float], ...]] = None  # costs as measured, where these are derived

    @property
    def plan(self) -> Optional[Plan]:
        """The plan that runs, None for plain execution."""
        return self.executor.plan if self.executor else None


@dataclass(frozen=True)
class Case:
    """A program with inputs to plan for."""

    bound: Bound
    leaves: Sequence[Any]
    call_plain: Callable[[], Any]
    kind: str  # of executor
    key: str  # of what is kept
    keeps: bool
    budget_s: float
    runs_plan: bool = False  # whatever plain execution takes

    @property
    def program(self) -> Program:
        return self.bound.program

    @property
    def is_training(self) -> bool:
        """Whether a backward pass is to follow."""
        brought = (*self.leaves, *self.bound.values(self.leaves))
        return torch.is_grad_enabled() and any(
            isinstance(one, torch.Tensor) and one.requires_grad for one in brought
        )

    def values(self) -> List[Any]:
        """Fresh values for a run that is thrown away."""
        return self.bound.values(self.bound.fresh_leaves(self.leaves))


def decide(case: Case, teams: Teams) -> Decision:
    """The best of plain execution, fixed settings and plans of changing widths."""
    start = time.perf_counter()
    found = _kept_decision(case, teams) if case.keeps else None
    if found is not None and case.runs_plan and found.plan is None:
        found = None
    if found is None:
        with teams.lock, case.bound.untouched():
            found = _measured_decision(case, teams)
        if case.keeps:
            kept = Kept(found.call_costs, found.tasks, found.chosen, found.plan, found.times_s, found.bound_s)
            kept_costs.save(case.key, kept)
    found.planning_s = time.perf_counter() - start
    return found


def _kept_decision(case: Case, teams: Teams) -> Optional[Decision]:
    kept = kept_costs.load(case.key, len(case.program.calls))
    if kept is None or (kept.plan is not None and not is_valid(kept.plan, kept.tasks, len(teams.cpus))):
        return None
    executor = None
    if kept.plan is not None:
        executor = executors.make(case.kind, case.program, kept.tasks, kept.plan, teams)
    return Decision(
        kept.chosen, executor, kept.tasks, kept.call_costs, kept.times_s, {}, kept.bound_s, was_kept=True
    )


def _measured_decision(case: Case, teams: Teams) -> Decision:
    started, num_cores = time.perf_counter(), len(teams.cpus)
    kinds = case.bound.captured.kinds
    costs = measure_costs(
        case.program, kinds, case.values, teams, widths_for(num_cores), _MEASURING * case.budget_s
    )
    if case.is_training and not case.runs_plan:
        back = measure_backward(
            case.program, kinds, case.values, teams, widths_for(num_cores), _MEASURING_BACK * case.budget_s
        )
        costs = with_backward(costs, back)
    if case.runs_plan:
        return _planned_decision(case, teams, costs)
    tasks, plans = candidate_plans(case.program, costs, num_cores, case.kind)
    runs = {name: executors.make(case.kind, case.program, tasks, plan, teams) for name, plan in plans.items()}
    if "moldable" in runs and not case.is_training:  # once more with what its tasks took beside each other
        latest = "moldable"
        for name in _CORRECTED:
            if time.perf_counter() - started > (1 - _RACING) * case.budget_s:
                break
            again = _refined(case, runs[latest], tasks, costs, num_cores)
            if again is None:
                break
            latest, plans[name] = name, again
            runs[name] = executors.make(case.kind, case.program, tasks, again, teams)
    times = timed_in_turns(_candidates(case, runs), _RACING * case.budget_s) if runs else {PLAIN: [0.0]}
    chosen = best_of(times, PLAIN)
    return Decision(
        chosen,
        runs.get(chosen),
        tasks,
        costs,
        {name: typical(ones) for name, ones in times.items()} if runs else {},
        {name: plan.expected_s for name, plan in plans.items()},
        lower_bound_s(tasks, task_costs(tasks, costs), num_cores),
    )


def _planned_decision(case: Case, teams: Teams, costs: Tuple[Dict[int, float], ...]) -> Decision:
    """The plan of changing widths, untimed."""
    num_cores, handover = len(teams.cpus), executors.handover_s(case.kind)
    tasks = merged(case.program, costs, _OVERHEADS_PER_TASK * handover)
    by_task = task_costs(tasks, costs)
    plan = moldable(tasks, by_task, num_cores, handover, _kinds(case.program, tasks))
    executor = executors.make(case.kind, case.program, tasks, plan, teams)
    bound = lower_bound_s(tasks, by_task, num_cores)
    return Decision("moldable", executor, tasks, costs, {}, {"moldable": plan.expected_s}, bound)


def candidate_plans(
    program: Program, costs: CallCosts, num_cores: int, kind: str
) -> Tuple[Tuple[Task, ...], Dict[str, Plan]]:
    """Tasks, and the plans worth timing: changing widths, and the fixed settings that look best."""
    handover = executors.handover_s(kind)
    tasks = merged(program, costs, _OVERHEADS_PER_TASK * handover)
    by_task = task_costs(tasks, costs)
    found = {"moldable": moldable(tasks, by_task, num_cores, handover, _kinds(program, tasks))}
    for inter in range(2, num_cores + 1):
        if num_cores % inter == 0 and tasks and num_cores // inter in by_task[0]:
            found[f"{inter}×{num_cores // inter}"] = fixed(tasks, by_task, num_cores, handover, inter)
    best = sorted(found, key=lambda name: found[name].expected_s)
    kept = {"moldable", *[name for name in best if name != "moldable"][:2]}
    plans = {name: plan for name, plan in found.items() if name in kept and not _is_serial(plan)}
    if kind == "native":  # what plain execution does, without Python between the operators
        plans[f"1×{num_cores}"] = fixed(tasks, by_task, num_cores, handover, 1)
    return tasks, plans


def _is_serial(plan: Plan) -> bool:
    """Whether it runs one task after the other on all cores."""
    return all(step.lane == CALLER for step in plan.steps)


def _kinds(program: Program, tasks: Sequence[Task]) -> List[Hashable]:
    return [tuple(str(program.calls[call].target) for call in task.calls) for task in tasks]


def _refined(
    case: Case, executor: executors.Executor, tasks: Tuple[Task, ...], costs: CallCosts, num_cores: int
) -> Optional[Plan]:
    """The plan for costs corrected by what the first plan's tasks took, if it is another one."""
    seen: List[List[Span]] = []
    until = time.perf_counter() + _CORRECTING * case.budget_s
    while len(seen) < 2 or (len(seen) < 5 and time.perf_counter() < until):
        executor.run(case.values())
        seen.append(list(executor.spans))
    by_task = corrected(task_costs(tasks, costs), executor.plan, seen[1:])
    kinds = _kinds(case.program, tasks)
    again = moldable(tasks, by_task, num_cores, executors.handover_s(case.kind), kinds)
    same = [(s.task, s.lane) for s in again.steps] == [(s.task, s.lane) for s in executor.plan.steps]
    return None if same and again.lanes == executor.plan.lanes else again


def _candidates(case: Case, runs: Mapping[str, executors.Executor]) -> Dict[str, Callable[[], object]]:
    def planned(executor: executors.Executor) -> Callable[[], object]:
        def run() -> object:
            values = case.values()
            executor.run(values)
            return differentiated(case, case.bound.result(values))

        return run

    found: Dict[str, Callable[[], object]] = {PLAIN: lambda: differentiated(case, case.call_plain())}
    found.update({name: planned(executor) for name, executor in runs.items()})
    return found


def differentiated(case: Case, result: Any) -> object:
    """Runs the backward pass too where there is one, without leaving gradients behind."""
    if not torch.is_grad_enabled():
        return None
    outputs = [
        one for one in pytree.tree_leaves(result) if isinstance(one, torch.Tensor) and one.requires_grad
    ]
    brought = case.bound.values(case.leaves)
    wanted = [one for one in brought if isinstance(one, torch.Tensor) and one.requires_grad and one.is_leaf]
    if not outputs or not wanted:
        return None
    loss = sum(one.float().sum() if not one.is_complex() else one.abs().sum() for one in outputs)
    return torch.autograd.grad(loss, wanted, allow_unused=True)  # type: ignore[arg-type]
