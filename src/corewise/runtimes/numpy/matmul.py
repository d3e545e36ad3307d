"""The product of matrices on numpy.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, Mapping

import numpy as np

from corewise.runtimes.base import Check, Infeasible, RankContext, ReplicaJob
from corewise.runtimes.numpy.runtime import read_back
from corewise.runtimes.params import rank_batch
from corewise.runtimes.room import host_share_bytes, require_room
from corewise.workloads.base import workload_args
from corewise.workloads.primitives.matmul import MATMUL, product_tolerance
from corewise.workloads.primitives.product_check import product_error

UNIT_ROUNDOFF = {"float32": 2.0**-24, "float64": 2.0**-53}


class MatmulJob(ReplicaJob):
    """C = A·B, the output's memory used again in every step."""

    def __init__(self, size: int, batch: int, dtype: str, seed: int) -> None:
        self.samples_per_step = float(batch)
        self._random = np.random.default_rng(seed)
        self._a, self._b = (self._fresh((batch, size, size), dtype) for _ in range(2))
        self._c = np.empty_like(self._a)

    def _fresh(self, shape: tuple[int, ...], dtype: str) -> Any:
        return self._random.random(shape, dtype=np.dtype(dtype).type) * 2 - 1

    def check(self) -> Check:
        """Freivalds' check of every product of a step."""
        self.step()
        size = self._a.shape[-1]
        error = product_error(self._a, self._b, self._c)
        roundoff = UNIT_ROUNDOFF[self._a.dtype.name]
        tolerance = product_tolerance(size, roundoff, roundoff)
        return Check(error, tolerance, "the product with a random vector in float64")

    def step(self) -> None:
        np.matmul(self._a, self._b, out=self._c)

    def facts(self) -> Mapping[str, Any]:
        return {**read_back(), "output_dtype": self._c.dtype.name}


def prepare_matmul(params: Mapping[str, Any], context: RankContext) -> MatmulJob:
    """The job; numpy multiplies float32 and float64 by BLAS, nothing else."""
    dtype = str(params["dtype"])
    if dtype not in UNIT_ROUNDOFF:
        raise Infeasible(f"numpy has no fast product of {dtype} matrices; use float32 or float64")
    require_room(MATMUL, params, context, host_share_bytes(context))
    return MatmulJob(MATMUL.size(workload_args(params)), rank_batch(params), dtype, seed=context.rank)
