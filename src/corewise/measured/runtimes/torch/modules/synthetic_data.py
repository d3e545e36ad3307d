"""Synthetic images, sequences, ids and labels that keep the arithmetic of training realistic.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence, Tuple

import torch
from torch import Tensor

from corewise.measured.runtimes.torch.settings import Settings
from corewise.measured.workloads.models.layers import Shape

MAX_BATCHES, MIN_BATCHES = 4, 2
MAX_BYTES = 256 * 2**20
# A prime number, so that every batch meets every labelling.
NUM_LABELLINGS = 251


class SyntheticBatches:
    """Cycles over a few random batches, with different labels each time.

    The model cannot memorize random labels that change. The loss stays near the logarithm of the number of
    classes, and neither gradients nor weights drift towards zero.
    """

    def __init__(
        self,
        shape: Shape,
        batch: int,
        num_classes: int,
        settings: Settings,
        seed: int,
        time_major: bool = False,
        id_limits: Tuple[int, ...] = (),
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        batch_shape = (batch, *shape)
        batch_bytes = settings.tensor_dtype.itemsize * torch.Size(batch_shape).numel()
        num_batches = max(MIN_BATCHES, min(MAX_BATCHES, MAX_BYTES // batch_bytes))
        self._inputs = [
            place_batch(draw_samples(batch_shape, generator, settings, id_limits), settings, time_major)
            for _ in range(num_batches)
        ]
        self._labels: Optional[Tensor] = None
        if settings.training:
            labels = torch.randint(num_classes, (NUM_LABELLINGS, batch), generator=generator)
            self._labels = labels.to(settings.device)
        self._turn = -1

    def next(self) -> Tuple[Tuple[Tensor], Optional[Tensor]]:
        """Return the next batch and, in training, its labels."""
        self._turn += 1
        inputs = (self._inputs[self._turn % len(self._inputs)],)
        return inputs, None if self._labels is None else self._labels[self._turn % NUM_LABELLINGS]

    def list_held_out(self) -> Sequence[Tuple[Tuple[Tensor], Tensor]]:
        return ()

    def collect_facts(self) -> Mapping[str, Any]:
        return {"data": "synthetic", "num_distinct_batches": len(self._inputs)}

    def close(self) -> None:
        return None


def draw_samples(
    shape: Tuple[int, ...], generator: torch.Generator, settings: Settings, id_limits: Tuple[int, ...] = ()
) -> Tensor:
    """Draw normal random numbers, or ids whose columns are below their limits."""
    if id_limits:
        columns = [torch.randint(limit, shape[:1], generator=generator) for limit in id_limits]
        return torch.stack(columns, dim=1)
    return torch.randn(shape, generator=generator, dtype=settings.tensor_dtype)


def place_batch(batch: Tensor, settings: Settings, time_major: bool) -> Tensor:
    """Place the batch as the trial says; `time_major`: steps before samples in memory, not in the shape."""
    placed: Tensor = settings.place(batch)
    return placed.transpose(0, 1).contiguous().transpose(0, 1) if time_major else placed
