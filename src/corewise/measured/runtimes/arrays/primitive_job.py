"""Run one operator on the arrays of any framework as a job, and refuse what it does not support.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, Callable, Mapping, Sequence

from corewise.measured.parameters import Float32Precision, TrialParameters
from corewise.measured.runtimes.arrays.array_contract import Arrays
from corewise.measured.runtimes.arrays.matmul import TF32_ROUNDOFF, UNIT_ROUNDOFF
from corewise.measured.runtimes.base import Check, Infeasible, RankContext, ReplicaJob
from corewise.measured.runtimes.memory_room import compute_memory_share, require_room
from corewise.measured.runtimes.trial_params import require_defaults
from corewise.measured.workloads.primitives.matmul import compute_product_tolerance
from corewise.measured.workloads.primitives.primitive_workload import PrimitiveWorkload

Facts = Callable[[], Mapping[str, Any]]
Operate = Callable[[], Sequence[Any]]


class ArraysPrimitiveJob(ReplicaJob):
    """Calls the operator in every step; its ranks are independent replicas."""

    samples_per_step = 1.0

    def __init__(
        self, arrays: Arrays, noun: str, operate: Operate, check: Callable[[Sequence[Any]], Check], facts: Facts
    ) -> None:
        self._run_operator, self._finish, self._check, self._facts = operate, arrays.finish, check, facts
        try:
            self.step()
        except (RuntimeError, NotImplementedError, ValueError) as problem:
            raise _build_refusal(arrays.runtime, noun, problem) from problem
        except Exception as problem:
            # The errors of TensorFlow have a separate base class.
            if type(problem).__module__.startswith("tensorflow"):
                raise _build_refusal(arrays.runtime, noun, problem) from problem
            raise

    def check(self) -> Check:
        """Check the results of one extra step."""
        return self._check(self._run_operator())

    def step(self) -> None:
        self._finish(*self._run_operator())

    def read_facts(self) -> Mapping[str, Any]:
        return self._facts()


def require_primitive(
    arrays: Arrays,
    workload: PrimitiveWorkload,
    noun: str,
    params: TrialParameters,
    context: RankContext,
    memory_factor: float = 1.0,
) -> None:
    """Raise Infeasible with the reason if the framework lacks the operator or the memory for it.

    Args:
        memory_factor: memory needed here over the estimate of the workload.
    """
    runtime, dtype, arguments = arrays.runtime, params.dtype.value, params.arguments
    require_defaults(params, ("memory_format", "execution", "freezing", "data"), f"{runtime}'s {noun} is one operator")
    refusal = workload.explain_refusal(params)
    if refusal is not None:
        raise Infeasible(refusal)
    if dtype not in UNIT_ROUNDOFF:
        raise Infeasible(f"dtype {dtype}: {runtime} has no integer {noun} that rounds its result")
    if dtype not in arrays.dtypes:
        known = [name for name in UNIT_ROUNDOFF if name in arrays.dtypes]
        raise Infeasible(f"dtype {dtype}: {runtime} has no fast products in this format; use {' or '.join(known)}")
    if arguments.get("reorders", "included") == "excluded":
        raise Infeasible(f"reorders excluded: {runtime} takes no prepared weights; torch with oneDNN does")
    if arguments.get("benchdnn"):
        raise Infeasible("args.benchdnn: benchdnn is compared with runtime torch only")
    require_room(workload, params, context, compute_memory_share(arrays, context), memory_factor)


def compute_tolerance(params: TrialParameters, num_terms: int) -> float:
    """Compute the error allowed in sums of `num_terms` products in the number format of the trial."""
    stored = UNIT_ROUNDOFF[params.dtype.value]
    summed = min(stored, UNIT_ROUNDOFF["float32"])
    tf32 = params.float32_precision == Float32Precision.TF32
    return compute_product_tolerance(num_terms, max(stored, TF32_ROUNDOFF) if tf32 else stored, summed)


def _build_refusal(runtime: str, noun: str, problem: Exception) -> Infeasible:
    """Build the refusal from the most useful line of the error, which TensorFlow puts last."""
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()] or [type(problem).__name__]
    useful = [line for line in lines[1:] if not line.startswith(("Detected", "File ", "[["))]
    message = useful[-1] if useful and lines[0].startswith("Graph execution error") else lines[0]
    return Infeasible(f"{runtime} does not support this {noun}: {message[:300]}")
