"""A program's tasks as functions that can be differentiated one by one, and the programs made of these.

Measured side: standard library and torch only, Python 3.9.

A task's forward keeps its graph on a tape; its backward takes the gradients of what the task gave and gives
those of what it used.
"""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple

import torch

from corewise.dataflow.generated import task_function
from corewise.dataflow.program import Call, Program, Ref
from corewise.dataflow.schedule import Plan, Step, Task
from corewise.dataflow.training import Borders


class Tape:
    """The graphs of one forward pass: of each task what it gave and what it used."""

    def __init__(self, num_tasks: int, num_uses: int) -> None:
        self.given: List[List[Any]] = [[] for _ in range(num_tasks)]
        self.used: List[Any] = [None] * num_uses
        self.is_wanted: List[bool] = [True] * num_uses
        self.is_used_up = False  # by the pass under way: nothing is kept for another one
        self.keeps_graph = True


def summed(gradients: Sequence[Any]) -> Any:
    """Their sum from the first on, None where there is none."""
    total = None
    for one in gradients:
        if one is not None:
            total = one if total is None else (total + one if not total.is_sparse else one + total)
    return total


def forward_program(program: Program, tasks: Sequence[Task], known: Borders) -> Program:
    """One call a task, of the tape and the values from outside."""
    tape = program.num_values
    calls = []
    for number, task in enumerate(tasks):
        values = tuple(dict.fromkeys(known.uses[use].value for use in known.uses_of_task[number]))
        target = _Segment(program, task, number, known, values)
        args = (Ref(tape), *map(Ref, values))
        calls.append(Call(f"forward {number}", target, args, {}, known.gives[number], spreads=True))
    return Program(
        tuple(calls), tape + 1, (*program.inputs, tape), program.state, program.constants, program.outputs
    )


def backward_program(tasks: Sequence[Task], known: Borders, outputs: Sequence[int]) -> Program:
    """One call a task, the last task first: values are the tape, outputs' gradients, uses' gradients."""
    first_use = 1 + len(outputs)
    calls = []
    for number in reversed(range(len(tasks))):
        gradients = []
        for value in known.gives[number]:
            outer = [Ref(1 + outputs.index(value))] if value in outputs else []
            gradients.append(
                outer + [Ref(first_use + use) for use in reversed(known.uses_of_value.get(value, ()))]
            )
        target = _SegmentBackward(number, known.uses_of_task[number])
        results = tuple(first_use + use for use in known.uses_of_task[number])
        calls.append(Call(f"backward {number}", target, (Ref(0), gradients), {}, results, spreads=True))
    num_values = first_use + len(known.uses)
    made = {value for values in known.gives for value in values}
    of_brought = tuple(Ref(first_use + n) for n, use in enumerate(known.uses) if use.value not in made)
    return Program(tuple(calls), num_values, tuple(range(first_use)), {}, {}, of_brought)


def single(tasks: Sequence[Task]) -> Tuple[Task, ...]:
    """The tasks of the forward program."""
    return tuple(Task((number,), task.needs) for number, task in enumerate(tasks))


def single_reversed(tasks: Sequence[Task]) -> Tuple[Task, ...]:
    """The tasks of the backward program."""
    last = len(tasks) - 1
    needs: List[List[int]] = [[] for _ in tasks]
    for number, task in enumerate(tasks):
        for earlier in task.needs:
            needs[last - earlier].append(last - number)
    return tuple(Task((number,), tuple(sorted(found))) for number, found in enumerate(needs))


def renumbered(plan: Plan, num_tasks: int) -> Plan:
    """A plan of a backward pass, with tasks numbered in the order of that pass."""
    last = num_tasks - 1
    steps = tuple(Step(last - s.task, s.lane, tuple(last - task for task in s.after)) for s in plan.steps)
    return Plan(plan.lanes, steps, plan.expected_s)


class _Segment:
    """A task's forward: its calls over values from outside that are cut off from their history."""

    def __init__(
        self, program: Program, task: Task, number: int, known: Borders, values: Sequence[int]
    ) -> None:
        self.number, self.gives = number, known.gives[number]
        place = {value: index for index, value in enumerate(values)}
        self.uses = [(use, place[known.uses[use].value]) for use in known.uses_of_task[number]]
        self.num_values = program.num_values + len(self.uses)
        self.first = program.num_values  # where the uses' values lie, each use its own
        here = {(known.uses[use].call, known.uses[use].value): n for n, (use, _) in enumerate(self.uses)}
        calls = list(program.calls)
        for call in task.calls:
            names = {v: self.first + n for (c, v), n in here.items() if c == call}
            calls[call] = _with_names(calls[call], names)
        renamed = Program(tuple(calls), self.num_values, (), {}, {}, ())
        made = {value for call in task.calls for value in program.calls[call].results}
        self.run = task_function(renamed, task, made - set(self.gives))

    def __call__(self, tape: Tape, *given: Any) -> List[Any]:
        values: List[Any] = [None] * self.num_values
        for place, (use, source) in enumerate(self.uses):
            one = given[source]
            if isinstance(one, torch.Tensor) and one.requires_grad:
                one = tape.used[use] = one.detach().requires_grad_()
            values[self.first + place] = one
        self.run(values)
        results = tape.given[self.number] = [values[value] for value in self.gives]
        return results


def _with_names(call: Call, names: Dict[int, int]) -> Call:
    def renamed(tree: Any) -> Any:
        if isinstance(tree, Ref):
            return Ref(names.get(tree.value, tree.value))
        if isinstance(tree, (list, tuple)):
            return type(tree)(renamed(branch) for branch in tree)
        return tree

    args = tuple(renamed(one) for one in call.args)
    kwargs = {key: renamed(one) for key, one in call.kwargs.items()}
    return Call(call.name, call.target, args, kwargs, call.results, call.spreads, call.is_random)


class _SegmentBackward:
    """A task's backward: from gradients of what it gave to those of what it used."""

    def __init__(self, number: int, uses: Sequence[int]) -> None:
        self.number, self.uses = number, uses

    def __call__(self, tape: Tape, gradients: Sequence[Sequence[Any]]) -> List[Any]:
        roots, arriving = [], []
        for given, parts in zip(tape.given[self.number], gradients):
            total = summed(parts)
            if total is not None and isinstance(given, torch.Tensor) and given.requires_grad:
                roots.append(given)
                arriving.append(total)
        wanted = [use for use in self.uses if tape.used[use] is not None and tape.is_wanted[use]]
        found: Dict[int, Any] = {}
        if roots and wanted:
            leaves = [tape.used[use] for use in wanted]
            gradient = torch.autograd.grad(
                roots, leaves, arriving, retain_graph=tape.keeps_graph, allow_unused=True
            )
            found = dict(zip(wanted, gradient))
        if tape.is_used_up:
            tape.given[self.number] = []
        return [found.get(use) for use in self.uses]
