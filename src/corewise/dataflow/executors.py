"""What runs a plan: the native executor where it can be had, Python threads otherwise.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, List, Optional, Protocol, Sequence, Tuple

from corewise.dataflow.program import Program
from corewise.dataflow.python_executor import PythonExecutor
from corewise.dataflow.schedule import Plan, Task
from corewise.dataflow.teams import Teams
from corewise.dataflow.timeline import Span

KINDS = ("native", "python")


class Executor(Protocol):
    """A plan ready to run."""

    name: str
    plan: Plan

    def run(self, values: List[Any]) -> None:
        """Computes the values in place; on return the program's outputs are among them."""

    @property
    def spans(self) -> Sequence[Span]:
        """When each task of the last call ran."""


def available(kind: Optional[str]) -> Tuple[str, str]:
    """The kind that will run, and why not the other; a kind asked for by name must be there."""
    if kind not in (None, *KINDS):
        raise ValueError(f"executor={kind!r}: known are {', '.join(map(repr, KINDS))}, or None for the best")
    if kind == "python":
        return "python", "asked for"
    reason = _native_missing()
    if reason and kind == "native":
        raise RuntimeError(f"executor='native': {reason}")
    return ("python", reason) if reason else ("native", "")


def _native_missing() -> str:
    return "not built yet"


def handover_s(kind: str) -> float:
    """What it costs to have another thread go on, for the planner."""
    return 5e-6 if kind == "native" else PythonExecutor.handover_s


def make(kind: str, program: Program, tasks: Sequence[Task], plan: Plan, teams: Teams) -> Executor:
    """The plan, ready to run."""
    return PythonExecutor(program, tasks, plan, teams)
