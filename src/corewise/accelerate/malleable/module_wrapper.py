"""`corewise.malleable`: run a model's operators with thread widths that change during a call.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import threading
import time
import weakref
from html import escape
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import torch
from torch import nn

from corewise.accelerate.capture.export_silence import wait_for_export
from corewise.accelerate.capture.input_signature import InputSignature, explain_unsupported_inputs, flatten_inputs
from corewise.accelerate.capture.torch_modes import explain_interception
from corewise.accelerate.capture.weight_packing import explain_unpacked
from corewise.accelerate.malleable import call_counts
from corewise.accelerate.malleable.adaptive_width import AllocationMonitor
from corewise.accelerate.malleable.cpu_allocation import validate_cpus
from corewise.accelerate.malleable.execute import executor_choice
from corewise.accelerate.malleable.execute.thread_teams import Teams, is_in_team, provide_shared_teams
from corewise.accelerate.malleable.execute.timeline import TimelineEntry, format_chrome_trace
from corewise.accelerate.malleable.idle_threads import check_environment, warn_once
from corewise.accelerate.malleable.method_calls import CallRouter, is_routed_method
from corewise.accelerate.malleable.module_watch import ModuleWatch, explain_unsupported_module
from corewise.accelerate.malleable.planned_module import PlannedModule, PlanRequest, plan_inputs
from corewise.shared_cores import SharedCoresWindow

# Default budget in seconds for measuring and timing plans, without the capture.
PLANNING_S = 20.0
# Maximum number of input signatures with a plan.
MAX_SIGNATURES = 16
# Maximum number of input signatures with packed weights.
MAX_PACKED_SIGNATURES = 2
# Calls with a new signature, while the least recently used plan is idle, before it replaces that plan.
CALLS_BEFORE_EVICTION = 4
# A signature that comes less often, in calls on average, gets no plan: sizes that grow from call to call.
MAX_CALLS_BETWEEN = 8
_CLOSED = "it is closed"
_MAX_SEEN_INPUTS = 1000
# Seconds to wait for calls of other threads to end before planning.
_MAX_WAIT_FOR_CALLERS_S = 0.25
# After this many calls without a change of the module, the next change is planned for immediately.
STABLE_CALLS = 200
# Maximum number of calls without planning after the module changed repeatedly.
_MAX_WAIT_CALLS = 1 << 16
# Calls that run unchecked after plain execution proved best, where no signature has a plan.
_UNCHECKED_CALLS = 7
# Longer calls are always checked: a check takes 0.5 ms at most.
_SHORT_CALL_S = 0.05
# Threads that are calling a malleable model at the moment.
_callers: List[int] = []
Inputs = Union[torch.Tensor, Sequence[Any], Mapping[str, Any], None]


os.register_at_fork(after_in_child=_callers.clear)


def malleable(
    model: nn.Module,
    example_inputs: Inputs = None,
    *,
    executor: Optional[str] = None,
    cpus: Optional[Sequence[int]] = None,
    planning_s: float = PLANNING_S,
    keep: bool = True,
    run: str = "best",
    pack: bool = True,
    kernels: bool = True,
) -> Malleable:
    """Return a callable with the model's results that keeps every core busy where that is faster.

    Args:
        example_inputs: a tensor, a sequence of positional arguments, or a mapping of keyword arguments.
            Without it, the first call makes the plan.
        executor: "native", "python", or None for the best available.
        cpus: the CPUs to use, instead of all that this process may use.
        planning_s: time limit in seconds for measuring and timing plans.
        keep: whether to cache costs and plans for later runs.
        run: "best" of all timed candidates, including plain execution, or "planned": always a plan.
        pack: whether kernels may keep a packed copy of the weights in memory.
        kernels: whether LSTMs and convolutions may use our kernels, which add in another order than torch.

    Raises:
        TypeError: the model is not a torch.nn.Module.
        ValueError: an option has an unsupported value.

    Example:
        fast = corewise.malleable(model.eval(), torch.randn(1, 3, 224, 224))
        y = fast(x)
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"malleable takes a torch.nn.Module, not {type(model).__name__}; for functions use parallel")
    wrapped = Malleable(
        model, executor=executor, cpus=cpus, planning_s=planning_s, keep=keep, run=run, pack=pack, kernels=kernels
    )
    if example_inputs is not None:
        args, kwargs = _as_call(example_inputs)
        wrapped.prepare(*args, **kwargs)
    return wrapped


def _as_call(inputs: Inputs) -> Tuple[Tuple[Any, ...], Dict[str, Any]]:
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    if isinstance(inputs, (list, tuple)):
        return tuple(inputs), {}
    return (inputs,), {}


class _CallCounter:
    """Counts calls with one signature while the least recently used plan is idle."""

    def __init__(self, call: int) -> None:
        self.since, self.num = call, 1
        self.first_call, self.num_seen = call, 0

    def is_frequent(self, call: int, interval: int) -> bool:
        """Return whether the signature came again, on average after at most `interval` calls."""
        return self.num_seen > 1 and call - self.first_call <= interval * (self.num_seen - 1)

    def count(self, call: int, oldest_use: int) -> int:
        """Count this call; start again at 1 if that plan was used since."""
        if call != self.since:
            self.since, self.num = (call, 1) if oldest_use > self.since else (self.since, self.num + 1)
        return self.num


class Malleable:
    """A module with a plan for each input signature; other attributes are those of the module."""

    def __init__(
        self,
        module: nn.Module,
        *,
        executor: Optional[str] = None,
        cpus: Optional[Sequence[int]] = None,
        planning_s: float = PLANNING_S,
        keep: bool = True,
        run: str = "best",
        pack: bool = True,
        kernels: bool = True,
    ) -> None:
        if run not in ("best", "planned"):
            raise ValueError(f"run={run!r}: use 'best' or 'planned'")
        if not isinstance(planning_s, (int, float)) or not planning_s >= 0:
            raise ValueError(f"planning_s={planning_s!r}: expected a number of seconds")
        cpus = None if cpus is None else validate_cpus(cpus)
        self._module = module
        self._options = {
            "executor": executor,
            "cpus": cpus,
            "planning_s": planning_s,
            "keep": keep,
            "run": run,
            "pack": bool(pack),
            "kernels": bool(kernels),
        }
        self._executor_name, self._why_not_native = executor_choice.choose_executor(executor)
        self._pid = os.getpid()
        self._why_never_planned = explain_unsupported_module(module)
        self._allocation = AllocationMonitor(cpus)
        # Protects plans and teams. Runs do not hold it.
        self._guard = threading.RLock()
        self._held_teams: List[Teams] = []
        self._finalizer = weakref.finalize(self, _release, self._held_teams)
        self._watch = ModuleWatch(module)
        self._router = CallRouter(module, weakref.ref(self))
        self._call_counts = call_counts.CallCounts()
        self._plans: Dict[InputSignature, PlannedModule] = {}
        # Inputs seen before, planned or not.
        self._seen_inputs: Dict[Any, _CallCounter] = {}
        self._num_calls = self._num_changes = self._changed_at = self._plans_from = 0
        self._last_plan: Optional[PlannedModule] = None
        # Whether other processes used the cores while the last plan was made.
        self._are_cores_busy = False
        # Remaining calls that run plainly without a check.
        self._num_unchecked = 0
        # The reason of the last unsupported inputs.
        self._why_unsupported = ""
        if self._why_never_planned:
            warn_once(f"{type(module).__name__} runs unchanged: {self._why_never_planned}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module and return its result."""
        # An export in another thread would record our operators.
        wait_for_export()
        if self._num_unchecked > 0:
            self._num_unchecked -= 1
            self._call_counts.add(call_counts.PLAIN_IS_BEST)
            return self._run_plain(args, kwargs)
        reason = self.explain_plain_execution()
        if reason:
            self._call_counts.add(reason)
            return self._module(*args, **kwargs)
        with self._guard:
            plan, leaves, reason = self._find_plan(args, kwargs) if self._finalizer.alive else (None, (), _CLOSED)
            teams = self._provide_teams() if plan is not None and plan.can_plan(len(self._read_cpus())) else None
            if plan is not None and teams is not None:
                plan.follow_allocation(teams)
                self._last_plan = plan
            elif plan is not None and not self._has_plans():
                # Plain execution is slower while threads of teams exist.
                _release(self._held_teams)
                self._num_unchecked = _UNCHECKED_CALLS if plan.is_plain_and_short(_SHORT_CALL_S) else 0
            _callers.append(threading.get_ident())
        try:
            if plan is None or teams is None:
                self._call_counts.add(reason or (plan.explain_plain_call() if plan else call_counts.NO_CORES))
                return self._module(*args, **kwargs)
            return self._run_or_compare(plan, leaves, teams, args, kwargs)
        finally:
            # A child that was forked during the call has no callers.
            with contextlib.suppress(ValueError):
                _callers.remove(threading.get_ident())

    def _run_or_compare(self, plan: PlannedModule, leaves: Sequence[Any], teams: Teams, args: Any, kwargs: Any) -> Any:
        """Run the plan, or the module where the plan asks for it, and count the call."""
        plain_calls: List[bool] = []

        def run_module() -> Any:
            plain_calls.append(True)
            return self._module(*args, **kwargs)

        try:
            return plan.run(leaves, teams, run_module)
        finally:
            self._call_counts.add(call_counts.TIMED_PLAINLY if plain_calls else "")

    def _run_plain(self, args: Any, kwargs: Any) -> Any:
        _callers.append(threading.get_ident())
        try:
            return self._module(*args, **kwargs)
        finally:
            # A child that was forked during the call has no callers.
            with contextlib.suppress(ValueError):
                _callers.remove(threading.get_ident())

    forward = __call__

    def prepare(self, *args: Any, **kwargs: Any) -> Malleable:
        """Capture, measure and plan for inputs like these, in the current modes."""
        if not self.explain_plain_execution():
            leaves, nesting = flatten_inputs(args, kwargs)
            with self._guard:
                self._detect_changes()
                signature = InputSignature.from_inputs(leaves, nesting, self._watch.read_state())
                if signature is None:
                    self._note_unsupported(leaves)
                elif not self.explain_plain_execution() and signature not in self._plans and self._is_only_caller():
                    self._plan(signature, args, kwargs, is_requested=True)
        return self

    def _note_unsupported(self, leaves: Sequence[Any]) -> None:
        self._why_unsupported = explain_unsupported_inputs(leaves)
        warn_once(f"{type(self._module).__name__} runs unchanged: {self._why_unsupported}")

    def explain_plain_execution(self) -> str:
        """Explain why no call uses a plan now; empty if calls may."""
        if self._why_never_planned:
            return self._why_never_planned
        if not self._finalizer.alive:
            return _CLOSED
        if self._pid != os.getpid():
            return "this process was forked after planning"
        if is_in_team():
            return "it is called from a branch of another plan"
        if self._watch.has_hooks():
            return "hooks are registered on the module"
        return explain_interception()

    def _find_plan(self, args: Any, kwargs: Any) -> Tuple[Optional[PlannedModule], Sequence[Any], str]:
        """Find or make the plan; without one, return the reason as the third value."""
        leaves, nesting = flatten_inputs(args, kwargs)
        self._num_calls += 1
        if self._detect_changes() and self.explain_plain_execution():
            return None, leaves, self.explain_plain_execution()
        signature = InputSignature.from_inputs(leaves, nesting, self._watch.read_state())
        if signature is None:
            self._note_unsupported(leaves)
            return None, leaves, self._why_unsupported
        plan = self._plans.get(signature)
        if plan is not None and plan.needs_more_cores and len(self._allocation.read_cpus()) > 1:
            # The process has more cores now.
            plan = None
        if plan is not None and plan.changed_attributes and plan.was_called:
            plan = self._plan_again(signature, plan, args, kwargs)
        if plan is None and self._is_worth_planning(signature) and self._is_only_caller():
            plan = self._plan(signature, args, kwargs)
        if plan is not None:
            plan.last_used_call, plan.was_called = self._num_calls, True
        return plan, leaves, call_counts.SEEN_RARELY if plan is None else ""

    def _is_only_caller(self) -> bool:
        """Return whether no other thread is in a call; wait briefly, since export changes the module."""
        mine, until = threading.get_ident(), time.monotonic() + _MAX_WAIT_FOR_CALLERS_S
        while any(one != mine for one in list(_callers)):
            if time.monotonic() > until:
                return False
            time.sleep(0.0005)
        return True

    def _is_worth_planning(self, signature: InputSignature) -> bool:
        """Return whether these inputs were seen before, in any mode, or are the first inputs."""
        if len(self._seen_inputs) >= _MAX_SEEN_INPUTS:
            self._seen_inputs.clear()
        seen_before = self._seen_inputs.get(signature.inputs)
        counter = self._seen_inputs[signature.inputs] = seen_before or _CallCounter(self._num_calls)
        if self._num_calls < self._plans_from:
            return False
        counter.num_seen += 1
        if self._router.is_in_method:
            # A sequence that grows by a token has a new signature in every call.
            return counter.num_seen >= CALLS_BEFORE_EVICTION and counter.is_frequent(self._num_calls, 2)
        if len(self._plans) < MAX_SIGNATURES:
            return not self._plans or counter.is_frequent(self._num_calls, MAX_CALLS_BETWEEN)
        oldest = min(plan.last_used_call for plan in self._plans.values())
        return counter.count(self._num_calls, oldest) >= CALLS_BEFORE_EVICTION

    def _plan(self, signature: InputSignature, args: Any, kwargs: Any, is_requested: bool = False) -> PlannedModule:
        self._seen_inputs.setdefault(signature.inputs, _CallCounter(self._num_calls))
        if signature not in self._plans and len(self._plans) >= MAX_SIGNATURES:
            del self._plans[min(self._plans, key=lambda other: self._plans[other].last_used_call)]
        teams = self._provide_teams()
        others = () if is_requested else tuple(self._plans.values())
        executor, packs = self._executor_name, self._can_pack(signature)
        own_kernels = bool(self._options["kernels"]) and executor == "native" and signature.autocast is None
        request = PlanRequest(
            self._module, args, kwargs, signature, executor, self._options, others, packs, own_kernels
        )
        if self._watch.has_hidden_parameters:
            plan = PlannedModule(reason="it holds parameters that are not registered with any module")
        else:
            window = SharedCoresWindow(self._read_cpus())
            plan = plan_inputs(request, teams)
            is_busy = window.is_busy()
            # A plan from the cache is ready too soon to see the load.
            self._are_cores_busy = self._are_cores_busy if is_busy is None else is_busy
            # Export replaces tuples by equal ones.
            after = ModuleWatch(self._module)
            self._watch = after if after.is_equivalent_to(self._watch) else self._watch
        self._plans[signature] = plan
        plan.last_used_call = self._num_calls
        self._last_plan = plan
        if not self._has_plans():
            _release(self._held_teams)
        if plan.reason:
            warn_once(f"{type(self._module).__name__} runs unchanged: {plan.reason}")
        elif plan.is_planned:
            warn_once(check_environment(is_busy=self._are_cores_busy))
        return plan

    def _plan_again(self, signature: InputSignature, old: PlannedModule, args: Any, kwargs: Any) -> PlannedModule:
        """Plan again after the first plain call, once: many modules set attributes in their first call only."""
        old.changed_attributes = False
        if not self._is_only_caller():
            return old
        plan = self._plan(signature, args, kwargs)
        plan.changed_attributes = False
        return plan

    def _can_pack(self, signature: InputSignature) -> bool:
        """Return whether weights can be packed now, for one more signature."""
        if not self._options["pack"] or self._executor_name != "native" or explain_unpacked():
            return False
        others = [plan for other, plan in self._plans.items() if other != signature]
        return sum(plan.has_packs for plan in others) < MAX_PACKED_SIGNATURES

    def _has_plans(self) -> bool:
        return any(one.is_planned for one in self._plans.values())

    def _provide_teams(self) -> Optional[Teams]:
        """Return the teams of the current allocation; None if it has only one core."""
        cpus = self._allocation.read_cpus()
        if self._held_teams and self._held_teams[0].cpus == cpus:
            return self._held_teams[0]
        while self._held_teams:
            self._held_teams.pop().release()
        if len(cpus) < 2:
            return None
        self._held_teams.append(provide_shared_teams(cpus))
        return self._held_teams[0]

    def _detect_changes(self) -> bool:
        """Drop plans that a change of the module made invalid; return whether it has changed."""
        watch = self._watch
        if watch.is_unchanged() or watch.has_only_moved():
            return False
        self._watch = ModuleWatch(self._module)
        if self._watch.is_equivalent_to(watch):
            return True
        if self._watch.modules != watch.modules:
            self._plans.clear()
        # Reasons for plain execution stay valid: a module that changes itself is not planned at each call.
        else:
            self._plans = {signature: plan for signature, plan in self._plans.items() if plan.reason}
        self._why_never_planned = explain_unsupported_module(self._module)
        was_stable = self._num_calls - self._changed_at > STABLE_CALLS
        self._num_changes = 1 if was_stable else self._num_changes + 1
        self._changed_at = self._num_calls
        wait = min(1 << max(0, self._num_changes - 2), _MAX_WAIT_CALLS) - 1
        self._plans_from = self._num_calls + wait
        return True

    def explain(self) -> str:
        """Describe what runs for each input signature seen so far, and why."""
        head = type(self._module).__name__
        reason = self.explain_plain_execution()
        if reason:
            return "\n\n".join(filter(None, [f"{head} runs unchanged: {reason}.", self._call_counts.describe()]))
        parts = [f"{head} runs unchanged: {self._why_unsupported}."] if self._why_unsupported else []
        if not self._plans and not parts:
            parts = [f"{head}: no inputs planned yet." if self._num_calls else f"{head}: no inputs seen yet."]
        for signature, plan in self._plans.items():
            parts.append(f"{head}, {signature.describe()}: {plan.explain(self._read_cpus(), self._why_not_native)}")
        has_plans = any(plan.is_planned for plan in self._plans.values())
        warning = check_environment(is_busy=self._are_cores_busy) if has_plans or self._are_cores_busy else ""
        notes = [self._call_counts.describe(), f"Note: {warning}" if warning else ""]
        return "\n\n".join([*parts, *filter(None, notes)])

    def _repr_html_(self) -> str:
        """Return the explanation as HTML, which notebooks show for the module."""
        head, _, rest = self.explain().partition("\n")
        folded = f"<details><summary>Plan</summary><pre>{escape(rest.strip())}</pre></details>" if rest else ""
        return f"<div><p><b>{escape(head)}</b></p>{folded}</div>"

    def _read_cpus(self) -> Tuple[int, ...]:
        return self._allocation.read_cpus()

    def timeline(self) -> List[TimelineEntry]:
        """List the tasks of the last planned call, including backward: what, on which CPUs, when."""
        return self._last_plan.build_timeline() if self._last_plan is not None else []

    def trace(self, path: Union[str, os.PathLike[str]]) -> None:
        """Write the timeline of the last planned call as a file for chrome://tracing or ui.perfetto.dev."""
        entries = self.timeline()
        if not entries:
            name = os.fspath(path)
            warn_once(f"{name} contains no tasks because no call used a plan; explain() gives the reason")
        with open(path, "w") as out:
            out.write(format_chrome_trace(entries))

    def train(self, mode: bool = True) -> Malleable:
        """Set the module's mode."""
        self._module.train(mode)
        return self

    def eval(self) -> Malleable:
        """Set the module to evaluation mode."""
        return self.train(False)

    @property
    def module(self) -> nn.Module:
        """The wrapped module."""
        return self._module

    def close(self) -> None:
        """End all threads; later calls run the module itself."""
        # A forked child has no threads, and its parent may hold the guard.
        if self._pid != os.getpid():
            return
        with self._guard:
            self._plans.clear()
            self._last_plan = None
            # A thread that waits for the guard then sees that this object is closed.
            self._finalizer()
            self._allocation.restore_num_threads()

    def __enter__(self) -> Malleable:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN_ATTRIBUTES:
            object.__setattr__(self, name, value)
        else:
            setattr(self._module, name, value)

    def __delattr__(self, name: str) -> None:
        if name in _OWN_ATTRIBUTES:
            object.__delattr__(self, name)
        else:
            delattr(self._module, name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_module" not in self.__dict__:
            raise AttributeError(name)
        module = self.__dict__["_module"]
        attribute = getattr(module, name)
        if name in _FLUENT_METHODS:
            return functools.partial(self._call_fluent, attribute)
        return self._wrap_method(attribute) if is_routed_method(module, name, attribute) else attribute

    def _wrap_method(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return the method with calls of the module that go through this object, as in `fast.generate()`."""

        @functools.wraps(method)
        def call_method(*args: Any, **kwargs: Any) -> Any:
            with self._router.route_calls():
                return self._call_fluent(method, *args, **kwargs)

        return call_method

    def _call_fluent(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a method of the module; return this object if the method returns the module."""
        result = method(*args, **kwargs)
        return self if result is self._module else result

    def __reduce__(self) -> Any:
        return _rebuild, (self._module, self._options)

    def __deepcopy__(self, memo: Dict[int, Any]) -> Malleable:
        return _rebuild(copy.deepcopy(self._module, memo), self._options)

    def __repr__(self) -> str:
        return f"malleable({self._module!r})"


# Attributes of this object. Others are set on the module.
_OWN_ATTRIBUTES = {
    "_module", "_options", "_executor_name", "_why_not_native", "_pid", "_why_never_planned", "_allocation",
    "_guard", "_held_teams", "_finalizer", "_watch", "_plans", "_seen_inputs", "_last_plan",
    "_why_unsupported", "_num_calls", "_num_changes", "_changed_at", "_plans_from", "_num_unchecked",
    "_are_cores_busy", "_router", "_call_counts",
}  # fmt: skip

# Methods that return the module. The result must keep the plans: fast = fast.to(torch.bfloat16).
_FLUENT_METHODS = {
    "apply", "bfloat16", "cpu", "cuda", "double", "float", "half", "requires_grad_", "share_memory", "to",
    "to_empty", "type", "xpu",
}  # fmt: skip


def _rebuild(module: nn.Module, options: Mapping[str, Any]) -> Malleable:
    return Malleable(module, **options)


def _release(held: List[Teams]) -> None:
    while held:
        held.pop().release()
