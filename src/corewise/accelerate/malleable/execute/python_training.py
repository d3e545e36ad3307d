"""Run forward and backward passes of a plan's tasks on Python threads, with torch's gradients.

Measured side: standard library and torch only, Python 3.9.

Both passes are separate programs with one call per task.
"""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence, Tuple

import torch

from corewise.accelerate.capture.program import Program, Ref
from corewise.accelerate.malleable.execute.differentiable_tasks import (
    Tape,
    build_backward_program,
    build_backward_tasks,
    build_forward_program,
    build_forward_tasks,
    convert_backward_plan,
    sum_gradients,
)
from corewise.accelerate.malleable.execute.python_executor import PythonExecutor
from corewise.accelerate.malleable.execute.task_functions import compile_task
from corewise.accelerate.malleable.execute.thread_teams import Teams
from corewise.accelerate.malleable.execute.timeline import Span
from corewise.accelerate.malleable.execute.training_order import (
    build_backward_plan,
    find_borders,
    find_training_obstacle,
    is_repeatable,
)
from corewise.accelerate.malleable.plan.schedule import LanePlan, OperatorTask

_keeps_graph: Optional[Callable[[], bool]] = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)


class PythonTraining:
    """A plan on Python threads whose backward pass runs by the reversed plan."""

    name = "python"
    handover_s = PythonExecutor.handover_s

    def __init__(
        self,
        program: Program,
        tasks: Sequence[OperatorTask],
        plan: LanePlan,
        teams: Teams,
        backward_plan: Optional[LanePlan] = None,
    ) -> None:
        self.program, self.plan, self.teams = program, plan, teams
        self.is_repeatable = is_repeatable(program)
        self.training_obstacle = find_training_obstacle(program, tasks, allows_writes_across_tasks=False)
        self.inference = self.last = PythonExecutor(program, tasks, plan, teams)
        if not self.training_obstacle:
            self.borders = find_borders(program, tasks)
            computed = {value for call in program.calls for value in call.results}
            outputs = dict.fromkeys(o.value for o in program.outputs if isinstance(o, Ref))
            # Other outputs are inputs that the program returns.
            self.outputs = tuple(value for value in outputs if value in computed)
            self.forward = PythonExecutor(
                build_forward_program(program, tasks, self.borders), build_forward_tasks(tasks), plan, teams
            )
            reversed_plan = convert_backward_plan(backward_plan or build_backward_plan(plan), len(tasks))
            self.back_program = build_backward_program(tasks, self.borders, self.outputs)
            self.backward = PythonExecutor(self.back_program, build_backward_tasks(tasks), reversed_plan, teams)

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
        """Compute the program's values in place; on return the outputs are among them."""
        sources = self._find_sources(values)
        if self.training_obstacle or not sources:
            self.last = self.inference
            self.inference.run(values)
            return
        self.last = self.forward
        results = _WholeProgram.apply(self, values, sources, *[values[value] for value in sources])  # type: ignore[no-untyped-call]
        for value, result in zip(self.outputs, results):
            values[value] = result

    def _find_sources(self, values: Sequence[Any]) -> List[int]:
        if not torch.is_grad_enabled():
            return []
        external = (*self.program.inputs, *self.program.state, *self.program.constants)
        return [v for v in external if isinstance(values[v], torch.Tensor) and values[v].requires_grad]

    def run_forward(self, values: List[Any]) -> Tape:
        """Compute the values, each task with a separate autograd graph that the tape keeps."""
        tape = Tape(len(self.borders.gives), len(self.borders.uses))
        values.append(tape)
        with torch.enable_grad():
            self.forward.run(values)
        values.pop()
        return tape

    def run_backward(self, tape: Tape, arriving: Sequence[Any]) -> List[Any]:
        """Compute the gradients of all uses from those of the outputs."""
        values: List[Any] = [None] * self.back_program.num_values
        values[0] = tape
        values[1 : 1 + len(arriving)] = arriving
        # The teams were closed since the forward pass.
        if not self._try_backward(values):
            for step in sorted(self.backward.steps, key=lambda one: one.task):
                step.run(values)
        return values[1 + len(arriving) :]

    def _try_backward(self, values: List[Any]) -> bool:
        # In a forked child the lock may be held for ever.
        if not self.teams.is_open:
            return False
        with self.teams.lock:
            is_open = self.teams.is_open
            if is_open:
                self.backward.run(values)
        return is_open

    def repeat(self, values: List[Any]) -> None:
        """Compute the values in one piece, as plain torch would."""
        if not self.is_repeatable:
            raise RuntimeError(
                "second-order gradients run the program again, but it draws random numbers or writes to "
                "buffers: call the model itself for them"
            )
        compile_task(self.program, OperatorTask(tuple(range(len(self.program.calls))), ()), set())(values)


_SECOND_BACKWARD_MESSAGE = (
    "Trying to backward through the graph a second time (or directly access saved tensors after they have "
    "already been freed). Specify retain_graph=True if you need to backward through the graph a second time."
)


class _WholeProgram(torch.autograd.Function):
    """The whole program as one node of the caller's autograd graph."""

    @staticmethod
    def forward(
        ctx: Any, training: PythonTraining, values: List[Any], sources: List[int], *inputs: Any
    ) -> Tuple[Any, ...]:
        ctx.save_for_backward(*inputs)
        ctx.set_materialize_grads(False)
        ctx.training, ctx.sources = training, sources
        ctx.others = list(values) if training.is_repeatable else None
        for value in sources if ctx.others else ():
            # Sources are among the saved tensors.
            ctx.others[value] = None
        ctx.tape = training.run_forward(values)
        outputs = [values[value] for value in training.outputs]
        results = [one.detach() if isinstance(one, torch.Tensor) else one for one in outputs]
        tensors = [(one, result) for one, result in zip(outputs, results) if isinstance(one, torch.Tensor)]
        ctx.mark_non_differentiable(*[result for one, result in tensors if not one.requires_grad])
        ctx.left = {n for n, one in enumerate(outputs) if isinstance(one, torch.Tensor) and one.requires_grad}
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *arriving: Any) -> Any:
        training: PythonTraining = ctx.training
        if torch.is_grad_enabled():
            return (None, None, None, *_compute_differentiable(ctx, ctx.saved_tensors, arriving))
        tape: Optional[Tape] = ctx.tape
        if tape is None:
            raise RuntimeError(_SECOND_BACKWARD_MESSAGE)
        keeps_graph = _keeps_graph is None or _keeps_graph()
        # Separate results may be differentiated one after the other.
        if not keeps_graph:
            ctx.left -= {n for n, gradient in enumerate(arriving) if gradient is not None}
            if not ctx.left:
                tape.is_used_up, ctx.tape = True, None
        wanted = dict(zip(ctx.sources, ctx.needs_input_grad[3:]))
        tape.keeps_graph = keeps_graph
        tape.is_wanted = [wanted.get(use.value, True) for use in training.borders.uses]
        use_gradients = training.run_backward(tape, arriving)
        gradients = []
        for value in ctx.sources:
            uses = training.borders.uses_of_value.get(value, ())
            gradients.append(sum_gradients([use_gradients[use] for use in reversed(uses)]) if wanted[value] else None)
        return (None, None, None, *gradients)


def _compute_differentiable(ctx: Any, inputs: Sequence[Any], arriving: Sequence[Any]) -> Sequence[Any]:
    """Compute gradients with an autograd graph by running the program again."""
    values = list(ctx.others or [None] * ctx.training.program.num_values)
    for value, tensor in zip(ctx.sources, inputs):
        values[value] = tensor
    ctx.training.repeat(values)
    pairs = [
        (values[v], g) for v, g in zip(ctx.training.outputs, arriving) if g is not None and values[v].requires_grad
    ]
    roots, gradients = [root for root, _ in pairs], [gradient for _, gradient in pairs]
    return torch.autograd.grad(roots, inputs, gradients, create_graph=True, allow_unused=True)
