"""Decide what runs for a captured program: measure costs, build plans, time candidates, or load a decision.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Dict, Hashable, List, Mapping, Optional, Sequence, Tuple

import torch
from torch.utils import _pytree as pytree

from corewise.accelerate.capture.expanded_results import expand_objects
from corewise.accelerate.capture.program import Program
from corewise.accelerate.malleable.capture.module_capture import CapturedProgram
from corewise.accelerate.malleable.execute import executor_choice
from corewise.accelerate.malleable.execute.module_binding import BoundProgram
from corewise.accelerate.malleable.execute.thread_teams import Teams
from corewise.accelerate.malleable.execute.timeline import Span
from corewise.accelerate.malleable.plan import cost_cache
from corewise.accelerate.malleable.plan.backward_costs import add_backward_costs, measure_backward
from corewise.accelerate.malleable.plan.candidate_choice import (
    MAX_ROUNDS,
    choose_fastest,
    compute_median,
    explain_losses,
    is_doubtful,
    time_candidates,
)
from corewise.accelerate.malleable.plan.cost_cache import PLAIN, CachedPlan
from corewise.accelerate.malleable.plan.cost_feedback import update_costs
from corewise.accelerate.malleable.plan.custom_backward import suspend_hooks
from corewise.accelerate.malleable.plan.forward_costs import measure_costs
from corewise.accelerate.malleable.plan.lane_widths import list_widths
from corewise.accelerate.malleable.plan.plan_candidates import plan_fixed, plan_moldable
from corewise.accelerate.malleable.plan.schedule import CALLER, LanePlan, OperatorTask
from corewise.accelerate.malleable.plan.task_merging import CallCosts, find_chains, merge_calls, sum_task_costs
from corewise.accelerate.malleable.plan.time_bounds import compute_lower_bound_s

# Share of the planning budget for one correction of the costs.
_CORRECTION_SHARE = 0.05
_CORRECTED_NAMES = ("moldable, corrected", "moldable, corrected twice")
# Share of the budget for timing candidates that need no teams, before teams exist.
_ALONE_SHARE = 0.05
# For programs shorter than this, in seconds, more fixed settings are timed.
_SHORT_PROGRAM_S = 0.03
# Operators that can be cut along the batch must take at least this share of the time.
_MIN_CUT_SHARE = 0.5
# Seconds to take a view of a batch or to concatenate small results.
_VIEW_S = 5e-6
# A task is at least as long as this many hand-overs.
_OVERHEADS_PER_TASK = 2
# Maximum number of races if plain execution wins narrowly.
_MAX_RACES = 3
# Shares of the planning budget.
_FORWARD_SHARE, _BACKWARD_SHARE, _RACING_SHARE = 0.45, 0.2, 0.35


@dataclass
class PlanDecision:
    """What runs for one input signature, and its measurements."""

    chosen: str
    # None: the module itself runs.
    executor: Optional[executor_choice.Executor]
    tasks: Tuple[OperatorTask, ...]
    call_costs: Tuple[Dict[int, float], ...]
    # Median seconds of the timed candidates.
    times_s: Dict[str, float]
    # Expected seconds of the plans.
    expected_s: Dict[str, float] = field(default_factory=dict)
    bound_s: float = 0.0
    planning_s: float = 0.0
    is_cached: bool = False
    # Why each timed candidate that does not run has lost.
    losses: Dict[str, str] = field(default_factory=dict)
    # Measured costs, if call_costs were derived from them.
    measured_costs: Optional[Tuple[Dict[int, float], ...]] = None
    # It belongs to the program that is cut along the batch.
    is_in_slices: bool = False
    # Plan and costs come from inputs of another size.
    is_borrowed: bool = False

    @property
    def plan(self) -> Optional[LanePlan]:
        """The plan that runs, None for plain execution."""
        return self.executor.plan if self.executor else None


@dataclass(frozen=True)
class PlanningCase:
    """A program with inputs to plan for."""

    bound: BoundProgram
    leaves: Sequence[Any]
    call_plain: Callable[[], Any]
    # "native" or "python".
    executor_name: str
    # Cache key of the decision.
    key: str
    uses_cache: bool
    budget_s: float
    # Run a plan even if plain execution is faster.
    forces_plan: bool = False
    # Computes the cache key for another number of cores.
    build_key: Optional[Callable[[int], str]] = None
    # The same case for the program cut along the batch.
    in_slices: Optional[PlanningCase] = None

    @property
    def program(self) -> Program:
        return self.bound.program

    @property
    def is_training(self) -> bool:
        """Whether a backward pass will follow."""
        values = (*self.leaves, *self.bound.collect_unpacked_values(self.leaves))
        return torch.is_grad_enabled() and any(
            isinstance(value, torch.Tensor) and value.requires_grad for value in values
        )

    def drop_inputs(self) -> PlanningCase:
        """Drop the inputs, with their autograd history, once the decision is made."""
        return replace(self, leaves=(), call_plain=lambda: None, in_slices=None)

    def select_form(self, decision: PlanDecision) -> PlanningCase:
        """Select this case or the one in slices, whichever the decision is for."""
        return self.in_slices if decision.is_in_slices and self.in_slices is not None else self

    def collect_values(self) -> List[Any]:
        """Collect fresh values for a run whose result is thrown away."""
        return self.bound.collect_values(self.bound.copy_written_leaves(self.leaves))


def decide(case: PlanningCase, teams: Teams) -> PlanDecision:
    """Choose the best of plain execution, fixed settings and moldable plans."""
    start = time.perf_counter()
    decision = _load_decision(case, teams) if case.uses_cache else None
    if decision is None:
        with teams.lock, case.bound.keep_state():
            decision = _decide_uncached(case, teams)
            # Measuring and the losing plans started threads too.
            teams.end_unused()
        if case.uses_cache:
            cost_cache.save_plan(case.select_form(decision).key, _build_cached_plan(decision))
    decision.planning_s = time.perf_counter() - start
    return decision


def _load_decision(case: PlanningCase, teams: Teams) -> Optional[PlanDecision]:
    """Load an earlier decision: only the winner is cached, in slices or not."""
    for form in (case.in_slices, case):
        cached = _load_fitting(form, form.key, teams) if form is not None else None
        if form is not None and cached is not None and not (case.forces_plan and cached.plan is None):
            return replace(_restore_decision(form, cached, teams), is_in_slices=form is not case)
    return None


def load_decision_for(case: PlanningCase, teams: Teams) -> Optional[PlanDecision]:
    """Load the decision of an earlier run for as many cores as these teams have."""
    if not case.uses_cache or case.build_key is None:
        return None
    cached = _load_fitting(case, case.build_key(len(teams.cpus)), teams)
    if cached is None or (case.forces_plan and cached.plan is None):
        return None
    return _restore_decision(case, cached, teams)


def _load_fitting(case: PlanningCase, key: str, teams: Teams) -> Optional[CachedPlan]:
    """Load a cached plan if planning this program on these cores would give its tasks."""
    cached = cost_cache.load_plan(key, len(case.program.calls))
    if cached is None or any(max(cost) != len(teams.cpus) for cost in cached.call_costs):
        return None
    overhead_s = _OVERHEADS_PER_TASK * executor_choice.estimate_handover_s(case.executor_name)
    return cached if cached.tasks == merge_calls(case.program, cached.call_costs, overhead_s) else None


def _restore_decision(case: PlanningCase, cached: CachedPlan, teams: Teams) -> PlanDecision:
    executor, expected = None, {}
    if cached.plan is not None:
        executor = executor_choice.build_executor(case.executor_name, case.program, cached.tasks, cached.plan, teams)
        expected = {cached.chosen: cached.plan.expected_s}
    return PlanDecision(
        cached.chosen,
        executor,
        cached.tasks,
        cached.call_costs,
        cached.times_s,
        expected,
        cached.bound_s,
        is_cached=True,
        losses=dict(cached.losses),
    )


def _build_cached_plan(decision: PlanDecision) -> CachedPlan:
    return CachedPlan(
        decision.call_costs,
        decision.tasks,
        decision.chosen,
        decision.plan,
        decision.times_s,
        decision.bound_s,
        decision.losses,
    )


def _decide_uncached(case: PlanningCase, teams: Teams) -> PlanDecision:
    started = time.perf_counter()
    alone_s = {} if case.forces_plan or teams.has_threads else _time_alone(case, teams)
    costs = _measure_calls(case, teams)
    if case.forces_plan:
        return decide_untimed(case, teams, costs)
    return _race_plans(case, teams, costs, started, alone_s)


def _time_alone(case: PlanningCase, teams: Teams) -> Dict[str, float]:
    """Time what needs no teams before teams exist: later its threads would go to sleep sooner."""
    num_cores, serial = len(teams.cpus), {}
    if case.executor_name == "native" and not case.program.is_cut:
        tasks = find_chains(case.program)
        plan = plan_fixed(tasks, [dict.fromkeys(list_widths(num_cores), 0.0)] * len(tasks), num_cores, 0.0, 1)
        serial = {
            _name_full_width(num_cores): executor_choice.build_executor(
                case.executor_name, case.program, tasks, plan, teams
            )
        }
    candidates = _build_candidates(case, serial)
    times: Dict[str, List[float]] = {name: [] for name in candidates}
    until, num = time.perf_counter() + _ALONE_SHARE * case.budget_s, 0
    while num < 1 or (num < MAX_ROUNDS and time.perf_counter() < until):
        for name, run in candidates.items():
            began = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - began)
        num += 1
    # The first run is not warm.
    return {name: compute_median(seconds[1:] or seconds) for name, seconds in times.items()}


def _name_full_width(num_cores: int) -> str:
    """Name the plan that equals plain execution, without Python between the operators."""
    return f"1×{num_cores}"


def _measure_calls(case: PlanningCase, teams: Teams) -> Tuple[Dict[int, float], ...]:
    call_signatures, widths = case.bound.captured.call_signatures, list_widths(len(teams.cpus))
    costs = measure_costs(
        case.program, call_signatures, case.collect_values, teams, widths, _FORWARD_SHARE * case.budget_s
    )
    if case.is_training and not case.forces_plan:
        budget_s = _BACKWARD_SHARE * case.budget_s
        backward_costs = measure_backward(case.program, call_signatures, case.collect_values, teams, widths, budget_s)
        costs = add_backward_costs(costs, backward_costs)
    return costs


def _race_plans(
    case: PlanningCase, teams: Teams, costs: Tuple[Dict[int, float], ...], started: float, alone_s: Mapping[str, float]
) -> PlanDecision:
    num_cores = len(teams.cpus)
    tasks, plans = build_candidate_plans(case.program, costs, num_cores, case.executor_name)
    runs = {
        name: executor_choice.build_executor(case.executor_name, case.program, tasks, plan, teams)
        for name, plan in plans.items()
    }
    # Plan again with the times of tasks that ran at the same time.
    if "moldable" in runs and not case.is_training:
        latest = "moldable"
        for name in _CORRECTED_NAMES:
            if time.perf_counter() - started > (1 - _RACING_SHARE) * case.budget_s:
                break
            again = _plan_again(case, runs[latest], tasks, costs, num_cores)
            if again is None:
                break
            latest, plans[name] = name, again
            runs[name] = executor_choice.build_executor(case.executor_name, case.program, tasks, again, teams)
    sliced = _plan_slices(case, costs, num_cores)
    for name, plan in sliced.plans.items():
        assert case.in_slices is not None
        runs[name] = executor_choice.build_executor(
            case.executor_name, case.in_slices.program, sliced.tasks, plan, teams
        )
    times = _race_candidates(case, runs, sliced, num_cores, started) if runs else {PLAIN: [0.0]}
    # It would run without other teams, so its better time without them counts.
    for name in times.keys() & alone_s.keys():
        times[name] = [min(one, alone_s[name]) for one in times[name]]
    chosen = choose_fastest(times, PLAIN)
    is_cut = chosen in sliced.plans
    tasks, costs = (sliced.tasks, sliced.costs) if is_cut else (tasks, costs)
    return PlanDecision(
        chosen,
        runs.get(chosen),
        tasks,
        costs,
        {name: compute_median(seconds) for name, seconds in times.items()} if runs else {},
        {name: plan.expected_s for name, plan in {**plans, **sliced.plans}.items()},
        compute_lower_bound_s(tasks, sum_task_costs(tasks, costs), num_cores),
        is_in_slices=is_cut,
        losses=explain_losses(times, chosen, PLAIN),
    )


@dataclass(frozen=True)
class _SlicedPlans:
    """Plans for the program in slices that are worth timing."""

    tasks: Tuple[OperatorTask, ...] = ()
    costs: Tuple[Dict[int, float], ...] = ()
    plans: Mapping[str, LanePlan] = field(default_factory=dict)


def _plan_slices(case: PlanningCase, costs: CallCosts, num_cores: int) -> _SlicedPlans:
    if case.in_slices is None or case.is_training:
        return _SlicedPlans()
    captured = case.in_slices.bound.captured
    whole_s = sum(costs[call][num_cores] for call in range(len(costs)))
    sliced = estimate_slice_costs(captured, costs)
    shared = {origin for origin, part in zip(captured.origins, captured.program.slices) if part is not None}
    if sum(costs[call][num_cores] for call in shared if call is not None) < _MIN_CUT_SHARE * whole_s:
        return _SlicedPlans()
    tasks, plans = build_candidate_plans(captured.program, sliced, num_cores, case.executor_name)
    num = captured.program.num_slices
    return _SlicedPlans(tasks, sliced, {f"{num} slices, {name}": plan for name, plan in plans.items()})


def estimate_slice_costs(captured: CapturedProgram, costs: CallCosts) -> Tuple[Dict[int, float], ...]:
    """Estimate the costs of slices' calls as shares of the whole batch's costs."""
    num_slices, slice_costs = captured.program.num_slices, []
    for origin, part in zip(captured.origins, captured.program.slices):
        # Calls without origin split the batch or concatenate results.
        if origin is None:
            slice_costs.append(dict.fromkeys(costs[0], _VIEW_S))
        else:
            slice_costs.append({width: s / (1 if part is None else num_slices) for width, s in costs[origin].items()})
    return tuple(slice_costs)


def _race_candidates(
    case: PlanningCase, runs: Mapping[str, executor_choice.Executor], cut: _SlicedPlans, num_cores: int, started: float
) -> Dict[str, List[float]]:
    """Time the candidates; repeat a race that plain execution wins narrowly while there is time."""
    uncut_runs = {name: run for name, run in runs.items() if name not in cut.plans}
    candidates = _build_candidates(case, uncut_runs)
    if case.in_slices is not None:
        sliced_runs = {name: run for name, run in runs.items() if name in cut.plans}
        candidates.update({**_build_candidates(case.in_slices, sliced_runs), PLAIN: candidates[PLAIN]})
    # This plan is usually as fast as plain execution, so it does not make a race doubtful.
    rivals = [name for name in runs if name != _name_full_width(num_cores)]
    for _ in range(_MAX_RACES):
        began = time.perf_counter()
        times = time_candidates(candidates, _RACING_SHARE * case.budget_s)
        now = time.perf_counter()
        is_over = now + (now - began) > started + case.budget_s
        if is_over or choose_fastest(times, PLAIN) != PLAIN or not is_doubtful(times, rivals):
            break
    return times


def decide_untimed(case: PlanningCase, teams: Teams, costs: Tuple[Dict[int, float], ...]) -> PlanDecision:
    """Decide for the moldable plan without timing it."""
    num_cores, handover = len(teams.cpus), executor_choice.estimate_handover_s(case.executor_name)
    tasks = merge_calls(case.program, costs, _OVERHEADS_PER_TASK * handover)
    by_task = sum_task_costs(tasks, costs)
    plan = plan_moldable(tasks, by_task, num_cores, handover, _list_task_targets(case.program, tasks))
    executor = executor_choice.build_executor(case.executor_name, case.program, tasks, plan, teams)
    bound = compute_lower_bound_s(tasks, by_task, num_cores)
    return PlanDecision("moldable", executor, tasks, costs, {}, {"moldable": plan.expected_s}, bound)


def build_candidate_plans(
    program: Program, costs: CallCosts, num_cores: int, executor_name: str
) -> Tuple[Tuple[OperatorTask, ...], Dict[str, LanePlan]]:
    """Build tasks and the plans worth timing: a moldable one, and the most promising fixed settings."""
    handover = executor_choice.estimate_handover_s(executor_name)
    tasks = merge_calls(program, costs, _OVERHEADS_PER_TASK * handover)
    by_task = sum_task_costs(tasks, costs)
    plans_by_name = {"moldable": plan_moldable(tasks, by_task, num_cores, handover, _list_task_targets(program, tasks))}
    for inter in range(2, num_cores + 1):
        if num_cores % inter == 0 and tasks and num_cores // inter in by_task[0]:
            plans_by_name[f"{inter}×{num_cores // inter}"] = plan_fixed(tasks, by_task, num_cores, handover, inter)
    best = sorted(plans_by_name, key=lambda name: plans_by_name[name].expected_s)
    # Short programs leave time for more candidates.
    num_fixed = 4 if plans_by_name["moldable"].expected_s < _SHORT_PROGRAM_S else 2
    selected = {"moldable", *[name for name in best if name != "moldable"][:num_fixed]}
    plans = {name: plan for name, plan in plans_by_name.items() if name in selected and not _is_serial(plan)}
    if executor_name == "native" and not program.is_cut:
        plans[_name_full_width(num_cores)] = plan_fixed(tasks, by_task, num_cores, handover, 1)
    return tasks, plans


def _is_serial(plan: LanePlan) -> bool:
    """Return whether it runs all tasks one after the other on all cores."""
    return all(step.lane == CALLER for step in plan.steps)


def _list_task_targets(program: Program, tasks: Sequence[OperatorTask]) -> List[Hashable]:
    return [tuple(str(program.calls[call].target) for call in task.calls) for task in tasks]


def _plan_again(
    case: PlanningCase,
    executor: executor_choice.Executor,
    tasks: Tuple[OperatorTask, ...],
    costs: CallCosts,
    num_cores: int,
) -> Optional[LanePlan]:
    """Plan with costs corrected by the first plan's task times; None if the plan stays the same."""
    observed: List[List[Span]] = []
    until = time.perf_counter() + _CORRECTION_SHARE * case.budget_s
    while len(observed) < 2 or (len(observed) < 5 and time.perf_counter() < until):
        executor.run(case.collect_values())
        observed.append(list(executor.spans))
    by_task = update_costs(sum_task_costs(tasks, costs), executor.plan, observed[1:])
    targets = _list_task_targets(case.program, tasks)
    again = plan_moldable(tasks, by_task, num_cores, executor_choice.estimate_handover_s(case.executor_name), targets)
    has_same_steps = [(s.task, s.lane) for s in again.steps] == [(s.task, s.lane) for s in executor.plan.steps]
    return None if has_same_steps and again.lanes == executor.plan.lanes else again


def _build_candidates(
    case: PlanningCase, runs: Mapping[str, executor_choice.Executor]
) -> Dict[str, Callable[[], object]]:
    def build_run(executor: executor_choice.Executor) -> Callable[[], object]:
        def run() -> object:
            values = case.collect_values()
            executor.run(values)
            return run_backward(case, case.bound.build_result(values))

        return run

    candidates: Dict[str, Callable[[], object]] = {PLAIN: lambda: run_backward(case, case.call_plain())}
    candidates.update({name: build_run(executor) for name, executor in runs.items()})
    return candidates


def run_backward(case: PlanningCase, result: Any) -> object:
    """Run the backward pass if there is one, without leaving gradients behind."""
    if not torch.is_grad_enabled():
        return None
    outputs = [
        tensor
        for tensor in pytree.tree_leaves(expand_objects(result))
        if isinstance(tensor, torch.Tensor) and tensor.requires_grad
    ]
    values = case.bound.collect_unpacked_values(case.leaves)
    wanted = [
        tensor for tensor in values if isinstance(tensor, torch.Tensor) and tensor.requires_grad and tensor.is_leaf
    ]
    if not outputs or not wanted:
        return None
    loss = sum(tensor.float().sum() if not tensor.is_complex() else tensor.abs().sum() for tensor in outputs)
    with suspend_hooks(wanted):
        return torch.autograd.grad(loss, wanted, allow_unused=True)  # type: ignore[arg-type]
