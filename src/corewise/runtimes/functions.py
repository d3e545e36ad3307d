"""A user's function and its inputs as a job, compiled as the framework compiles.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, Callable, Mapping, Sequence

import numpy as np

from corewise.runtimes.base import Check, Infeasible, ReplicaJob, WorkloadError

TOLERANCE = 1e-4  # of float32, as torch's modules have it

Outputs = Callable[[], Sequence[Any]]  # what the function returned, as numpy arrays


def require_inference(name: str, module: Any, mode: str, runtime: str) -> None:
    """Raises for what is no function, and for training, of which a function does not say how."""
    if not callable(module):
        raise WorkloadError(
            f"{name} returned {type(module).__name__} and inputs; runtime {runtime} runs a function "
            'and its inputs, or {"step": callable}'
        )
    if mode == "train":
        raise Infeasible(
            f'mode train: {name} returned a function; a step that trains is {{"step": callable}}'
        )


class FunctionJob(ReplicaJob):
    """Calls the compiled function on the same inputs; ranks are replicas that know nothing of each other."""

    def __init__(
        self,
        num_samples: int,
        call: Callable[[], None],
        outputs: Outputs,
        expected: Outputs,
        facts: Callable[[], Mapping[str, Any]],
    ) -> None:
        self.samples_per_step = float(num_samples)
        self._call, self._outputs, self._expected, self._facts = call, outputs, expected, facts

    def check(self) -> Check:
        """What the compiled function returns against the function as it stands, operator by operator."""
        got, wanted = self._outputs(), self._expected()
        if len(got) != len(wanted) or not got:
            raise WorkloadError("the function returns no arrays, or others each time")
        return Check(max(map(_difference, got, wanted)), TOLERANCE, "the function itself, not compiled")

    def step(self) -> None:
        self._call()

    def facts(self) -> Mapping[str, Any]:
        return self._facts()


def _difference(got: Any, wanted: Any) -> float:
    """The largest difference over the largest value expected; NaN where either has one."""
    if got.shape != wanted.shape:
        return float("inf")
    if not got.size:
        return 0.0
    got, wanted = (
        np.asarray(each).astype(np.complex128 if each.dtype.kind == "c" else np.float64)
        for each in (got, wanted)
    )
    return float(np.max(np.abs(got - wanted)) / max(float(np.max(np.abs(wanted))), 1e-30))
