"""The product of matrices on torch.

Measured side: standard library, numpy and torch only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, Mapping

import torch

from corewise.runtimes.base import Check, Infeasible, RankContext, ReplicaJob
from corewise.runtimes.params import rank_batch, require_defaults
from corewise.runtimes.torch.primitive_job import require_room
from corewise.runtimes.torch.settings import Settings, process_facts, read_settings
from corewise.workloads.base import workload_args
from corewise.workloads.primitives.matmul import MATMUL, product_tolerance
from corewise.workloads.primitives.product_check import product_error

FLOAT32_ROUNDOFF = 2.0**-24
SHORT_ROUNDOFF = {"tf32": 2.0**-11, "bf16": 2.0**-8}


class MatmulJob(ReplicaJob):
    """C = A·B, the output's memory used again in every step."""

    def __init__(self, size: int, batch: int, settings: Settings, seed: int) -> None:
        self.samples_per_step = float(batch)
        self._settings = settings
        self._generator = torch.Generator().manual_seed(seed)
        dtype, shape = getattr(torch, settings.dtype), (size, size) if batch == 1 else (batch, size, size)
        self._a, self._b = (self._fresh(shape).to(settings.device, dtype) for _ in range(2))
        self._c = torch.empty_like(self._a)
        self._multiply = torch.mm if batch == 1 else torch.bmm

    def _fresh(self, shape: tuple[int, ...]) -> torch.Tensor:
        dtype = torch.float64 if self._settings.dtype == "float64" else torch.float32
        return torch.empty(shape, dtype=dtype).uniform_(-1, 1, generator=self._generator)

    def check(self) -> Check:
        """Freivalds' check of every product of a step."""
        self.step()
        size = self._a.shape[-1]
        error = product_error(self._a, self._b, self._c, lambda rows: rows.double().cpu().numpy())
        stored = torch.finfo(self._a.dtype).eps / 2
        summed = min(stored, FLOAT32_ROUNDOFF)
        if self._settings.device.type == "cuda" and torch.backends.cuda.matmul.allow_tf32:
            stored = max(stored, SHORT_ROUNDOFF["tf32"])
        stored = max(stored, SHORT_ROUNDOFF.get(self._settings.float32_precision, 0.0))
        return Check(
            error, product_tolerance(size, stored, summed), "the product with a random vector in float64"
        )

    def step(self) -> None:
        self._multiply(self._a, self._b, out=self._c)
        self._settings.finish()

    def facts(self) -> Mapping[str, Any]:
        return {**process_facts(self._settings), "output_dtype": str(self._c.dtype).replace("torch.", "")}


def prepare_matmul(params: Mapping[str, Any], context: RankContext) -> MatmulJob:
    """The job; one operator has no layout to choose and nothing to compile."""
    require_defaults(
        params, ("memory_format", "execution", "freezing", "data"), "matmul is a single operator on matrices"
    )
    settings = read_settings(params, context)
    if settings.dtype == "int8":
        raise Infeasible("dtype int8: a single product has no layers to quantise")
    require_room(MATMUL, params, settings, context)
    return MatmulJob(MATMUL.size(workload_args(params)), rank_batch(params), settings, seed=context.rank)
