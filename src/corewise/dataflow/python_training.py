"""Forward and backward of a plan's tasks on Python threads, with gradients as plain torch gives them.

Measured side: standard library and torch only, Python 3.9.

Both passes are programs of their own, one call a task, run like any other program.
"""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence, Tuple

import torch

from corewise.dataflow.generated import task_function
from corewise.dataflow.program import Program, Ref
from corewise.dataflow.python_executor import PythonExecutor
from corewise.dataflow.schedule import Plan, Task
from corewise.dataflow.segments import (
    Tape,
    backward_program,
    forward_program,
    renumbered,
    single,
    single_reversed,
    summed,
)
from corewise.dataflow.teams import Teams
from corewise.dataflow.timeline import Span
from corewise.dataflow.training import borders, may_repeat, reversed_plan, training_obstacle

_keeps_graph: Optional[Callable[[], bool]] = getattr(
    torch._C._autograd, "_get_current_graph_task_keep_graph", None
)


class PythonTraining:
    """A plan on Python threads whose backward pass, where one is asked for, runs by the plan backwards."""

    name = "python"
    handover_s = PythonExecutor.handover_s

    def __init__(
        self,
        program: Program,
        tasks: Sequence[Task],
        plan: Plan,
        teams: Teams,
        backward_plan: Optional[Plan] = None,
    ) -> None:
        self.program, self.plan, self.teams = program, plan, teams
        self.may_repeat = may_repeat(program)
        self.training_obstacle = training_obstacle(program, tasks, may_write_across=False)
        self.inference = self.last = PythonExecutor(program, tasks, plan, teams)
        if not self.training_obstacle:
            self.borders = borders(program, tasks)
            made = {value for call in program.calls for value in call.results}
            outputs = dict.fromkeys(o.value for o in program.outputs if isinstance(o, Ref))
            self.outputs = tuple(value for value in outputs if value in made)  # others go out as they came
            self.forward = PythonExecutor(
                forward_program(program, tasks, self.borders), single(tasks), plan, teams
            )
            back = renumbered(backward_plan or reversed_plan(plan), len(tasks))
            self.back_program = backward_program(tasks, self.borders, self.outputs)
            self.backward = PythonExecutor(self.back_program, single_reversed(tasks), back, teams)

    @property
    def spans(self) -> List[Span]:
        """When each task of the last call ran."""
        return self.last.spans

    @property
    def backward_spans(self) -> List[Span]:
        """When each task of the last backward pass ran."""
        if self.training_obstacle:
            return []
        last = len(self.plan.steps) - 1
        return [span._replace(task=last - span.task) for span in self.backward.spans]

    def run(self, values: List[Any]) -> None:
        """Computes the program's values in place; on return the outputs are among them."""
        sources = self._sources(values)
        if self.training_obstacle or not sources:
            self.last = self.inference
            self.inference.run(values)
            return
        self.last = self.forward
        results = _Whole.apply(self, values, sources, *[values[value] for value in sources])  # type: ignore[no-untyped-call]
        for value, result in zip(self.outputs, results):
            values[value] = result

    def _sources(self, values: Sequence[Any]) -> List[int]:
        if not torch.is_grad_enabled():
            return []
        brought = (*self.program.inputs, *self.program.state, *self.program.constants)
        return [v for v in brought if isinstance(values[v], torch.Tensor) and values[v].requires_grad]

    def run_forward(self, values: List[Any]) -> Tape:
        """Computes the values, each task with a graph of its own, which the tape keeps."""
        tape = Tape(len(self.borders.gives), len(self.borders.uses))
        values.append(tape)
        with torch.enable_grad():
            self.forward.run(values)
        values.pop()
        return tape

    def run_backward(self, tape: Tape, arriving: Sequence[Any]) -> List[Any]:
        """The gradients of all uses, for those of the outputs."""
        values: List[Any] = [None] * self.back_program.num_values
        values[0] = tape
        values[1 : 1 + len(arriving)] = arriving
        if not self._ran_backward(values):  # closed meanwhile
            for step in sorted(self.backward.steps, key=lambda one: one.task):
                step.run(values)
        return values[1 + len(arriving) :]

    def _ran_backward(self, values: List[Any]) -> bool:
        if not self.teams.is_open:  # nor is the lock to be had, in a forked child
            return False
        with self.teams.lock:
            is_open = self.teams.is_open
            if is_open:
                self.backward.run(values)
        return is_open

    def repeated(self, values: List[Any]) -> None:
        """Computes the values in one piece, as plain torch would."""
        if not self.may_repeat:
            raise RuntimeError(
                "gradients of gradients need the program once more, and it draws random numbers or writes to "
                "buffers: call the model itself for them"
            )
        task_function(self.program, Task(tuple(range(len(self.program.calls))), ()), set())(values)


_TWICE = (
    "Trying to backward through the graph a second time (or directly access saved tensors after they have "
    "already been freed). Specify retain_graph=True if you need to backward through the graph a second time."
)


class _Whole(torch.autograd.Function):
    """The whole program as one node of the caller's graph."""

    @staticmethod
    def forward(
        ctx: Any, training: PythonTraining, values: List[Any], sources: List[int], *given: Any
    ) -> Tuple[Any, ...]:
        ctx.save_for_backward(*given)
        ctx.set_materialize_grads(False)
        ctx.training, ctx.sources = training, sources
        ctx.others = list(values) if training.may_repeat else None
        for value in sources if ctx.others else ():
            ctx.others[value] = None  # among the saved tensors
        ctx.tape = training.run_forward(values)
        made = [values[value] for value in training.outputs]
        results = [one.detach() if isinstance(one, torch.Tensor) else one for one in made]
        tensors = [(one, result) for one, result in zip(made, results) if isinstance(one, torch.Tensor)]
        ctx.mark_non_differentiable(*[result for one, result in tensors if not one.requires_grad])
        ctx.left = {n for n, one in enumerate(made) if isinstance(one, torch.Tensor) and one.requires_grad}
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *arriving: Any) -> Any:
        training: PythonTraining = ctx.training
        if torch.is_grad_enabled():
            return (None, None, None, *_differentiable(ctx, ctx.saved_tensors, arriving))
        tape: Optional[Tape] = ctx.tape
        if tape is None:
            raise RuntimeError(_TWICE)
        keeps = _keeps_graph is None or _keeps_graph()
        if not keeps:  # results with histories of their own may be differentiated one after the other
            ctx.left -= {n for n, gradient in enumerate(arriving) if gradient is not None}
            if not ctx.left:
                tape.is_used_up, ctx.tape = True, None
        wanted = dict(zip(ctx.sources, ctx.needs_input_grad[3:]))
        tape.keeps_graph = keeps
        tape.is_wanted = [wanted.get(use.value, True) for use in training.borders.uses]
        found = training.run_backward(tape, arriving)
        gradients = []
        for value in ctx.sources:
            uses = training.borders.uses_of_value.get(value, ())
            gradients.append(summed([found[use] for use in reversed(uses)]) if wanted[value] else None)
        return (None, None, None, *gradients)


def _differentiable(ctx: Any, given: Sequence[Any], arriving: Sequence[Any]) -> Sequence[Any]:
    """Gradients with a graph of their own, from the program once more."""
    values = list(ctx.others or [None] * ctx.training.program.num_values)
    for value, tensor in zip(ctx.sources, given):
        values[value] = tensor
    ctx.training.repeated(values)
    pairs = [
        (values[v], g)
        for v, g in zip(ctx.training.outputs, arriving)
        if g is not None and values[v].requires_grad
    ]
    roots, gradients = [root for root, _ in pairs], [gradient for _, gradient in pairs]
    return torch.autograd.grad(roots, given, gradients, create_graph=True, allow_unused=True)
