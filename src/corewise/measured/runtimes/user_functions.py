"""Run the function of a user on its inputs as a job, compiled by the framework.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, Callable, Mapping, Sequence

import numpy as np

from corewise.measured.runtimes.base import Check, Infeasible, ReplicaJob, WorkloadError

# The relative error allowed in float32, the same as for torch modules.
TOLERANCE = 1e-4

# Returns the results of the function as numpy arrays.
OutputReader = Callable[[], Sequence[Any]]


def require_inference(name: str, module: Any, mode: str, runtime: str) -> None:
    """Raise if the object is not callable, or if the mode is train, which a function does not define."""
    if not callable(module):
        raise WorkloadError(
            f"{name} returned {type(module).__name__} and inputs; return a function and its inputs for "
            f'runtime {runtime}, or {{"step": callable}}'
        )
    if mode == "train":
        raise Infeasible(f'mode train: {name} returned a function, not a step; to train, return {{"step": callable}}')


class FunctionJob(ReplicaJob):
    """Calls the compiled function on the same inputs; its ranks are independent replicas."""

    def __init__(
        self,
        num_samples: int,
        call: Callable[[], None],
        outputs: OutputReader,
        expected: OutputReader,
        facts: Callable[[], Mapping[str, Any]],
    ) -> None:
        self.samples_per_step = float(num_samples)
        self._call, self._outputs, self._expected, self._facts = call, outputs, expected, facts

    def check(self) -> Check:
        """Compare the results of the compiled function with those of the plain one."""
        actual, expected = self._outputs(), self._expected()
        if len(actual) != len(expected) or not actual:
            raise WorkloadError("the function returns no arrays, or a different number each time")
        error = max(map(_compute_difference, actual, expected))
        return Check(error, TOLERANCE, "the function itself, not compiled")

    def step(self) -> None:
        self._call()

    def read_facts(self) -> Mapping[str, Any]:
        return self._facts()


def _compute_difference(actual: Any, expected: Any) -> float:
    """Return the largest difference over the largest expected value; NaN if either contains one."""
    if actual.shape != expected.shape:
        return float("inf")
    if not actual.size:
        return 0.0
    actual, expected = (
        np.asarray(each).astype(np.complex128 if each.dtype.kind == "c" else np.float64) for each in (actual, expected)
    )
    return float(np.max(np.abs(actual - expected)) / max(float(np.max(np.abs(expected))), 1e-30))
