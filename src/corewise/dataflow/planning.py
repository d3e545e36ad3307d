"""From a captured program to what runs: costs, plans, candidates timed, the best chosen; or what was kept.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Dict, Hashable, List, Mapping, Optional, Sequence, Tuple

import torch
from torch.utils import _pytree as pytree

from corewise.dataflow import executors, kept_costs
from corewise.dataflow.binding import Bound
from corewise.dataflow.bounds import lower_bound_s
from corewise.dataflow.capture import Captured
from corewise.dataflow.choose import MOST_ROUNDS, best_of, is_doubtful, timed_in_turns, typical
from corewise.dataflow.cost import measure_costs
from corewise.dataflow.feedback import corrected
from corewise.dataflow.kept_costs import PLAIN, Kept
from corewise.dataflow.lanes import widths_for
from corewise.dataflow.own_backward import silent_hooks
from corewise.dataflow.plan import fixed, moldable
from corewise.dataflow.program import Program
from corewise.dataflow.schedule import CALLER, Plan, Task
from corewise.dataflow.tasks import CallCosts, chains, merged, task_costs
from corewise.dataflow.teams import Teams
from corewise.dataflow.timeline import Span
from corewise.dataflow.training_cost import measure_backward, with_backward

_CORRECTING = 0.05  # share of the time for one correction
_CORRECTED = ("moldable, corrected", "moldable, corrected twice")
_ALONE = 0.05  # share of the time for what runs without them before there are teams
_SHORT_S = 0.03  # a program of which more fixed settings are worth timing
_LEAST_CUT = 0.5  # of the time must be that of operators that can be cut along the batch
_VIEW_S = 5e-6  # taking a batch apart or putting a small result together
_OVERHEADS_PER_TASK = 2  # a task takes at least so many hand-overs
_MOST_RACES = 3  # where plain execution wins narrowly
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
    is_in_slices: bool = False  # it is for the program that is cut along the batch
    is_borrowed: bool = False  # plan and costs are those of inputs of another size

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
    key_for: Optional[Callable[[int], str]] = None  # the key on another number of cores
    in_slices: Optional[Case] = None  # the same, cut along the batch

    @property
    def program(self) -> Program:
        return self.bound.program

    @property
    def is_training(self) -> bool:
        """Whether a backward pass is to follow."""
        brought = (*self.leaves, *self.bound.brought(self.leaves))
        return torch.is_grad_enabled() and any(
            isinstance(one, torch.Tensor) and one.requires_grad for one in brought
        )

    def without_inputs(self) -> Case:
        """What is needed once it is decided; the inputs, with their history, are let go."""
        return replace(self, leaves=(), call_plain=lambda: None, in_slices=None)

    def of(self, decision: Decision) -> Case:
        """This one, or the one in slices, whichever was decided for."""
        return self.in_slices if decision.is_in_slices and self.in_slices is not None else self

    def values(self) -> List[Any]:
        """Fresh values for a run that is thrown away."""
        return self.bound.values(self.bound.fresh_leaves(self.leaves))


def decide(case: Case, teams: Teams) -> Decision:
    """The best of plain execution, fixed settings and plans of changing widths."""
    start = time.perf_counter()
    found = _kept_decision(case, teams) if case.keeps else None
    if found is None:
        with teams.lock, case.bound.untouched():
            found = _decision(case, teams)
            teams.end_unused()  # measuring and losing plans had threads of their own
        if case.keeps:
            kept_costs.save(case.of(found).key, _to_keep(found))
    found.planning_s = time.perf_counter() - start
    return found


def _kept_decision(case: Case, teams: Teams) -> Optional[Decision]:
    """What was found before: only the winner is kept, in slices or not."""
    for one in (case.in_slices, case):
        kept = _fitting(one, one.key, teams) if one is not None else None
        if one is not None and kept is not None and not (case.runs_plan and kept.plan is None):
            return replace(_of_kept(one, kept, teams), is_in_slices=one is not case)
    return None


def kept_for(case: Case, teams: Teams) -> Optional[Decision]:
    """What an earlier start found for as many cores as these teams have."""
    if not case.keeps or case.key_for is None:
        return None
    kept = _fitting(case, case.key_for(len(teams.cpus)), teams)
    if kept is None or (case.runs_plan and kept.plan is None):
        return None
    return _of_kept(case, kept, teams)


def _fitting(case: Case, key: str, teams: Teams) -> Optional[Kept]:
    """What was kept, if it is what planning this program on these cores gives."""
    kept = kept_costs.load(key, len(case.program.calls))
    if kept is None or any(max(cost) != len(teams.cpus) for cost in kept.call_costs):
        return None
    overhead_s = _OVERHEADS_PER_TASK * executors.handover_s(case.kind)
    return kept if kept.tasks == merged(case.program, kept.call_costs, overhead_s) else None


def _of_kept(case: Case, kept: Kept, teams: Teams) -> Decision:
    executor, expected = None, {}
    if kept.plan is not None:
        executor = executors.make(case.kind, case.program, kept.tasks, kept.plan, teams)
        expected = {kept.chosen: kept.plan.expected_s}
    return Decision(
        kept.chosen,
        executor,
        kept.tasks,
        kept.call_costs,
        kept.times_s,
        expected,
        kept.bound_s,
        was_kept=True,
    )


def _to_keep(found: Decision) -> Kept:
    return Kept(found.call_costs, found.tasks, found.chosen, found.plan, found.times_s, found.bound_s)


def _decision(case: Case, teams: Teams) -> Decision:
    started = time.perf_counter()
    alone_s = {} if case.runs_plan or teams.has_threads else _alone_s(case, teams)
    costs = _measured(case, teams)
    if case.runs_plan:
        return planned_decision(case, teams, costs)
    return _raced_decision(case, teams, costs, started, alone_s)


def _alone_s(case: Case, teams: Teams) -> Dict[str, float]:
    """Seconds of what needs no other teams while there are none: beside them its threads would sleep."""
    num_cores, serial = len(teams.cpus), {}
    if case.kind == "native" and not case.program.is_cut:
        tasks = chains(case.program)
        plan = fixed(tasks, [dict.fromkeys(widths_for(num_cores), 0.0)] * len(tasks), num_cores, 0.0, 1)
        serial = {_full_width(num_cores): executors.make(case.kind, case.program, tasks, plan, teams)}
    candidates = _candidates(case, serial)
    times: Dict[str, List[float]] = {name: [] for name in candidates}
    until, num = time.perf_counter() + _ALONE * case.budget_s, 0
    while num < 1 or (num < MOST_ROUNDS and time.perf_counter() < until):
        for name, run in candidates.items():
            began = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - began)
        num += 1
    return {name: typical(ones[1:] or ones) for name, ones in times.items()}  # the first is not warm


def _full_width(num_cores: int) -> str:
    """The name of what plain execution does, without Python between the operators."""
    return f"1×{num_cores}"


def _measured(case: Case, teams: Teams) -> Tuple[Dict[int, float], ...]:
    kinds, widths = case.bound.captured.kinds, widths_for(len(teams.cpus))
    costs = measure_costs(case.program, kinds, case.values, teams, widths, _MEASURING * case.budget_s)
    if case.is_training and not case.runs_plan:
        budget_s = _MEASURING_BACK * case.budget_s
        back = measure_backward(case.program, kinds, case.values, teams, widths, budget_s)
        costs = with_backward(costs, back)
    return costs


def _raced_decision(
    case: Case,
    teams: Teams,
    costs: Tuple[Dict[int, float], ...],
    started: float,
    alone_s: Mapping[str, float],
) -> Decision:
    num_cores = len(teams.cpus)
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
    cut = _cut_plans(case, costs, num_cores)
    for name, plan in cut.plans.items():
        assert case.in_slices is not None
        runs[name] = executors.make(case.kind, case.in_slices.program, cut.tasks, plan, teams)
    times = _raced(case, runs, cut, num_cores, started) if runs else {PLAIN: [0.0]}
    for name in times.keys() & alone_s.keys():  # as it runs where no plan with lanes does
        times[name] = [min(one, alone_s[name]) for one in times[name]]
    chosen = best_of(times, PLAIN)
    is_cut = chosen in cut.plans
    tasks, costs = (cut.tasks, cut.costs) if is_cut else (tasks, costs)
    return Decision(
        chosen,
        runs.get(chosen),
        tasks,
        costs,
        {name: typical(ones) for name, ones in times.items()} if runs else {},
        {name: plan.expected_s for name, plan in {**plans, **cut.plans}.items()},
        lower_bound_s(tasks, task_costs(tasks, costs), num_cores),
        is_in_slices=is_cut,
    )


@dataclass(frozen=True)
class _Cut:
    """Plans for the program in slices, as far as they are worth timing."""

    tasks: Tuple[Task, ...] = ()
    costs: Tuple[Dict[int, float], ...] = ()
    plans: Mapping[str, Plan] = field(default_factory=dict)


def _cut_plans(case: Case, costs: CallCosts, num_cores: int) -> _Cut:
    if case.in_slices is None or case.is_training:
        return _Cut()
    captured = case.in_slices.bound.captured
    whole_s = sum(costs[call][num_cores] for call in range(len(costs)))
    sliced = costs_of_slices(captured, costs)
    shared = {origin for origin, part in zip(captured.origins, captured.program.slices) if part is not None}
    if sum(costs[call][num_cores] for call in shared if call is not None) < _LEAST_CUT * whole_s:
        return _Cut()
    tasks, plans = candidate_plans(captured.program, sliced, num_cores, case.kind)
    num = captured.program.num_slices
    return _Cut(tasks, sliced, {f"{num} slices, {name}": plan for name, plan in plans.items()})


def costs_of_slices(captured: Captured, costs: CallCosts) -> Tuple[Dict[int, float], ...]:
    """What calls of slices should take: their share of what the whole batch does."""
    num, found = captured.program.num_slices, []
    for origin, part in zip(captured.origins, captured.program.slices):
        if origin is None:  # taking apart and putting together
            found.append(dict.fromkeys(costs[0], _VIEW_S))
        else:
            found.append({width: s / (1 if part is None else num) for width, s in costs[origin].items()})
    return tuple(found)


def _raced(
    case: Case, runs: Mapping[str, executors.Executor], cut: _Cut, num_cores: int, started: float
) -> Dict[str, List[float]]:
    """Seconds of the candidates' runs; plain execution has to win a narrow race again while there is time."""
    whole = {name: run for name, run in runs.items() if name not in cut.plans}
    candidates = _candidates(case, whole)
    if case.in_slices is not None:
        sliced = {name: run for name, run in runs.items() if name in cut.plans}
        candidates.update({**_candidates(case.in_slices, sliced), PLAIN: candidates[PLAIN]})
    rivals = [name for name in runs if name != _full_width(num_cores)]  # that one is as fast as a rule
    for _ in range(_MOST_RACES):
        began = time.perf_counter()
        times = timed_in_turns(candidates, _RACING * case.budget_s)
        now = time.perf_counter()
        is_over = now + (now - began) > started + case.budget_s
        if is_over or best_of(times, PLAIN) != PLAIN or not is_doubtful(times, rivals):
            break
    return times


def planned_decision(case: Case, teams: Teams, costs: Tuple[Dict[int, float], ...]) -> Decision:
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
    num_fixed = 4 if found["moldable"].expected_s < _SHORT_S else 2  # short ones are timed in no time
    kept = {"moldable", *[name for name in best if name != "moldable"][:num_fixed]}
    plans = {name: plan for name, plan in found.items() if name in kept and not _is_serial(plan)}
    if kind == "native" and not program.is_cut:
        plans[_full_width(num_cores)] = fixed(tasks, by_task, num_cores, handover, 1)
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
    brought = case.bound.brought(case.leaves)
    wanted = [one for one in brought if isinstance(one, torch.Tensor) and one.requires_grad and one.is_leaf]
    if not outputs or not wanted:
        return None
    loss = sum(one.float().sum() if not one.is_complex() else one.abs().sum() for one in outputs)
    with silent_hooks(wanted):
        return torch.autograd.grad(loss, wanted, allow_unused=True)  # type: ignore[arg-type]
