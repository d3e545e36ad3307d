"""Runs a captured program as one task, as the check before any plan does."""

from __future__ import annotations

from typing import Any

from corewise.dataflow.binding import Bound
from corewise.dataflow.capture import Captured
from corewise.dataflow.generated import lifetimes, task_function
from corewise.dataflow.schedule import Task


def replayed(captured: Captured, module: Any, *inputs: Any) -> Any:
    """What the program gives for these inputs and the module's present weights."""
    bound = Bound(captured, module)
    whole = Task(tuple(range(len(captured.program.calls))), ())
    own, _, _ = lifetimes(captured.program, [whole])
    values = bound.values(list(inputs))
    task_function(captured.program, whole, own[0])(values)
    return bound.result(values)
