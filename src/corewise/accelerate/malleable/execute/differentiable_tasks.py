"""Convert tasks to functions that are differentiated one by one, and build programs of these.

Measured side: standard library and torch only, Python 3.9.

A task's forward pass keeps its autograd graph on a tape. Its backward pass computes the gradients of the
values it used from those of the values it gave.
"""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple

import torch

from corewise.accelerate.capture.program import Call, Program, Ref
from corewise.accelerate.malleable.execute.task_functions import compile_task
from corewise.accelerate.malleable.execute.training_order import Borders
from corewise.accelerate.malleable.plan.schedule import LanePlan, LaneStep, OperatorTask


class Tape:
    """The autograd graphs of one forward pass: what each task gave and used."""

    def __init__(self, num_tasks: int, num_uses: int) -> None:
        self.given: List[List[Any]] = [[] for _ in range(num_tasks)]
        self.used: List[Any] = [None] * num_uses
        self.is_wanted: List[bool] = [True] * num_uses
        # The current pass is the last: it keeps nothing for another one.
        self.is_used_up = False
        self.keeps_graph = True


def sum_gradients(gradients: Sequence[Any]) -> Any:
    """Sum gradients from the first on; None if there is none."""
    total = None
    for one in gradients:
        if one is not None:
            total = one if total is None else (total + one if not total.is_sparse else one + total)
    return total


def build_forward_program(program: Program, tasks: Sequence[OperatorTask], borders: Borders) -> Program:
    """Build a program with one call per task, on the tape and the values from outside."""
    tape = program.num_values
    calls = []
    for number, task in enumerate(tasks):
        values = tuple(dict.fromkeys(borders.uses[use].value for use in borders.uses_of_task[number]))
        target = _Segment(program, task, number, borders, values)
        args = (Ref(tape), *map(Ref, values))
        calls.append(Call(f"forward {number}", target, args, {}, borders.gives[number], has_several_results=True))
    return Program(tuple(calls), tape + 1, (*program.inputs, tape), program.state, program.constants, program.outputs)


def build_backward_program(tasks: Sequence[OperatorTask], borders: Borders, outputs: Sequence[int]) -> Program:
    """Build a program with one call per task, the last first.

    Values are the tape, the gradients of outputs, and the gradients of uses.
    """
    first_use = 1 + len(outputs)
    calls = []
    for number in reversed(range(len(tasks))):
        gradients = []
        for value in borders.gives[number]:
            outer = [Ref(1 + outputs.index(value))] if value in outputs else []
            gradients.append(outer + [Ref(first_use + use) for use in reversed(borders.uses_of_value.get(value, ()))])
        target = _SegmentBackward(number, borders.uses_of_task[number])
        results = tuple(first_use + use for use in borders.uses_of_task[number])
        calls.append(Call(f"backward {number}", target, (Ref(0), gradients), {}, results, has_several_results=True))
    num_values = first_use + len(borders.uses)
    computed = {value for values in borders.gives for value in values}
    external_gradients = tuple(Ref(first_use + n) for n, use in enumerate(borders.uses) if use.value not in computed)
    return Program(tuple(calls), num_values, tuple(range(first_use)), {}, {}, external_gradients)


def build_forward_tasks(tasks: Sequence[OperatorTask]) -> Tuple[OperatorTask, ...]:
    """Build the tasks of the forward program."""
    return tuple(OperatorTask((number,), task.needs) for number, task in enumerate(tasks))


def build_backward_tasks(tasks: Sequence[OperatorTask]) -> Tuple[OperatorTask, ...]:
    """Build the tasks of the backward program."""
    last = len(tasks) - 1
    needs: List[List[int]] = [[] for _ in tasks]
    for number, task in enumerate(tasks):
        for earlier in task.needs:
            needs[last - earlier].append(last - number)
    return tuple(OperatorTask((number,), tuple(sorted(task_needs))) for number, task_needs in enumerate(needs))


def convert_backward_plan(plan: LanePlan, num_tasks: int) -> LanePlan:
    """Number the tasks of a backward plan in the order of that pass."""
    last = num_tasks - 1
    steps = tuple(LaneStep(last - s.task, s.lane, tuple(last - task for task in s.after)) for s in plan.steps)
    return LanePlan(plan.lanes, steps, plan.expected_s)


class _Segment:
    """A task's forward pass on values from outside that are detached from their history."""

    def __init__(
        self, program: Program, task: OperatorTask, number: int, borders: Borders, values: Sequence[int]
    ) -> None:
        self.number, self.gives = number, borders.gives[number]
        place = {value: index for index, value in enumerate(values)}
        self.uses = [(use, place[borders.uses[use].value]) for use in borders.uses_of_task[number]]
        self.num_values = program.num_values + len(self.uses)
        # Values of uses start here, one for each use.
        self.first = program.num_values
        use_numbers = {(borders.uses[use].call, borders.uses[use].value): n for n, (use, _) in enumerate(self.uses)}
        calls = list(program.calls)
        for call in task.calls:
            replacements = {v: self.first + n for (c, v), n in use_numbers.items() if c == call}
            calls[call] = _replace_values(calls[call], replacements)
        rewritten = Program(tuple(calls), self.num_values, (), {}, {}, ())
        computed = {value for call in task.calls for value in program.calls[call].results}
        self.run = compile_task(rewritten, task, computed - set(self.gives))

    def __call__(self, tape: Tape, *inputs: Any) -> List[Any]:
        values: List[Any] = [None] * self.num_values
        for place, (use, source) in enumerate(self.uses):
            value = inputs[source]
            if isinstance(value, torch.Tensor) and value.requires_grad:
                value = tape.used[use] = value.detach().requires_grad_()
            values[self.first + place] = value
        self.run(values)
        results = tape.given[self.number] = [values[value] for value in self.gives]
        return results


def _replace_values(call: Call, names: Dict[int, int]) -> Call:
    def replace_refs(tree: Any) -> Any:
        if isinstance(tree, Ref):
            return Ref(names.get(tree.value, tree.value))
        if isinstance(tree, (list, tuple)):
            return type(tree)(replace_refs(branch) for branch in tree)
        return tree

    args = tuple(replace_refs(one) for one in call.args)
    kwargs = {key: replace_refs(one) for key, one in call.kwargs.items()}
    return Call(call.name, call.target, args, kwargs, call.results, call.has_several_results, call.is_random)


class _SegmentBackward:
    """A task's backward pass: from gradients of what it gave to those of what it used."""

    def __init__(self, number: int, uses: Sequence[int]) -> None:
        self.number, self.uses = number, uses

    def __call__(self, tape: Tape, gradients: Sequence[Sequence[Any]]) -> List[Any]:
        roots, arriving = [], []
        for given, parts in zip(tape.given[self.number], gradients):
            total = sum_gradients(parts)
            if total is not None and isinstance(given, torch.Tensor) and given.requires_grad:
                roots.append(given)
                arriving.append(total)
        wanted = [use for use in self.uses if tape.used[use] is not None and tape.is_wanted[use]]
        gradients_by_use: Dict[int, Any] = {}
        if roots and wanted:
            leaves = [tape.used[use] for use in wanted]
            gradient = torch.autograd.grad(roots, leaves, arriving, retain_graph=tape.keeps_graph, allow_unused=True)
            gradients_by_use = dict(zip(wanted, gradient))
        if tape.is_used_up:
            tape.given[self.number] = []
        return [gradients_by_use.get(use) for use in self.uses]
