"""Decide which programs may be differentiated task by task, and in what order.

Measured side: standard library and torch only, Python 3.9.

In grad mode each task detaches the values from outside, so it has a separate autograd graph. The whole
program is one node of the caller's graph. Its backward pass runs the tasks' backward passes in reverse on the
lanes, and adds the gradients of a value's uses in the order of torch's engine. Gradients are bit-identical to
plain torch at equal widths; operators that split sums among threads round differently at other widths.

Differences from plain torch: hooks on parameters run once each, with the whole gradient, after the last task.
Second-order gradients run the program again in one piece, and are refused if it draws random numbers or
writes to buffers. Programs that write to memory which several tasks name, or that call Python, are
differentiated as a whole by torch, on the calling thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Sequence, Set, Tuple

import torch

from corewise.accelerate.capture import operator_effects
from corewise.accelerate.capture.program import Program, Ref, list_values
from corewise.accelerate.malleable.plan.schedule import LanePlan, LaneStep, OperatorTask


def build_backward_plan(plan: LanePlan) -> LanePlan:
    """Reverse a plan: each lane's steps backwards, each task after those that followed it."""
    later: Dict[int, List[int]] = {step.task: [] for step in plan.steps}
    for step in plan.steps:
        for task in step.after:
            later[task].append(step.task)
    steps = tuple(LaneStep(step.task, step.lane, tuple(later[step.task])) for step in reversed(plan.steps))
    return LanePlan(plan.lanes, steps, plan.expected_s)


@dataclass(frozen=True)
class Use:
    """A value from outside its task, read by one call."""

    call: int
    value: int


@dataclass(frozen=True)
class Borders:
    """Values that cross the borders of tasks; uses are numbered in program order."""

    uses: Tuple[Use, ...]
    uses_of_task: Tuple[Tuple[int, ...], ...]
    uses_of_value: Mapping[int, Tuple[int, ...]]
    # Values of each task that are used outside it.
    gives: Tuple[Tuple[int, ...], ...]


def find_borders(program: Program, tasks: Sequence[OperatorTask]) -> Borders:
    """Find for each task the uses of values from outside, and the values used outside."""
    task_of = {call: number for number, task in enumerate(tasks) for call in task.calls}
    producer_task = {value: task_of[n] for n, call in enumerate(program.calls) for value in call.results}
    uses: List[Use] = []
    of_task: List[List[int]] = [[] for _ in tasks]
    of_value: Dict[int, List[int]] = {}
    for call in range(len(program.calls)):
        for value in program.list_reads(call):
            if producer_task.get(value) != task_of[call]:
                of_task[task_of[call]].append(len(uses))
                of_value.setdefault(value, []).append(len(uses))
                uses.append(Use(call, value))
    outputs = {out.value for out in program.outputs if isinstance(out, Ref)}
    gives: List[List[int]] = [[] for _ in tasks]
    for value in sorted(producer_task):
        if value in outputs or value in of_value:
            gives[producer_task[value]].append(value)
    return Borders(
        tuple(uses),
        tuple(map(tuple, of_task)),
        {value: tuple(uses_of_one) for value, uses_of_one in of_value.items()},
        tuple(map(tuple, gives)),
    )


def find_training_obstacle(
    program: Program, tasks: Sequence[OperatorTask], allows_writes_across_tasks: bool = True
) -> str:
    """Explain why torch must differentiate the whole program; empty if tasks can be differentiated.

    Writes to memory are the obstacle: a value read under an old name after a write in another task would have
    the history from before the write. Buffers have no history and may be written.
    """
    task_of = {call: number for number, task in enumerate(tasks) for call in task.calls}
    maker = {value: number for number, call in enumerate(program.calls) for value in call.results}
    alias_sets = _AliasSets(program)
    for number, call in enumerate(program.calls):
        if not isinstance(call.target, torch._ops.OpOverload):
            return f"{call.name} calls Python"
        for value in list_values(operator_effects.find_written(call.target, call.args, call.kwargs)):
            if value in program.state or value in program.constants:
                # A buffer. Writing to a parameter raises as in plain torch.
                continue
            if value in program.inputs:
                return f"{call.name} writes to an input"
            tasks_with_name = {task_of[maker[alias]] for alias in alias_sets.get_aliases(value) if alias in maker} | {
                task_of[number]
            }
            if len(tasks_with_name) > 1 and not (
                allows_writes_across_tasks and _is_unread_afterwards(program, number, alias_sets.get_aliases(value))
            ):
                return f"{call.name} writes to memory that several tasks name"
    return ""


def is_repeatable(program: Program) -> bool:
    """Return whether a second run from the same inputs gives the same and has no side effects."""
    external = {*program.inputs, *program.state, *program.constants}
    for call in program.calls:
        if not isinstance(call.target, torch._ops.OpOverload):
            return False
        written = operator_effects.find_written(call.target, call.args, call.kwargs)
        if call.is_random or external.intersection(one.value for one in written if isinstance(one, Ref)):
            return False
    return True


def _is_unread_afterwards(program: Program, call: int, family: Set[int]) -> bool:
    """Return whether later calls read the written memory only through the result of the write."""
    fresh: Set[int] = set(program.calls[call].results)
    for later in range(call + 1, len(program.calls)):
        read = set(program.list_reads(later)) & family
        if read - fresh:
            return False
        if read:
            fresh |= set(program.calls[later].results) & family
    stale = {out.value for out in program.outputs if isinstance(out, Ref)} & family
    views_before = [value for value in family - fresh if _is_view(program, value)]
    return not (stale - fresh) and not views_before


def _is_view(program: Program, value: int) -> bool:
    return any(
        value in call.results and any(returned.alias_info is not None for returned in call.target._schema.returns)
        for call in program.calls
        if isinstance(call.target, torch._ops.OpOverload)
    )


class _AliasSets:
    """Values that may share memory, by the operators' schemas."""

    def __init__(self, program: Program) -> None:
        self._parent = list(range(program.num_values))
        for call in program.calls:
            if isinstance(call.target, torch._ops.OpOverload) and _can_alias(call.target):
                for value in call.results:
                    for source in list_values([*call.args, *call.kwargs.values()]):
                        self._parent[self._find_root(value)] = self._find_root(source)
        self._members: Dict[int, Set[int]] = {}
        for value in range(program.num_values):
            self._members.setdefault(self._find_root(value), set()).add(value)

    def _find_root(self, value: int) -> int:
        while self._parent[value] != value:
            self._parent[value] = self._parent[self._parent[value]]
            value = self._parent[value]
        return value

    def get_aliases(self, value: int) -> Set[int]:
        """Return the values that may share this one's memory."""
        return self._members[self._find_root(value)]


# Operators that may return their input or a view of it, although their schemas do not say so.
_SOMETIMES_ALIASING = {
    "aten::reshape", "aten::contiguous", "aten::flatten", "aten::dropout", "aten::feature_dropout",
    "aten::to", "aten::alpha_dropout", "aten::feature_alpha_dropout", "aten::type_as", "aten::reshape_as",
    "aten::unflatten", "aten::pad", "aten::constant_pad_nd", "aten::expand_as", "aten::view_as",
    "aten::chunk",
}  # fmt: skip


def _can_alias(target: Any) -> bool:
    if target._schema.name in _SOMETIMES_ALIASING:
        return True
    return any(returned.alias_info is not None for returned in target._schema.returns)
