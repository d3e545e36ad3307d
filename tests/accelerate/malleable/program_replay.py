"""Replay a captured program as one task, as the check before any plan does."""

from __future__ import annotations

from typing import Any

from corewise.accelerate.malleable.capture.module_capture import CapturedProgram
from corewise.accelerate.malleable.execute.module_binding import BoundProgram
from corewise.accelerate.malleable.execute.task_functions import compile_task, compute_lifetimes
from corewise.accelerate.malleable.plan.schedule import OperatorTask


def replay(captured: CapturedProgram, module: Any, *inputs: Any) -> Any:
    """Run the program on these inputs and the module's current weights."""
    bound = BoundProgram(captured, module)
    whole = OperatorTask(tuple(range(len(captured.program.calls))), ())
    own, _, _ = compute_lifetimes(captured.program, [whole])
    values = bound.collect_values(list(inputs))
    compile_task(captured.program, whole, own[0])(values)
    return bound.build_result(values)
