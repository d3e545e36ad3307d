"""What is known and done for inputs of one kind.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import torch
from torch import nn
from torch.utils import _pytree as pytree

from corewise.dataflow import executors, kept_costs
from corewise.dataflow.adaptive import OnlineRace, resized
from corewise.dataflow.binding import Bound
from corewise.dataflow.capture import CannotCapture, apart, capture
from corewise.dataflow.explain import described, task_name
from corewise.dataflow.kept_costs import PLAIN
from corewise.dataflow.kinds import Kind
from corewise.dataflow.lanes import widths_for
from corewise.dataflow.planning import Case, Decision, candidate_plans, decide, kept_for, planned_decision
from corewise.dataflow.program import Program
from corewise.dataflow.same import Run, looked_at, why_other
from corewise.dataflow.tasks import call_graph
from corewise.dataflow.teams import Teams
from corewise.dataflow.timeline import Ran

ONE_CORE = "this process may use one core only"
_SHARE_WHILE_CALLED = 0.25  # of the time for planning, when a call waits for it


class Entry:
    """A plan for one kind of inputs, or the reason why the module runs itself."""

    def __init__(
        self,
        bound: Optional[Bound] = None,
        decision: Optional[Decision] = None,
        case: Optional[Case] = None,
        teams: Optional[Teams] = None,
        reason: str = "",
    ) -> None:
        self.bound, self.decision, self.case, self.reason = bound, decision, case, reason
        self._teams = teams  # those the decision is for
        self._race: Optional[OnlineRace] = None
        self._num_cores = len(teams.cpus) if teams is not None else 0  # as last seen
        self._is_due = False  # plain execution was best on fewer cores than there are now
        self._began_s = 0.0
        self._ran: Optional[Tuple[executors.Executor, Decision]] = None
        self.used_at = 0  # number of the call
        self._forget_packs_of_none()

    def _forget_packs_of_none(self) -> None:
        """Holds no packed weights where no plan takes them."""
        if self.bound is not None and not self.is_planned:
            self.bound.forget_packs()

    @property
    def is_planned(self) -> bool:
        """Whether a plan runs, or might after the allocation has changed."""
        return self.decision is not None and (self.decision.executor is not None or self._race is not None)

    @property
    def has_packs(self) -> bool:
        """Whether it holds weights packed for its inputs."""
        return self.bound is not None and self.is_planned and bool(self.bound.program.packs)

    def is_plain_and_short(self, most_s: float) -> bool:
        """Whether plain execution was the best, and takes less than this."""
        if self.decision is None or self.is_planned:
            return False
        return self.decision.times_s.get(PLAIN, most_s) < most_s

    def may_plan(self, num_cores: int) -> bool:
        """Whether a plan runs, or is to be tried since there are more cores than at the last call."""
        if self.decision is None:
            return False
        has_grown, self._num_cores = num_cores > self._num_cores, num_cores
        self._is_due = (self._is_due or has_grown) and self.decision.executor is None
        return self.is_planned or self._is_due

    def run(self, leaves: Sequence[Any], teams: Teams, plain: Callable[[], Any]) -> Any:
        """The model's result for these inputs."""
        assert self.bound is not None
        assert self.decision is not None
        race, decision = self._race, self.decision
        name = race.next_name() if race else "planned"
        began = time.perf_counter()
        executor = decision.executor
        if executor is None or name == "plain" or not self.bound.may_run(leaves):
            result = plain()
        else:
            result = self._by_plan(executor, decision, leaves, plain)
        if race is not None:
            self._note(race, name, time.perf_counter() - began)
        return result

    def _by_plan(
        self,
        executor: executors.Executor,
        decision: Decision,
        leaves: Sequence[Any],
        plain: Callable[[], Any],
    ) -> Any:
        assert self.bound is not None
        teams = executor.teams  # another caller may have planned for other cores meanwhile
        values = self.bound.steady_values(leaves)
        if values is None:
            return plain()
        with teams.lock:
            is_open = teams.is_open  # another caller may have closed them, or moved to other cores
            if is_open:
                self._began_s = time.perf_counter()
                executor.run(values)
                self._ran = (executor, decision)
        return self.bound.result(values) if is_open else plain()

    def _note(self, race: OnlineRace, name: str, seconds: float) -> None:
        winner = race.note(name, seconds)
        if winner is not None and self.decision is not None:
            self._race = None
            times = race.typical_s()
            self.decision.times_s = {PLAIN: times["plain"], self.decision.chosen: times["planned"]}
            if winner == "plain":
                self.decision.executor = None
                self.decision.chosen = "plain"
                self._forget_packs_of_none()

    def follow(self, teams: Teams) -> None:
        """Plans for another allocation, from the costs known; real calls settle whether it runs."""
        if teams is self._teams and not self._is_due:
            return
        self._is_due = False
        assert self.case is not None
        assert self.decision is not None
        num_cores = len(teams.cpus)
        measured = self.decision.measured or self.decision.call_costs
        found = kept_for(self.case, teams)
        if found is not None:
            self.decision, self._race, self._teams = found, None, teams
            self._forget_packs_of_none()
            return
        costs = resized(measured, widths_for(num_cores))
        is_borrowed = self.decision.is_borrowed
        if self.case.runs_plan:
            self.decision = planned_decision(self.case, teams, costs)
        else:
            self.decision = self._expected(self.case, costs, teams)
        self.decision.measured, self.decision.is_borrowed = measured, is_borrowed
        is_open = self.decision.executor is not None and not self.case.runs_plan
        self._race = OnlineRace() if is_open else None
        self._teams = teams
        self._forget_packs_of_none()

    @staticmethod
    def _expected(case: Case, costs: Tuple[Dict[int, float], ...], teams: Teams) -> Decision:
        """The plan of changing widths where one differs from plain execution, not timed yet."""
        tasks, plans = candidate_plans(case.program, costs, len(teams.cpus), case.kind)
        plan = plans.get("moldable")
        if plan is None:
            return Decision("plain", None, tasks, costs, {}, {})
        executor = executors.make(case.kind, case.program, tasks, plan, teams)
        return Decision("moldable", executor, tasks, costs, {}, {"moldable": plan.expected_s})

    def timeline(self) -> List[Ran]:
        """The last planned call, and its way back where that has been gone."""
        if self._ran is None or self.bound is None:
            return []
        executor, decision = self._ran
        back = [span for span in executor.backward_spans if span.start_s >= self._began_s]
        names = [task_name(self.bound.program, task, decision.call_costs) for task in decision.tasks]
        found = []
        for spans, is_backward in ((executor.spans, False), (back, True)):
            for span in sorted(spans, key=lambda one: (one.start_s, one.task)):
                lane = executor.plan.lanes[span.lane]
                taken = executor.teams.cpus[lane.first : lane.first + lane.width]
                start, end = span.start_s - self._began_s, span.end_s - self._began_s
                found.append(Ran(span.task, names[span.task], span.lane, taken, start, end, is_backward))
        return found

    def explained(self, cpus: Tuple[int, ...], no_native: str) -> str:
        """In words."""
        if self.decision is None or self.bound is None:
            return f"runs as it is: {self.reason}."
        d = self.decision
        text = described(
            self.bound.program,
            d.tasks,
            d.plan,
            d.call_costs,
            cpus,
            d.times_s,
            d.expected_s,
            d.chosen,
            d.bound_s,
            d.is_borrowed,
        )
        if d.is_borrowed:
            source = "of another size"
        else:
            source = "kept from an earlier start" if d.was_kept else "measured"
        kind = self.case.kind if self.case else "python"
        why = f" ({no_native})" if kind == "python" and no_native else ""
        return f"{text}\nCosts {source}; planned in {d.planning_s:.2g} s; {kind} executor{why}."


@dataclass(frozen=True)
class Request:
    """Inputs to plan for, and how."""

    module: nn.Module
    args: Tuple[Any, ...]
    kwargs: Mapping[str, Any]
    kind: Kind
    executor: str
    options: Mapping[str, Any]
    others: Tuple[Entry, ...] = ()  # whose plans may do, where calls must not wait for measuring
    packs: bool = False  # whether weights may be packed beforehand
    own_kernels: bool = False  # whether layers may run on kernels of our own
    winograd: bool = True  # whether convolutions are among these


def prepared(request: Request, teams: Optional[Teams]) -> Entry:
    """A plan for these inputs, or an entry that says why not."""
    leaves, spec = pytree.tree_flatten((request.args, dict(request.kwargs)))
    if teams is None:
        return Entry(reason=ONE_CORE)
    if any(isinstance(leaf, torch.Tensor) and leaf.numel() == 0 for leaf in leaves):
        return Entry(reason="an input is empty")
    try:
        with torch.inference_mode(False), torch.set_grad_enabled(request.kind.grad):
            own = apart([_outside_inference(leaf) for leaf in leaves], request.module)
            case, different, expected = _checked_case(request, own, spec, teams)
            different = different or (_why_tied(case, spec) if request.kind.grad else "")
            if different:
                return Entry(reason=different)
            if case.in_slices is not None and not _is_same(case.in_slices, expected):
                case = replace(case, in_slices=None)
            found = _borrowed(request, case, teams)
            if found is not None:
                return found
            decision = decide(case, teams)
            decided = case.of(decision)
            return Entry(decided.bound, decision, decided.without_inputs(), teams)
    except CannotCapture as problem:
        return Entry(reason=str(problem))
    except Exception as problem:  # planning is a help; the module's own errors show when it is called
        lines = str(problem).splitlines() or [""]
        return Entry(reason=f"planning failed: {type(problem).__name__}: {lines[0][:200]}")


def _checked_case(
    request: Request, own: Sequence[Any], spec: Any, teams: Teams
) -> Tuple[Case, str, Optional[Run]]:
    """What was captured, what differs in what it gives, and what the module itself gave.

    Weights are packed, and kernels of our own run, only where nothing differs.
    """
    exactly = replace(request, winograd=False)
    plainly = replace(request, packs=False, own_kernels=False)
    try:
        case = _captured_case(request, own, spec, teams)
    except CannotCapture:
        raise
    except Exception:  # a layer that cannot be packed
        case = _captured_case(plainly, own, spec, teams)
    with case.bound.untouched():
        different, expected = looked_at(case)
    if not different and case.program.num_winograd and not _is_same(case, expected):
        case = _captured_case(exactly, own, spec, teams)
    if not different and not case.program.is_torchs_own and not _is_same(case, expected):
        case = _captured_case(plainly, own, spec, teams)
    if not different and case.program.is_torchs_own:
        with case.bound.untouched():
            different = why_other(case, expected)
    return case, different, expected


def _is_same(case: Case, expected: Optional[Run]) -> bool:
    """Whether a program with packed weights or in slices gives what the module gives."""
    try:
        with case.bound.untouched():
            return not why_other(case, expected)
    except Exception:  # fake tensors lay otherwise than real ones: the program as it is, is there
        return False


def _why_tied(case: Case, spec: Any) -> str:
    """Why results must keep their ties: what writes to one reaches the gradients of the other."""
    bound = case.bound
    leaves = bound.fresh_leaves(case.leaves)
    with bound.untouched():
        args, kwargs = pytree.tree_unflatten(leaves, spec)
        results = pytree.tree_leaves(bound.module(*args, **kwargs))
    values = bound.values(leaves)
    tensors = {id(one): one for one in [*values, *results] if isinstance(one, torch.Tensor)}
    brought = {id(one) for one in values}
    storages = [one.untyped_storage()._cdata for key, one in tensors.items() if key in brought]
    for one in {id(one): one for one in results if isinstance(one, torch.Tensor)}.values():
        if id(one) in brought:
            continue  # goes out as it came
        if one.untyped_storage()._cdata in storages:
            return "what it returns shares memory with an input, a parameter or another result"
        storages.append(one.untyped_storage()._cdata)
    return ""


def _captured_case(request: Request, leaves: Sequence[Any], spec: Any, teams: Teams) -> Case:
    args, kwargs = pytree.tree_unflatten(leaves, spec)
    num_cores, own_kernels = len(teams.cpus), request.own_kernels
    captured = capture(
        request.module, args, kwargs, num_cores, request.packs, own_kernels, winograd=request.winograd
    )
    if captured.in_spec != spec or len(captured.program.inputs) != len(leaves):
        raise CannotCapture("export orders its inputs otherwise")
    bound = Bound(replace(captured, cut=None), request.module)  # lives on, without all that export gave
    kind, options = request.kind, request.options
    modes, executor = f"{kind.grad} {kind.autocast} {options['run']}", request.executor

    def keys_of(fingerprint: str) -> Callable[[int], str]:
        def key_for(num_cores: int) -> str:  # lives on: it must not hold the request with its inputs
            return kept_costs.kept_key(fingerprint, num_cores, torch.__version__, executor, modes)

        return key_for

    key_for = keys_of(captured.fingerprint)
    case = Case(
        bound,
        leaves,
        _plain_call(request.module, bound, leaves, spec),
        executor,
        key_for(len(teams.cpus)),
        bool(options["keep"]),
        float(options["planning_s"]) * (_SHARE_WHILE_CALLED if request.others else 1.0),
        options["run"] == "planned",
        key_for,
    )
    is_kept = case.keeps and kept_costs.load(case.key, len(case.program.calls)) is not None
    cut = None if is_kept or case.runs_plan else captured.in_slices
    if cut is None:
        return case
    keys = keys_of(cut.fingerprint)
    bound = Bound(cut, request.module)
    return replace(case, in_slices=replace(case, bound=bound, key=keys(len(teams.cpus)), key_for=keys))


def _borrowed(request: Request, case: Case, teams: Teams) -> Optional[Entry]:
    """The plan of inputs of another size, tried on real calls; None where there is none, or one was kept."""
    forms = [one for one in (case.in_slices, case) if one is not None]
    if case.keeps and any(kept_costs.load(one.key, len(one.program.calls)) is not None for one in forms):
        return None
    for other in request.others:
        decision = other.decision
        if decision is None or decision.executor is None or other._teams is not teams:
            continue
        for one in forms:
            if other.bound is not None and _is_alike(other.bound.program, one.program):
                return _with_plan_of(decision, one, teams)
    return None


def _with_plan_of(decision: Decision, case: Case, teams: Teams) -> Entry:
    assert decision.executor is not None
    plan = decision.executor.plan
    executor = executors.make(case.kind, case.program, decision.tasks, plan, teams)
    new = Decision(decision.chosen, executor, decision.tasks, decision.call_costs, {}, {})
    new.is_borrowed = True
    entry = Entry(case.bound, new, case.without_inputs(), teams)
    entry._race = None if case.runs_plan else OnlineRace()
    return entry


def _is_alike(one: Program, other: Program) -> bool:
    """Whether both run the same operators in the same order, on whatever sizes."""
    if [call.target for call in one.calls] != [call.target for call in other.calls]:
        return False
    return call_graph(one) == call_graph(other)


def _outside_inference(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor) and leaf.is_inference():
        return leaf.clone()
    return leaf


def _plain_call(module: nn.Module, bound: Bound, leaves: Sequence[Any], spec: Any) -> Callable[[], Any]:
    def call() -> Any:
        own = bound.fresh_leaves(leaves)
        if torch.is_inference_mode_enabled():  # where inputs are of that mode too
            own = [leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in own]
        args, kwargs = pytree.tree_unflatten(own, spec)
        return module(*args, **kwargs)

    return call
