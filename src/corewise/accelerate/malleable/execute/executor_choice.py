"""Build what runs a plan: the native executor where it is available, else Python threads.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, List, Optional, Protocol, Sequence, Tuple

import torch

from corewise.accelerate.capture.program import Program
from corewise.accelerate.kernels.switch import NATIVE_VARIABLE, is_native_disabled
from corewise.accelerate.malleable.execute.python_executor import PythonExecutor
from corewise.accelerate.malleable.execute.python_training import PythonTraining
from corewise.accelerate.malleable.execute.thread_teams import Teams
from corewise.accelerate.malleable.execute.timeline import Span
from corewise.accelerate.malleable.idle_threads import warn_once
from corewise.accelerate.malleable.plan.schedule import LanePlan, OperatorTask

EXECUTOR_NAMES = ("native", "python")


class Executor(Protocol):
    """A plan ready to run."""

    name: str
    plan: LanePlan
    teams: Teams

    def run(self, values: List[Any]) -> None:
        """Compute the values in place; on return the program's outputs are among them."""

    @property
    def spans(self) -> Sequence[Span]:
        """When each task of the last call ran."""

    @property
    def backward_spans(self) -> Sequence[Span]:
        """When each task of the last backward pass ran; empty if torch differentiates the whole program."""


def choose_executor(requested: Optional[str]) -> Tuple[str, str]:
    """Return the executor that runs, and why not the native one; raise if the requested one is missing."""
    if requested not in (None, *EXECUTOR_NAMES):
        raise ValueError(f"executor={requested!r}: use {', '.join(map(repr, EXECUTOR_NAMES))}, or None for the best")
    if requested == "python":
        return "python", "requested"
    reason = _check_native()
    if reason and requested == "native":
        raise RuntimeError(f"executor='native': {reason}")
    if reason:
        warn_once(f"Plans run on Python threads because the C++ executor is missing: {reason}")
        return "python", reason
    return "native", ""


def _check_native() -> str:
    """Return why there is no native executor; the first call builds it."""
    if is_native_disabled():
        return f"{NATIVE_VARIABLE}=0 disables it"
    from corewise.accelerate.malleable.execute.cpp_executor import explain_missing_native

    return explain_missing_native()


def estimate_handover_s(executor_name: str) -> float:
    """Return the seconds that the planner assumes for continuing on another thread."""
    if executor_name == "native":
        from corewise.accelerate.malleable.execute.cpp_executor import HANDOVER_S

        return HANDOVER_S
    return PythonExecutor.handover_s


def build_executor(
    executor_name: str, program: Program, tasks: Sequence[OperatorTask], plan: LanePlan, teams: Teams
) -> Executor:
    """Build an executor for the plan; Python threads where the native one cannot run the program."""
    if executor_name == "native":
        from corewise.accelerate.malleable.execute.cpp_executor import NativeExecutor, NotNativeError

        try:
            return NativeExecutor(program, tasks, plan, teams)
        except NotNativeError:
            pass
    if torch.is_grad_enabled():
        return PythonTraining(program, tasks, plan, teams)
    return PythonExecutor(program, tasks, plan, teams)
