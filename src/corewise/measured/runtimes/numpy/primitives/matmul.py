"""The matrix product on numpy.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, Mapping

import numpy as np

from corewise.measured.parameters import TrialParameters
from corewise.measured.runtimes.base import Check, Infeasible, RankContext, ReplicaJob
from corewise.measured.runtimes.memory_room import compute_host_share_bytes, require_room
from corewise.measured.runtimes.numpy.runtime import read_back
from corewise.measured.runtimes.trial_params import compute_rank_batch
from corewise.measured.workloads.primitives.freivalds_check import compute_product_error
from corewise.measured.workloads.primitives.matmul import MATMUL, compute_product_tolerance

UNIT_ROUNDOFF = {"float32": 2.0**-24, "float64": 2.0**-53}


class NumpyMatmulJob(ReplicaJob):
    """C = A·B; every step reuses the memory of the output."""

    def __init__(self, size: int, batch: int, dtype: str, seed: int) -> None:
        self.samples_per_step = float(batch)
        self._random = np.random.default_rng(seed)
        self._a, self._b = (self._draw_matrices((batch, size, size), dtype) for _ in range(2))
        self._c = np.empty_like(self._a)

    def _draw_matrices(self, shape: tuple[int, ...], dtype: str) -> Any:
        return self._random.random(shape, dtype=np.dtype(dtype).type) * 2 - 1

    def check(self) -> Check:
        """Run Freivalds' check on every product of a step."""
        self.step()
        size = self._a.shape[-1]
        error = compute_product_error(self._a, self._b, self._c)
        roundoff = UNIT_ROUNDOFF[self._a.dtype.name]
        tolerance = compute_product_tolerance(size, roundoff, roundoff)
        return Check(error, tolerance, "the product with a random vector in float64")

    def step(self) -> None:
        np.matmul(self._a, self._b, out=self._c)

    def read_facts(self) -> Mapping[str, Any]:
        return {**read_back(), "output_dtype": self._c.dtype.name}


def prepare_matmul(params: TrialParameters, context: RankContext) -> NumpyMatmulJob:
    """Prepare the job; raise Infeasible for formats that numpy does not multiply with the BLAS."""
    dtype = params.dtype.value
    if dtype not in UNIT_ROUNDOFF:
        raise Infeasible(f"numpy has no fast product of {dtype} matrices; use float32 or float64")
    require_room(MATMUL, params, context, compute_host_share_bytes(context))
    return NumpyMatmulJob(MATMUL.read_size(params.arguments), compute_rank_batch(params), dtype, seed=context.rank)
