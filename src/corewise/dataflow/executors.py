"""What runs a plan: the native executor where it can be had, Python threads otherwise.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, List, Optional, Protocol, Sequence, Tuple

import torch

from corewise.dataflow.native.switch import NATIVE_SWITCH, is_switched_off
from corewise.dataflow.program import Program
from corewise.dataflow.python_executor import PythonExecutor
from corewise.dataflow.python_training import PythonTraining
from corewise.dataflow.schedule import Plan, Task
from corewise.dataflow.spinning import note_once
from corewise.dataflow.teams import Teams
from corewise.dataflow.timeline import Span

KINDS = ("native", "python")


class Executor(Protocol):
    """A plan ready to run."""

    name: str
    plan: Plan
    teams: Teams

    def run(self, values: List[Any]) -> None:
        """Computes the values in place; on return the program's outputs are among them."""

    @property
    def spans(self) -> Sequence[Span]:
        """When each task of the last call ran."""

    @property
    def backward_spans(self) -> Sequence[Span]:
        """When each task of the last backward pass ran; none where torch differentiates the whole."""


def available(kind: Optional[str]) -> Tuple[str, str]:
    """The kind that will run, and why not the other; a kind asked for by name must be there."""
    if kind not in (None, *KINDS):
        raise ValueError(f"executor={kind!r}: known are {', '.join(map(repr, KINDS))}, or None for the best")
    if kind == "python":
        return "python", "asked for"
    reason = _native_missing()
    if reason and kind == "native":
        raise RuntimeError(f"executor='native': {reason}")
    if reason:
        note_once(f"Python threads run the plans, because there is no C++ executor here: {reason}")
        return "python", reason
    return "native", ""


def _native_missing() -> str:
    """Why there is no native executor here; the first time this builds it."""
    if is_switched_off():
        return f"{NATIVE_SWITCH}=0 says so"
    from corewise.dataflow.native_executor import missing

    return missing()


def handover_s(kind: str) -> float:
    """What it costs to have another thread go on, for the planner."""
    if kind == "native":
        from corewise.dataflow.native_executor import HANDOVER_S

        return HANDOVER_S
    return PythonExecutor.handover_s


def make(kind: str, program: Program, tasks: Sequence[Task], plan: Plan, teams: Teams) -> Executor:
    """The plan, ready to run; by Python threads where the native executor cannot take the program."""
    if kind == "native":
        from corewise.dataflow.native_executor import NativeExecutor, NotNative

        try:
            return NativeExecutor(program, tasks, plan, teams)
        except NotNative:
            pass
    if torch.is_grad_enabled():
        return PythonTraining(program, tasks, plan, teams)
    return PythonExecutor(program, tasks, plan, teams)
