"""`corewise.malleable`: a model whose operators run with thread widths that change as it runs.

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
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import torch
from torch import nn

from corewise.dataflow import executors
from corewise.dataflow.adaptive import Allocation
from corewise.dataflow.allocation import checked_cpus
from corewise.dataflow.entries import ONE_CORE, Entry, Request, prepared
from corewise.dataflow.kinds import Kind, flattened, why_unknown
from corewise.dataflow.modes import runs_under_others_control
from corewise.dataflow.packing import why_not_packed
from corewise.dataflow.quiet import wait_for_export
from corewise.dataflow.spinning import complaint, note_once
from corewise.dataflow.teams import Teams, in_team, shared_teams
from corewise.dataflow.timeline import Ran, written_trace
from corewise.dataflow.watch import ModuleWatch, why_not

PLANNING_S = 20.0  # at most so much for the first plan, capture apart
MOST_KINDS = 16  # of inputs that have a plan
MOST_PACKED = 2  # of these have weights of their own, packed for them
COMINGS = 4  # of another kind, while one that has a plan stays away, for it to take that one's place
_MOST_SEEN = 1000
_OTHERS_S = 0.25  # at most so much for other threads' calls to end before a plan is made
LONG_SINCE = 200  # calls without a change of the module, after which the next one is planned for at once
_LONGEST_WAIT = 1 << 16  # calls
_UNWATCHED = 7  # calls after one for which plain execution is best, where no kind of inputs has a plan
_SHORT_S = 0.05  # a call that takes longer is always looked at: looking takes half a thousandth at most
_callers: List[int] = []  # threads whose calls, of whatever model, are under way
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
    """The model as a callable that gives the same results with every core busy, where that is faster.

    example_inputs: a tensor, a sequence of positional arguments, or a mapping of keyword arguments; without
    it the plan is made at the first call. executor: "native", "python", or None for the best there is. cpus:
    those to use, instead of all this process may use. keep: whether costs and plan are kept for later starts.
    run: "best" of what was timed, plain execution included, or "planned": changing widths whatever they take.
    pack: whether weights may lie in memory a second time, in the order that kernels read them in. kernels:
    whether LSTMs and convolutions may run on ours, which add up in another order than torch's.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"malleable takes a torch.nn.Module, not {type(model).__name__}; for functions: parallel"
        )
    made = Malleable(
        model,
        executor=executor,
        cpus=cpus,
        planning_s=planning_s,
        keep=keep,
        run=run,
        pack=pack,
        kernels=kernels,
    )
    if example_inputs is not None:
        args, kwargs = _as_call(example_inputs)
        made.prepare(*args, **kwargs)
    return made


def _as_call(inputs: Inputs) -> Tuple[Tuple[Any, ...], Dict[str, Any]]:
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    if isinstance(inputs, (list, tuple)):
        return tuple(inputs), {}
    return (inputs,), {}


class _Comings:
    """How often inputs of a kind came while the plan that was used least lay idle."""

    def __init__(self, call: int) -> None:
        self.since, self.num = call, 1

    def again(self, call: int, oldest_use: int) -> int:
        """Counts this call, from 1 where that plan was used meanwhile."""
        if call != self.since:
            self.since, self.num = (call, 1) if oldest_use > self.since else (self.since, self.num + 1)
        return self.num


class Malleable:
    """A module with a plan for each kind of inputs it has met; attributes are those of the module."""

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
            raise ValueError(f"run={run!r}: known are 'best' and 'planned'")
        if not isinstance(planning_s, (int, float)) or not planning_s >= 0:
            raise ValueError(f"planning_s={planning_s!r}: a number of seconds is needed")
        cpus = None if cpus is None else checked_cpus(cpus)
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
        self._kind_of_executor, self._no_native = executors.available(executor)
        self._pid = os.getpid()
        self._why_never = why_not(module)
        self._allocation = Allocation(cpus)
        self._guard = threading.RLock()  # plans and teams change under it; runs do not hold it
        self._held: List[Teams] = []
        self._finalizer = weakref.finalize(self, _release, self._held)
        self._watch = ModuleWatch(module)
        self._entries: Dict[Any, Entry] = {}
        self._seen: Dict[Any, _Comings] = {}  # inputs that came before, whether planned for or not
        self._num_calls = self._num_changes = self._changed_at = self._plans_from = 0
        self._last: Optional[Entry] = None
        self._unwatched = 0  # calls to come that run plainly whatever they bring
        self._why_unknown = ""  # of inputs that are of no kind
        if self._why_never:
            note_once(f"{type(module).__name__} runs as it is: {self._why_never}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the module returns."""
        wait_for_export()  # which would take other threads' modules for parts of its own
        if self._unwatched > 0:
            self._unwatched -= 1
            return self._plainly(args, kwargs)
        if self._why_plain_now():
            return self._module(*args, **kwargs)
        with self._guard:
            entry, leaves = self._entry(args, kwargs) if self._finalizer.alive else (None, ())
            teams = self._teams() if entry is not None and entry.may_plan(len(self._cpus_now())) else None
            if entry is not None and teams is not None:
                entry.follow(teams)
                self._last = entry
            elif entry is not None and not self._has_plans():
                _release(self._held)  # beside their threads plain execution would be slower
                self._unwatched = _UNWATCHED if entry.is_plain_and_short(_SHORT_S) else 0
            _callers.append(threading.get_ident())
        try:
            if entry is None or teams is None:
                return self._module(*args, **kwargs)
            return entry.run(leaves, teams, lambda: self._module(*args, **kwargs))
        finally:
            with contextlib.suppress(ValueError):  # a child forked in between has none
                _callers.remove(threading.get_ident())

    def _plainly(self, args: Any, kwargs: Any) -> Any:
        _callers.append(threading.get_ident())
        try:
            return self._module(*args, **kwargs)
        finally:
            with contextlib.suppress(ValueError):  # a child forked in between has none
                _callers.remove(threading.get_ident())

    forward = __call__

    def prepare(self, *args: Any, **kwargs: Any) -> Malleable:
        """Captures, measures and plans for inputs like these, in the present modes."""
        if not self._why_plain_now():
            leaves, form = flattened(args, kwargs)
            with self._guard:
                self._notice_changes()
                kind = Kind.of(leaves, form, self._watch.state())
                if kind is None:
                    self._note_unknown(leaves)
                elif not self._why_plain_now() and kind not in self._entries and self._is_alone():
                    self._plan(kind, args, kwargs, is_asked=True)
        return self

    def _note_unknown(self, leaves: Sequence[Any]) -> None:
        self._why_unknown = why_unknown(leaves)
        note_once(f"{type(self._module).__name__} runs as it is: {self._why_unknown}")

    def _why_plain_now(self) -> str:
        if self._why_never:
            return self._why_never
        if not self._finalizer.alive:
            return "it was closed"
        if self._pid != os.getpid():
            return "this process was forked from the one that planned"
        if in_team():
            return "it is called from a branch of another one"
        if self._watch.has_hooks():
            return "hooks listen to the module's calls"
        return runs_under_others_control()

    def _entry(self, args: Any, kwargs: Any) -> Tuple[Optional[Entry], Sequence[Any]]:
        leaves, form = flattened(args, kwargs)
        self._num_calls += 1
        if self._notice_changes() and self._why_plain_now():
            return None, leaves
        kind = Kind.of(leaves, form, self._watch.state())
        if kind is None:
            self._note_unknown(leaves)
            return None, leaves
        entry = self._entries.get(kind)
        if entry is not None and entry.reason == ONE_CORE and len(self._allocation.cpus()) > 1:
            entry = None  # there are more now
        if entry is None and self._is_worth_planning(kind) and self._is_alone():
            entry = self._plan(kind, args, kwargs)
        if entry is not None:
            entry.used_at = self._num_calls
        return entry, leaves

    def _is_alone(self) -> bool:
        """Whether no other thread is in a call; waits for them a little, since export changes the module."""
        mine, until = threading.get_ident(), time.monotonic() + _OTHERS_S
        while any(one != mine for one in list(_callers)):
            if time.monotonic() > until:
                return False
            time.sleep(0.0005)
        return True

    def _is_worth_planning(self, kind: Kind) -> bool:
        """Whether inputs of this kind have come before, in any mode, or are the first of all."""
        if len(self._seen) >= _MOST_SEEN:
            self._seen.clear()
        known = self._seen.get(kind.inputs)
        came = self._seen[kind.inputs] = known or _Comings(self._num_calls)
        if self._num_calls < self._plans_from:
            return False
        if len(self._entries) < MOST_KINDS:
            return not self._entries or known is not None
        oldest = min(entry.used_at for entry in self._entries.values())
        return came.again(self._num_calls, oldest) >= COMINGS

    def _plan(self, kind: Kind, args: Any, kwargs: Any, is_asked: bool = False) -> Entry:
        self._seen.setdefault(kind.inputs, _Comings(self._num_calls))
        if kind not in self._entries and len(self._entries) >= MOST_KINDS:
            del self._entries[min(self._entries, key=lambda one: self._entries[one].used_at)]
        teams = self._teams()
        others = () if is_asked else tuple(self._entries.values())
        executor, packs = self._kind_of_executor, self._may_pack(kind)
        own_kernels = bool(self._options["kernels"]) and executor == "native" and kind.autocast is None
        request = Request(
            self._module, args, kwargs, kind, executor, self._options, others, packs, own_kernels
        )
        if self._watch.has_hidden_parameters:
            entry = Entry(reason="it holds parameters that are not registered with a module")
        else:
            entry = prepared(request, teams)
            after = ModuleWatch(self._module)  # export puts equal tuples in the place of those it found
            self._watch = after if after.is_like(self._watch) else self._watch
        self._entries[kind] = entry
        entry.used_at = self._num_calls
        self._last = entry
        if not self._has_plans():
            _release(self._held)
        if entry.reason:
            note_once(f"{type(self._module).__name__} runs as it is: {entry.reason}")
        elif entry.is_planned:
            note_once(complaint())
        return entry

    def _may_pack(self, kind: Kind) -> bool:
        """Whether there is room for packed weights of one more kind of inputs, and they may be packed now."""
        if not self._options["pack"] or self._kind_of_executor != "native" or why_not_packed():
            return False
        others = [entry for other, entry in self._entries.items() if other != kind]
        return sum(entry.has_packs for entry in others) < MOST_PACKED

    def _has_plans(self) -> bool:
        return any(one.is_planned for one in self._entries.values())

    def _teams(self) -> Optional[Teams]:
        """The teams of the present allocation; None when it has but one core."""
        cpus = self._allocation.cpus()
        if self._held and self._held[0].cpus == cpus:
            return self._held[0]
        while self._held:
            self._held.pop().release()
        if len(cpus) < 2:
            return None
        self._held.append(shared_teams(cpus))
        return self._held[0]

    def _notice_changes(self) -> bool:
        """Forgets plans for what the module no longer is; whether anything about it has changed."""
        watch = self._watch
        if watch.is_same() or watch.moved_only():
            return False
        self._watch = ModuleWatch(self._module)
        if self._watch.is_like(watch):
            return True
        if self._watch.modules != watch.modules:
            self._entries.clear()
        else:  # what ran as it is still does: a module that changes itself is not planned for at each call
            self._entries = {kind: entry for kind, entry in self._entries.items() if entry.reason}
        self._why_never = why_not(self._module)
        is_long_since = self._num_calls - self._changed_at > LONG_SINCE
        self._num_changes = 1 if is_long_since else self._num_changes + 1
        self._changed_at = self._num_calls
        wait = min(1 << max(0, self._num_changes - 2), _LONGEST_WAIT) - 1
        self._plans_from = self._num_calls + wait
        return True

    def explain(self) -> str:
        """What runs for each kind of inputs met so far, and why."""
        head = type(self._module).__name__
        reason = self._why_plain_now()
        if reason:
            return f"{head} runs as it is: {reason}."
        parts = [f"{head} runs as it is: {self._why_unknown}."] if self._why_unknown else []
        if not self._entries:
            return parts[0] if parts else f"{head}: no inputs seen yet."
        for kind, entry in self._entries.items():
            parts.append(f"{head}, {kind.words()}: {entry.explained(self._cpus_now(), self._no_native)}")
        warning = complaint() if any(entry.is_planned for entry in self._entries.values()) else ""
        return "\n\n".join([*parts, *([f"Note: {warning}"] if warning else [])])

    def _cpus_now(self) -> Tuple[int, ...]:
        return self._allocation.cpus()

    def timeline(self) -> List[Ran]:
        """The tasks of the last call that ran by a plan, backward included: what, on which CPUs, when."""
        return self._last.timeline() if self._last is not None else []

    def trace(self, path: Union[str, os.PathLike[str]]) -> None:
        """Writes the timeline of the last planned call as a file for chrome://tracing or ui.perfetto.dev."""
        ran = self.timeline()
        if not ran:
            note_once(f"{os.fspath(path)} holds no tasks: no call has run by a plan, and explain() tells why")
        with open(path, "w") as out:
            out.write(written_trace(ran))

    def train(self, mode: bool = True) -> Malleable:
        """Sets the module's mode."""
        self._module.train(mode)
        return self

    def eval(self) -> Malleable:
        """Sets the module to evaluate."""
        return self.train(False)

    @property
    def module(self) -> nn.Module:
        """The module itself."""
        return self._module

    def close(self) -> None:
        """Ends all threads; calls run the module itself from now on."""
        if self._pid != os.getpid():  # a forked child has no threads, and the guard may be its parent's
            return
        with self._guard:
            self._entries.clear()
            self._last = None
            self._finalizer()  # whoever waits for the guard sees it
            self._allocation.give_back()

    def __enter__(self) -> Malleable:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN:
            object.__setattr__(self, name, value)
        else:
            setattr(self._module, name, value)

    def __delattr__(self, name: str) -> None:
        if name in _OWN:
            object.__delattr__(self, name)
        else:
            delattr(self._module, name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_module" not in self.__dict__:
            raise AttributeError(name)
        found = getattr(self.__dict__["_module"], name)
        return functools.partial(self._fluently, found) if name in _FLUENT else found

    def _fluently(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What a method of the module returns, and this object where that is the module."""
        result = method(*args, **kwargs)
        return self if result is self._module else result

    def __reduce__(self) -> Any:
        return _rebuilt, (self._module, self._options)

    def __deepcopy__(self, memo: Dict[int, Any]) -> Malleable:
        return _rebuilt(copy.deepcopy(self._module, memo), self._options)

    def __repr__(self) -> str:
        return f"malleable({self._module!r})"


# What setting an attribute does not pass on to the module.
_OWN = {
    "_module", "_options", "_kind_of_executor", "_no_native", "_pid", "_why_never", "_allocation", "_guard",
    "_held", "_finalizer", "_watch", "_entries", "_seen", "_last", "_why_unknown",
    "_num_calls", "_num_changes", "_changed_at", "_plans_from", "_unwatched",
}  # fmt: skip

# Methods that return the module, after which a plan must not be lost: fast = fast.to(torch.bfloat16).
_FLUENT = {
    "apply", "bfloat16", "cpu", "cuda", "double", "float", "half", "requires_grad_", "share_memory", "to",
    "to_empty", "type", "xpu",
}  # fmt: skip


def _rebuilt(module: nn.Module, options: Mapping[str, Any]) -> Malleable:
    return Malleable(module, **options)


def _release(held: List[Teams]) -> None:
    while held:
        held.pop().release()
