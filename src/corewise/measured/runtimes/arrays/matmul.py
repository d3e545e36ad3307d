"""The matrix product on frameworks whose arrays are immutable.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, Callable, Mapping

from corewise.measured.parameters import Float32Precision, TrialParameters
from corewise.measured.runtimes.arrays.array_contract import Arrays
from corewise.measured.runtimes.base import Check, Infeasible, RankContext, ReplicaJob
from corewise.measured.runtimes.memory_room import compute_memory_share, require_room
from corewise.measured.runtimes.trial_params import compute_rank_batch, require_defaults
from corewise.measured.workloads.primitives.freivalds_check import compute_product_error
from corewise.measured.workloads.primitives.matmul import MATMUL, compute_product_tolerance

UNIT_ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
TF32_ROUNDOFF = 2.0**-11

Facts = Callable[[], Mapping[str, Any]]


class ArraysMatmulJob(ReplicaJob):
    """C = A·B; if the framework can, each product reuses the memory of the previous one."""

    def __init__(self, arrays: Arrays, size: int, batch: int, dtype: str, seed: int, tf32: bool, facts: Facts) -> None:
        self.samples_per_step = float(batch)
        self._arrays, self._dtype, self._tf32, self._facts = arrays, dtype, tf32, facts
        shape = (size, size) if batch == 1 else (batch, size, size)
        self._a, self._b = (arrays.draw_normal(shape, dtype, 2 * seed + i) for i in range(2))
        self._c: Any = arrays.matmul(self._a, self._b)

    def check(self) -> Check:
        """Run Freivalds' check on every product of a step."""
        self.step()
        size = self._a.shape[-1]
        error = compute_product_error(*(self._arrays.to_host(m) for m in (self._a, self._b, self._c)))
        stored = UNIT_ROUNDOFF[self._dtype]
        summed = min(stored, UNIT_ROUNDOFF["float32"])
        stored = max(stored, TF32_ROUNDOFF) if self._tf32 else stored
        reference = "the product with a random vector in float64"
        return Check(error, compute_product_tolerance(size, stored, summed), reference)

    def step(self) -> None:
        self._c = self._arrays.matmul(self._a, self._b, out=self._c)
        self._arrays.finish(self._c)

    def read_facts(self) -> Mapping[str, Any]:
        output_dtype = str(getattr(self._c.dtype, "name", self._c.dtype))
        return {**self._facts(), "output_dtype": output_dtype}


def prepare_arrays_matmul(
    arrays: Arrays, params: TrialParameters, context: RankContext, facts: Facts
) -> ArraysMatmulJob:
    """Prepare the job; raise Infeasible if the parameters do not apply to a single operator."""
    require_defaults(
        params, ("memory_format", "execution", "freezing", "data"), "matmul is a single operator on matrices"
    )
    dtype = params.dtype.value
    if dtype not in UNIT_ROUNDOFF:
        raise Infeasible(f"dtype {dtype}: a single product has no layers to quantise")
    require_room(MATMUL, params, context, compute_memory_share(arrays, context), _estimate_memory_factor(arrays, dtype))
    tf32 = params.float32_precision == Float32Precision.TF32
    size, batch = MATMUL.read_size(params.arguments), compute_rank_batch(params)
    return ArraysMatmulJob(arrays, size, batch, dtype, context.rank, tf32, facts)


def _estimate_memory_factor(arrays: Arrays, dtype: str) -> float:
    """Estimate the memory factor: the check copies the matrices to the host, 16-bit ones as float32."""
    if arrays.device != "cpu":
        return 1.0
    return 3.0 if dtype in ("bfloat16", "float16") else 2.0
