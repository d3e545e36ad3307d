"""One operator on any framework's arrays as a job, and what every such job refuses.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, Callable, Mapping, Sequence

from corewise.runtimes.arrays import Arrays
from corewise.runtimes.arrays_matmul import TF32_ROUNDOFF, UNIT_ROUNDOFF
from corewise.runtimes.base import Check, Infeasible, RankContext, ReplicaJob
from corewise.runtimes.params import require_defaults
from corewise.runtimes.room import require_room, share_of_memory
from corewise.workloads.base import workload_args
from corewise.workloads.primitives.matmul import product_tolerance
from corewise.workloads.primitives.workload import PrimitiveWorkload

Facts = Callable[[], Mapping[str, Any]]
Operate = Callable[[], Sequence[Any]]


class ArraysPrimitiveJob(ReplicaJob):
    """Calls the operator in every step; several ranks are replicas that know nothing of each other."""

    samples_per_step = 1.0

    def __init__(
        self,
        arrays: Arrays,
        noun: str,
        operate: Operate,
        check: Callable[[Sequence[Any]], Check],
        facts: Facts,
    ) -> None:
        self._operate, self._finish, self._checked, self._facts = operate, arrays.finish, check, facts
        try:
            self.step()
        except (RuntimeError, NotImplementedError, ValueError) as met:
            raise _refused(arrays.runtime, noun, met) from met
        except Exception as met:  # TensorFlow's errors have a base of their own
            if type(met).__module__.startswith("tensorflow"):
                raise _refused(arrays.runtime, noun, met) from met
            raise

    def check(self) -> Check:
        """The numbers of a step of their own."""
        return self._checked(self._operate())

    def step(self) -> None:
        self._finish(*self._operate())

    def facts(self) -> Mapping[str, Any]:
        return self._facts()


def require_primitive(
    arrays: Arrays,
    workload: PrimitiveWorkload,
    noun: str,
    params: Mapping[str, Any],
    context: RankContext,
    memory_factor: float = 1.0,
) -> None:
    """Raises Infeasible with the reason where the framework, or any, has no such operator or no room.

    The factor is the memory it takes here over what the workload says of it.
    """
    runtime, dtype, own = arrays.runtime, str(params["dtype"]), workload_args(params)
    require_defaults(
        params, ("memory_format", "execution", "freezing", "data"), f"{runtime}'s {noun} is one operator"
    )
    refusal = workload.refusal(params)
    if refusal is not None:
        raise Infeasible(refusal)
    if dtype not in UNIT_ROUNDOFF:
        raise Infeasible(f"dtype {dtype}: {runtime} has no {noun} of whole numbers that rounds its result")
    if dtype not in arrays.dtypes:
        known = [name for name in UNIT_ROUNDOFF if name in arrays.dtypes]
        raise Infeasible(f"dtype {dtype}: {runtime} has no fast products of it; use {' or '.join(known)}")
    if own.get("reorders", "included") == "excluded":
        raise Infeasible(f"reorders excluded: {runtime} takes no prepared weights; torch with oneDNN does")
    if own.get("benchdnn"):
        raise Infeasible("args.benchdnn: its figures are read beside torch's")
    require_room(workload, params, context, share_of_memory(arrays, context), memory_factor)


def tolerance_of(params: Mapping[str, Any], num_terms: int) -> float:
    """The error allowed in sums of so many products in the trial's number format."""
    stored = UNIT_ROUNDOFF[str(params["dtype"])]
    summed = min(stored, UNIT_ROUNDOFF["float32"])
    tf32 = str(params.get("float32_precision", "default")) == "tf32"
    return product_tolerance(num_terms, max(stored, TF32_ROUNDOFF) if tf32 else stored, summed)


def _refused(runtime: str, noun: str, met: Exception) -> Infeasible:
    lines = [line.strip() for line in str(met).splitlines() if line.strip()] or [type(met).__name__]
    telling = [line for line in lines[1:] if not line.startswith(("Detected", "File ", "[["))]
    said = telling[-1] if telling and lines[0].startswith("Graph execution error") else lines[0]
    return Infeasible(f"{runtime} has no such {noun}: {said[:300]}")
