"""Which programs may be differentiated task by task, and in what order.

Measured side: standard library and torch only, Python 3.9.

In grad mode each task sees values from outside cut off from their history, so that it has a graph of its own;
the whole program is one node of the caller's graph, whose backward runs the tasks' backward passes in
reverse, on the lanes, and adds the gradients of a value's uses in the order in which torch's engine would.
So gradients are plain torch's to the bit where widths are equal; operators that split sums among threads
round differently at another width, forward and backward.

What is done otherwise: hooks on parameters run once each, with the whole gradient, but all after the last
task (overlapping them with computing gains nothing here). Gradients of gradients compute the program once
more in one piece, and are refused where it draws random numbers or writes to buffers. Programs that write
to memory which several tasks name are differentiated as a whole by torch, on the calling thread, as are
those with Python calls.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Sequence, Set, Tuple

import torch

from corewise.dataflow import operators
from corewise.dataflow.program import Program, Ref, values_in
from corewise.dataflow.schedule import Plan, Step, Task


def reversed_plan(plan: Plan) -> Plan:
    """The plan backwards: each lane's steps in reverse, each task after those that came after it."""
    later: Dict[int, List[int]] = {step.task: [] for step in plan.steps}
    for step in plan.steps:
        for task in step.after:
            later[task].append(step.task)
    steps = tuple(Step(step.task, step.lane, tuple(later[step.task])) for step in reversed(plan.steps))
    return Plan(plan.lanes, steps, plan.expected_s)


@dataclass(frozen=True)
class Use:
    """A value from outside its task, read by one call."""

    call: int
    value: int


@dataclass(frozen=True)
class Borders:
    """What crosses the borders of tasks; uses are numbered in program order."""

    uses: Tuple[Use, ...]
    uses_of_task: Tuple[Tuple[int, ...], ...]
    uses_of_value: Mapping[int, Tuple[int, ...]]
    gives: Tuple[Tuple[int, ...], ...]  # of each task: the values used outside it


def borders(program: Program, tasks: Sequence[Task]) -> Borders:
    """The uses of values from outside, and the values that go out, of each task."""
    task_of = {call: number for number, task in enumerate(tasks) for call in task.calls}
    made_in = {value: task_of[n] for n, call in enumerate(program.calls) for value in call.results}
    uses: List[Use] = []
    of_task: List[List[int]] = [[] for _ in tasks]
    of_value: Dict[int, List[int]] = {}
    for call in range(len(program.calls)):
        for value in program.reads(call):
            if made_in.get(value) != task_of[call]:
                of_task[task_of[call]].append(len(uses))
                of_value.setdefault(value, []).append(len(uses))
                uses.append(Use(call, value))
    outputs = {out.value for out in program.outputs if isinstance(out, Ref)}
    gives: List[List[int]] = [[] for _ in tasks]
    for value in sorted(made_in):
        if value in outputs or value in of_value:
            gives[made_in[value]].append(value)
    return Borders(
        tuple(uses),
        tuple(map(tuple, of_task)),
        {value: tuple(found) for value, found in of_value.items()},
        tuple(map(tuple, gives)),
    )


def training_obstacle(program: Program, tasks: Sequence[Task], may_write_across: bool = True) -> str:
    """Why torch must differentiate the program as a whole, empty when tasks may be taken one by one.

    Writing to memory is what stands in the way: a value read under an old name after a write in another task
    would have the history of before the write. Buffers, which have no history, may be written.
    """
    task_of = {call: number for number, task in enumerate(tasks) for call in task.calls}
    maker = {value: number for number, call in enumerate(program.calls) for value in call.results}
    families = _Families(program)
    for number, call in enumerate(program.calls):
        if not isinstance(call.target, torch._ops.OpOverload):
            return f"{call.name} calls Python"
        for value in values_in(operators.written(call.target, call.args, call.kwargs)):
            if value in program.state or value in program.constants:
                continue  # a buffer; a parameter that is written raises as plain torch does
            if value in program.inputs:
                return f"{call.name} writes to an input"
            home = {task_of[maker[one]] for one in families.of(value) if one in maker} | {task_of[number]}
            if len(home) > 1 and not (
                may_write_across and _is_last_of_its_names(program, number, families.of(value))
            ):
                return f"{call.name} writes to memory that several tasks name"
    return ""


def may_repeat(program: Program) -> bool:
    """Whether a second run from the same inputs gives the same and leaves nothing behind."""
    brought = {*program.inputs, *program.state, *program.constants}
    for call in program.calls:
        if not isinstance(call.target, torch._ops.OpOverload):
            return False
        written = operators.written(call.target, call.args, call.kwargs)
        if call.is_random or brought.intersection(one.value for one in written if isinstance(one, Ref)):
            return False
    return True


def _is_last_of_its_names(program: Program, call: int, family: Set[int]) -> bool:
    """Whether the written memory is read later only as what the write returned, or what was made of that."""
    fresh: Set[int] = set(program.calls[call].results)
    for later in range(call + 1, len(program.calls)):
        read = set(program.reads(later)) & family
        if read - fresh:
            return False
        if read:
            fresh |= set(program.calls[later].results) & family
    stale = {out.value for out in program.outputs if isinstance(out, Ref)} & family
    views_before = [value for value in family - fresh if _is_view(program, value)]
    return not (stale - fresh) and not views_before


def _is_view(program: Program, value: int) -> bool:
    return any(
        value in call.results
        and any(returned.alias_info is not None for returned in call.target._schema.returns)
        for call in program.calls
        if isinstance(call.target, torch._ops.OpOverload)
    )


class _Families:
    """Values that may lie in the same memory, by the operators' schemas."""

    def __init__(self, program: Program) -> None:
        self._parent = list(range(program.num_values))
        for call in program.calls:
            if isinstance(call.target, torch._ops.OpOverload) and _may_alias(call.target):
                for value in call.results:
                    for source in values_in([*call.args, *call.kwargs.values()]):
                        self._parent[self._root(value)] = self._root(source)
        self._members: Dict[int, Set[int]] = {}
        for value in range(program.num_values):
            self._members.setdefault(self._root(value), set()).add(value)

    def _root(self, value: int) -> int:
        while self._parent[value] != value:
            self._parent[value] = self._parent[self._parent[value]]
            value = self._parent[value]
        return value

    def of(self, value: int) -> Set[int]:
        """The values that may share this one's memory."""
        return self._members[self._root(value)]


# Operators that may return their input itself, or a view of it, though their schemas do not say so.
_SOMETIMES_SAME = {
    "aten::reshape", "aten::contiguous", "aten::flatten", "aten::dropout", "aten::feature_dropout",
    "aten::to", "aten::alpha_dropout", "aten::feature_alpha_dropout", "aten::type_as", "aten::reshape_as",
    "aten::unflatten", "aten::pad", "aten::constant_pad_nd", "aten::expand_as", "aten::view_as",
    "aten::chunk",
}  # fmt: skip


def _may_alias(target: Any) -> bool:
    if target._schema.name in _SOMETIMES_SAME:
        return True
    return any(returned.alias_info is not None for returned in target._schema.returns)
