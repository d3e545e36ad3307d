"""The matmul primitive on torch.

Measured side: standard library, numpy and torch only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, Mapping

import torch

from corewise.measured.parameters import TrialParameters
from corewise.measured.runtimes.base import Check, Infeasible, RankContext, ReplicaJob
from corewise.measured.runtimes.torch.primitives.primitive_job import require_room
from corewise.measured.runtimes.torch.settings import Settings, collect_process_facts, read_settings
from corewise.measured.runtimes.trial_params import compute_rank_batch, require_defaults
from corewise.measured.workloads.primitives.freivalds_check import compute_product_error
from corewise.measured.workloads.primitives.matmul import MATMUL, compute_product_tolerance

FLOAT32_ROUNDOFF = 2.0**-24
SHORT_ROUNDOFF = {"tf32": 2.0**-11, "bf16": 2.0**-8}


class TorchMatmulJob(ReplicaJob):
    """C = A·B, with the output's memory reused in every step."""

    def __init__(self, size: int, batch: int, settings: Settings, seed: int) -> None:
        self.samples_per_step = float(batch)
        self._settings = settings
        self._generator = torch.Generator().manual_seed(seed)
        dtype, shape = getattr(torch, settings.dtype), (size, size) if batch == 1 else (batch, size, size)
        self._a, self._b = (self._draw_matrix(shape).to(settings.device, dtype) for _ in range(2))
        self._c = torch.empty_like(self._a)
        self._multiply = torch.mm if batch == 1 else torch.bmm

    def _draw_matrix(self, shape: tuple[int, ...]) -> torch.Tensor:
        dtype = torch.float64 if self._settings.dtype == "float64" else torch.float32
        return torch.empty(shape, dtype=dtype).uniform_(-1, 1, generator=self._generator)

    def check(self) -> Check:
        """Check every product of a step with Freivalds' algorithm."""
        self.step()
        size = self._a.shape[-1]
        error = compute_product_error(self._a, self._b, self._c, lambda rows: rows.double().cpu().numpy())
        stored = torch.finfo(self._a.dtype).eps / 2
        summed = min(stored, FLOAT32_ROUNDOFF)
        if self._settings.device.type == "cuda" and torch.backends.cuda.matmul.allow_tf32:
            stored = max(stored, SHORT_ROUNDOFF["tf32"])
        stored = max(stored, SHORT_ROUNDOFF.get(self._settings.float32_precision, 0.0))
        return Check(
            error, compute_product_tolerance(size, stored, summed), "the product with a random vector in float64"
        )

    def step(self) -> None:
        self._multiply(self._a, self._b, out=self._c)
        self._settings.finish()

    def read_facts(self) -> Mapping[str, Any]:
        return {**collect_process_facts(self._settings), "output_dtype": str(self._c.dtype).replace("torch.", "")}


def prepare_matmul(params: TrialParameters, context: RankContext) -> TorchMatmulJob:
    """Prepare the job; raise Infeasible for settings that a single operator does not have."""
    require_defaults(
        params, ("memory_format", "execution", "freezing", "data"), "matmul is a single operator on matrices"
    )
    settings = read_settings(params, context)
    if settings.dtype == "int8":
        raise Infeasible("dtype int8: a single product has no layers to quantize")
    require_room(MATMUL, params, settings, context)
    return TorchMatmulJob(MATMUL.read_size(params.arguments), compute_rank_batch(params), settings, seed=context.rank)
