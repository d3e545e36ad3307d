"""Plan and run a module for inputs of one signature.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import torch
from torch import nn
from torch.utils import _pytree as pytree

from corewise.accelerate.capture.expanded_results import expand_objects
from corewise.accelerate.capture.input_signature import InputSignature
from corewise.accelerate.capture.module_export import CaptureError, separate_inputs
from corewise.accelerate.capture.program import Program
from corewise.accelerate.malleable.adaptive_width import OnlineRace, interpolate_costs
from corewise.accelerate.malleable.call_counts import PLAIN_IS_BEST
from corewise.accelerate.malleable.capture.module_capture import capture
from corewise.accelerate.malleable.capture.replay_check import (
    CHANGED_ATTRIBUTES,
    RunResult,
    check_replayable,
    find_difference,
)
from corewise.accelerate.malleable.execute import executor_choice
from corewise.accelerate.malleable.execute.module_binding import BoundProgram
from corewise.accelerate.malleable.execute.thread_teams import Teams
from corewise.accelerate.malleable.execute.timeline import TimelineEntry
from corewise.accelerate.malleable.explanation import describe_plan, describe_task
from corewise.accelerate.malleable.plan import cost_cache
from corewise.accelerate.malleable.plan.cost_cache import PLAIN
from corewise.accelerate.malleable.plan.lane_widths import list_widths
from corewise.accelerate.malleable.plan.planner import (
    PlanDecision,
    PlanningCase,
    build_candidate_plans,
    decide,
    decide_untimed,
    load_decision_for,
)
from corewise.accelerate.malleable.plan.task_merging import build_call_graph

ONE_CORE = "this process may use only one core"
# Share of the planning budget that is used while a call waits for the plan.
_BUDGET_SHARE_DURING_CALL = 0.25


class PlannedModule:
    """A plan for one input signature, or the reason why the module itself runs."""

    def __init__(
        self,
        bound: Optional[BoundProgram] = None,
        decision: Optional[PlanDecision] = None,
        case: Optional[PlanningCase] = None,
        teams: Optional[Teams] = None,
        reason: str = "",
        needs_more_cores: bool = False,
    ) -> None:
        self.needs_more_cores = needs_more_cores
        self.bound, self.decision, self.case, self.reason = bound, decision, case, reason
        # The teams that the decision was made for.
        self._teams = teams
        self._race: Optional[OnlineRace] = None
        # Cores at the last call.
        self._num_cores = len(teams.cpus) if teams is not None else 0
        # Plain execution was best on fewer cores than there are now.
        self._needs_planning = False
        self._began_s = 0.0
        self._last_run: Optional[Tuple[executor_choice.Executor, PlanDecision]] = None
        # The module's forward changed attributes. If only the first one does, planning succeeds afterwards.
        self.changed_attributes = reason.startswith(CHANGED_ATTRIBUTES)
        # Whether a call had this signature since.
        self.was_called = False
        # Number of the last call that used this plan.
        self.last_used_call = 0
        self._drop_unused_packs()

    def _drop_unused_packs(self) -> None:
        """Free packed weights where no plan uses them."""
        if self.bound is not None and not self.is_planned:
            self.bound.drop_packs()

    @property
    def is_planned(self) -> bool:
        """Whether a plan runs, or may run after the allocation changed."""
        return self.decision is not None and (self.decision.executor is not None or self._race is not None)

    @property
    def has_packs(self) -> bool:
        """Whether it holds weights packed for its inputs."""
        return self.bound is not None and self.is_planned and bool(self.bound.program.packs)

    def is_plain_and_short(self, limit_s: float) -> bool:
        """Return whether plain execution was best and takes less than `limit_s` seconds."""
        if self.decision is None or self.is_planned:
            return False
        return self.decision.times_s.get(PLAIN, limit_s) < limit_s

    def explain_plain_call(self) -> str:
        """Explain why a call with this signature runs the module itself."""
        return self.reason or PLAIN_IS_BEST

    def can_plan(self, num_cores: int) -> bool:
        """Return whether a plan runs, or should be tried because the process got more cores."""
        if self.decision is None:
            return False
        has_grown, self._num_cores = num_cores > self._num_cores, num_cores
        self._needs_planning = (self._needs_planning or has_grown) and self.decision.executor is None
        return self.is_planned or self._needs_planning

    def run(self, leaves: Sequence[Any], teams: Teams, plain: Callable[[], Any]) -> Any:
        """Run the model on these inputs and return its result."""
        assert self.bound is not None
        assert self.decision is not None
        race, decision = self._race, self.decision
        name = race.next_name() if race else "planned"
        began = time.perf_counter()
        executor = decision.executor
        if executor is None or name == "plain" or not self.bound.can_run(leaves):
            result = plain()
        else:
            result = self._run_plan(executor, decision, leaves, plain)
        if race is not None:
            self._record_time(race, name, time.perf_counter() - began)
        return result

    def _run_plan(
        self,
        executor: executor_choice.Executor,
        decision: PlanDecision,
        leaves: Sequence[Any],
        plain: Callable[[], Any],
    ) -> Any:
        assert self.bound is not None
        # Another caller may have planned for other cores since.
        teams = executor.teams
        values = self.bound.collect_steady_values(leaves)
        if values is None:
            return plain()
        with teams.lock:
            # Another caller may have closed the teams, or moved to other cores.
            is_open = teams.is_open
            if is_open:
                self._began_s = time.perf_counter()
                executor.run(values)
                self._last_run = (executor, decision)
        return self.bound.build_result(values) if is_open else plain()

    def _record_time(self, race: OnlineRace, name: str, seconds: float) -> None:
        winner = race.record(name, seconds)
        if winner is not None and self.decision is not None:
            self._race = None
            times = race.compute_medians_s()
            self.decision.times_s = {PLAIN: times["plain"], self.decision.chosen: times["planned"]}
            self.decision.losses = {} if winner == "planned" else {self.decision.chosen: race.explain_loss()}
            if winner == "plain":
                self.decision.executor = None
                self.decision.chosen = "plain"
                self._drop_unused_packs()

    def follow_allocation(self, teams: Teams) -> None:
        """Plan for another allocation from known costs; real calls decide whether the plan runs."""
        if teams is self._teams and not self._needs_planning:
            return
        self._needs_planning = False
        assert self.case is not None
        assert self.decision is not None
        num_cores = len(teams.cpus)
        measured_costs = self.decision.measured_costs or self.decision.call_costs
        decision = load_decision_for(self.case, teams)
        if decision is not None:
            self.decision, self._race, self._teams = decision, None, teams
            self._drop_unused_packs()
            return
        costs = interpolate_costs(measured_costs, list_widths(num_cores))
        is_borrowed = self.decision.is_borrowed
        if self.case.forces_plan:
            self.decision = decide_untimed(self.case, teams, costs)
        else:
            self.decision = self._plan_untimed(self.case, costs, teams)
        self.decision.measured_costs, self.decision.is_borrowed = measured_costs, is_borrowed
        is_open = self.decision.executor is not None and not self.case.forces_plan
        self._race = OnlineRace() if is_open else None
        self._teams = teams
        self._drop_unused_packs()

    @staticmethod
    def _plan_untimed(case: PlanningCase, costs: Tuple[Dict[int, float], ...], teams: Teams) -> PlanDecision:
        """Build the moldable plan if it differs from plain execution, without timing it."""
        tasks, plans = build_candidate_plans(case.program, costs, len(teams.cpus), case.executor_name)
        plan = plans.get("moldable")
        if plan is None:
            return PlanDecision("plain", None, tasks, costs, {}, {})
        executor = executor_choice.build_executor(case.executor_name, case.program, tasks, plan, teams)
        return PlanDecision("moldable", executor, tasks, costs, {}, {"moldable": plan.expected_s})

    def build_timeline(self) -> List[TimelineEntry]:
        """List the tasks of the last planned call, with its backward pass if it ran."""
        if self._last_run is None or self.bound is None:
            return []
        executor, decision = self._last_run
        backward_spans = [span for span in executor.backward_spans if span.start_s >= self._began_s]
        names = [describe_task(self.bound.program, task, decision.call_costs) for task in decision.tasks]
        entries = []
        for spans, is_backward in ((executor.spans, False), (backward_spans, True)):
            for span in sorted(spans, key=lambda one: (one.start_s, one.task)):
                lane = executor.plan.lanes[span.lane]
                cpus = executor.teams.cpus[lane.first : lane.first + lane.width]
                start, end = span.start_s - self._began_s, span.end_s - self._began_s
                entries.append(TimelineEntry(span.task, names[span.task], span.lane, cpus, start, end, is_backward))
        return entries

    def explain(self, cpus: Tuple[int, ...], no_native: str) -> str:
        """Describe what runs and why."""
        if self.decision is None or self.bound is None:
            return f"runs unchanged: {self.reason}."
        decision = self.decision
        text = describe_plan(
            self.bound.program,
            decision.tasks,
            decision.plan,
            decision.call_costs,
            cpus,
            decision.times_s,
            decision.expected_s,
            decision.chosen,
            decision.bound_s,
            decision.is_borrowed,
            decision.losses,
        )
        if decision.is_borrowed:
            source = "from inputs of another size"
        else:
            source = "cached by an earlier run" if decision.is_cached else "measured"
        executor_name = self.case.executor_name if self.case else "python"
        suffix = f" ({no_native})" if executor_name == "python" and no_native else ""
        planned = f"planned in {decision.planning_s:.2g} s"
        return f"{text}\nCosts {source}; {planned}; {executor_name} executor{suffix}."


@dataclass(frozen=True)
class PlanRequest:
    """Inputs to plan for, and options."""

    module: nn.Module
    args: Tuple[Any, ...]
    kwargs: Mapping[str, Any]
    signature: InputSignature
    executor: str
    options: Mapping[str, Any]
    # Plans of other signatures that may be reused where a call must not wait for measuring.
    known_plans: Tuple[PlannedModule, ...] = ()
    # Weights may be packed beforehand.
    packs: bool = False
    # Layers may run on our kernels.
    own_kernels: bool = False
    # Convolutions may run on our Winograd kernel.
    winograd: bool = True


def plan_inputs(request: PlanRequest, teams: Optional[Teams]) -> PlannedModule:
    """Plan for these inputs; the result says why if there is no plan."""
    leaves, spec = pytree.tree_flatten((request.args, dict(request.kwargs)))
    if teams is None:
        return PlannedModule(reason=ONE_CORE, needs_more_cores=True)
    if any(isinstance(leaf, torch.Tensor) and leaf.numel() == 0 for leaf in leaves):
        return PlannedModule(reason="an input is empty")
    try:
        with torch.inference_mode(False), torch.set_grad_enabled(request.signature.grad):
            separated = separate_inputs([_copy_inference_tensor(leaf) for leaf in leaves], request.module)
            case, difference, expected = _capture_checked_case(request, separated, spec, teams)
            difference = difference or (_find_shared_memory(case, spec) if request.signature.grad else "")
            if difference:
                return PlannedModule(reason=difference)
            if case.in_slices is not None and not _is_equivalent(case.in_slices, expected):
                case = replace(case, in_slices=None)
            planned = _adopt_plan(request, case, teams)
            if planned is not None:
                return planned
            decision = decide(case, teams)
            decided = case.select_form(decision)
            return PlannedModule(decided.bound, decision, decided.drop_inputs(), teams)
    except CaptureError as problem:
        return PlannedModule(reason=str(problem))
    # Planning is optional. Errors of the module itself show when it is called.
    except Exception as problem:
        lines = str(problem).splitlines() or [""]
        return PlannedModule(reason=f"planning failed: {type(problem).__name__}: {lines[0][:200]}")


def _capture_checked_case(
    request: PlanRequest, leaves: Sequence[Any], spec: Any, teams: Teams
) -> Tuple[PlanningCase, str, Optional[RunResult]]:
    """Capture the program and compare it with the module.

    Returns the case, what differs, and the module's result. Weights are packed, and our kernels run, only
    where the results are equal.
    """
    without_winograd = replace(request, winograd=False)
    without_kernels = replace(request, packs=False, own_kernels=False)
    try:
        case = _capture_case(request, leaves, spec, teams)
    except CaptureError:
        raise
    # A layer cannot be packed.
    except Exception:
        case = _capture_case(without_kernels, leaves, spec, teams)
    with case.bound.keep_state():
        difference, expected = check_replayable(case)
    if not difference and case.program.num_winograd and not _is_equivalent(case, expected):
        case = _capture_case(without_winograd, leaves, spec, teams)
    if not difference and not case.program.has_only_torch_operators and not _is_equivalent(case, expected):
        case = _capture_case(without_kernels, leaves, spec, teams)
    if not difference and case.program.has_only_torch_operators:
        with case.bound.keep_state():
            difference = find_difference(case, expected)
    return case, difference, expected


def _is_equivalent(case: PlanningCase, expected: Optional[RunResult]) -> bool:
    """Return whether a program with packed weights or in slices gives the module's results."""
    try:
        with case.bound.keep_state():
            return not find_difference(case, expected)
    # Fake tensors had other strides than real ones. The plain program remains.
    except Exception:
        return False


def _find_shared_memory(case: PlanningCase, spec: Any) -> str:
    """Explain why results must keep sharing memory: writes to one reach the gradients of another."""
    bound = case.bound
    leaves = bound.copy_written_leaves(case.leaves)
    with bound.keep_state():
        args, kwargs = pytree.tree_unflatten(leaves, spec)
        results = pytree.tree_leaves(expand_objects(bound.module(*args, **kwargs)))
    values = bound.collect_values(leaves)
    tensors = {id(tensor): tensor for tensor in [*values, *results] if isinstance(tensor, torch.Tensor)}
    external_ids = {id(tensor) for tensor in values}
    storages = [tensor.untyped_storage()._cdata for key, tensor in tensors.items() if key in external_ids]
    for tensor in {id(tensor): tensor for tensor in results if isinstance(tensor, torch.Tensor)}.values():
        if id(tensor) in external_ids:
            # The module returns an input unchanged.
            continue
        if tensor.untyped_storage()._cdata in storages:
            return "what it returns shares memory with an input, a parameter or another result"
        storages.append(tensor.untyped_storage()._cdata)
    return ""


def _capture_case(request: PlanRequest, leaves: Sequence[Any], spec: Any, teams: Teams) -> PlanningCase:
    args, kwargs = pytree.tree_unflatten(leaves, spec)
    num_cores, own_kernels = len(teams.cpus), request.own_kernels
    captured = capture(request.module, args, kwargs, num_cores, request.packs, own_kernels, winograd=request.winograd)
    if captured.in_spec != spec or len(captured.program.inputs) != len(leaves):
        raise CaptureError("torch.export changes the order of its inputs")
    # The bound program outlives planning, so it must not hold the exported graph.
    bound = BoundProgram(replace(captured, cut=None), request.module)
    signature, options = request.signature, request.options
    modes, executor = f"{signature.grad} {signature.autocast} {options['run']}", request.executor

    def build_keys(fingerprint: str) -> Callable[[int], str]:
        # The function outlives planning, so it must not hold the request with its inputs.
        def compute_key(num_cores: int) -> str:
            return cost_cache.compute_cache_key(fingerprint, num_cores, torch.__version__, executor, modes)

        return compute_key

    compute_key = build_keys(captured.fingerprint)
    case = PlanningCase(
        bound,
        leaves,
        _build_plain_call(request.module, bound, leaves, spec),
        executor,
        compute_key(len(teams.cpus)),
        bool(options["keep"]),
        float(options["planning_s"]) * (_BUDGET_SHARE_DURING_CALL if request.known_plans else 1.0),
        options["run"] == "planned",
        compute_key,
    )
    is_cached = case.uses_cache and cost_cache.load_plan(case.key, len(case.program.calls)) is not None
    cut = None if is_cached or case.forces_plan else captured.in_slices
    if cut is None:
        return case
    keys = build_keys(cut.fingerprint)
    bound = BoundProgram(cut, request.module)
    return replace(case, in_slices=replace(case, bound=bound, key=keys(len(teams.cpus)), build_key=keys))


def _adopt_plan(request: PlanRequest, case: PlanningCase, teams: Teams) -> Optional[PlannedModule]:
    """Reuse the plan of inputs of another size, to be tried on real calls; None without one or if cached."""
    forms = [form for form in (case.in_slices, case) if form is not None]
    if case.uses_cache and any(cost_cache.load_plan(form.key, len(form.program.calls)) is not None for form in forms):
        return None
    for other in request.known_plans:
        decision = other.decision
        if decision is None or decision.executor is None or other._teams is not teams:
            continue
        for form in forms:
            if other.bound is not None and _has_same_operators(other.bound.program, form.program):
                return _apply_plan(decision, form, teams)
    return None


def _apply_plan(decision: PlanDecision, case: PlanningCase, teams: Teams) -> PlannedModule:
    assert decision.executor is not None
    plan = decision.executor.plan
    executor = executor_choice.build_executor(case.executor_name, case.program, decision.tasks, plan, teams)
    new = PlanDecision(decision.chosen, executor, decision.tasks, decision.call_costs, {}, {})
    new.is_borrowed = True
    entry = PlannedModule(case.bound, new, case.drop_inputs(), teams)
    entry._race = None if case.forces_plan else OnlineRace()
    return entry


def _has_same_operators(one: Program, other: Program) -> bool:
    """Return whether both programs run the same operators in the same order, on any sizes."""
    if [call.target for call in one.calls] != [call.target for call in other.calls]:
        return False
    return build_call_graph(one) == build_call_graph(other)


def _copy_inference_tensor(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor) and leaf.is_inference():
        return leaf.clone()
    return leaf


def _build_plain_call(module: nn.Module, bound: BoundProgram, leaves: Sequence[Any], spec: Any) -> Callable[[], Any]:
    def call() -> Any:
        copies = bound.copy_written_leaves(leaves)
        # In inference mode the inputs must be inference tensors too.
        if torch.is_inference_mode_enabled():
            copies = [leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in copies]
        args, kwargs = pytree.tree_unflatten(copies, spec)
        return module(*args, **kwargs)

    return call
