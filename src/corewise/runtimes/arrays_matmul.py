"""The product of matrices on the arrays of a framework that writes no array in place.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, Callable, Mapping

from corewise.runtimes.arrays import Arrays
from corewise.runtimes.base import Check, Infeasible, RankContext, ReplicaJob
from corewise.runtimes.params import rank_batch, require_defaults
from corewise.runtimes.room import require_room, share_of_memory
from corewise.workloads.base import workload_args
from corewise.workloads.primitives.matmul import MATMUL, product_tolerance
from corewise.workloads.primitives.product_check import product_error

UNIT_ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
TF32_ROUNDOFF = 2.0**-11

Facts = Callable[[], Mapping[str, Any]]


class MatmulJob(ReplicaJob):
    """C = A·B; where the framework can, the last step's memory takes the next product."""

    def __init__(
        self, arrays: Arrays, size: int, batch: int, dtype: str, seed: int, tf32: bool, facts: Facts
    ) -> None:
        self.samples_per_step = float(batch)
        self._arrays, self._dtype, self._tf32, self._facts = arrays, dtype, tf32, facts
        shape = (size, size) if batch == 1 else (batch, size, size)
        self._a, self._b = (arrays.normal(shape, dtype, 2 * seed + i) for i in range(2))
        self._c: Any = arrays.matmul(self._a, self._b)

    def check(self) -> Check:
        """Freivalds' check of every product of a step."""
        self.step()
        size = self._a.shape[-1]
        error = product_error(*(self._arrays.to_host(m) for m in (self._a, self._b, self._c)))
        stored = UNIT_ROUNDOFF[self._dtype]
        summed = min(stored, UNIT_ROUNDOFF["float32"])
        stored = max(stored, TF32_ROUNDOFF) if self._tf32 else stored
        reference = "the product with a random vector in float64"
        return Check(error, product_tolerance(size, stored, summed), reference)

    def step(self) -> None:
        self._c = self._arrays.matmul(self._a, self._b, out=self._c)
        self._arrays.finish(self._c)

    def facts(self) -> Mapping[str, Any]:
        output_dtype = str(getattr(self._c.dtype, "name", self._c.dtype))
        return {**self._facts(), "output_dtype": output_dtype}


def prepare_product(
    arrays: Arrays, params: Mapping[str, Any], context: RankContext, facts: Facts
) -> MatmulJob:
    """The job; one operator has no layout to choose and nothing to compile."""
    require_defaults(
        params, ("memory_format", "execution", "freezing", "data"), "matmul is a single operator on matrices"
    )
    dtype = str(params["dtype"])
    if dtype not in UNIT_ROUNDOFF:
        raise Infeasible(f"dtype {dtype}: a single product has no layers to quantise")
    require_room(MATMUL, params, context, share_of_memory(arrays, context), _memory_factor(arrays, dtype))
    tf32 = str(params.get("float32_precision", "default")) == "tf32"
    size, batch = MATMUL.size(workload_args(params)), rank_batch(params)
    return MatmulJob(arrays, size, batch, dtype, context.rank, tf32, facts)


def _memory_factor(arrays: Arrays, dtype: str) -> float:
    """For the check matrices lie in the host's memory once more, those of 16 bits as float32."""
    if arrays.device != "cpu":
        return 1.0
    return 3.0 if dtype in ("bfloat16", "float16") else 2.0
