"""Generated samples whose label can be learnt: each class has a pattern, and each sample is a pattern plus noise.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, List, Mapping, Optional, Sequence, Tuple

import torch
from torch import Tensor
from torch.nn import functional

from corewise.measured.runtimes.base import RankContext
from corewise.measured.runtimes.torch.modules.synthetic_data import MAX_BYTES, MIN_BATCHES, place_batch
from corewise.measured.runtimes.torch.settings import Settings
from corewise.measured.workloads.models.layers import Shape

# The same on all ranks; samples differ between ranks and between training and held-out samples.
PATTERN_SEED, SAMPLE_SEED, HELD_OUT_SEED = 7, 2000, 3000
# Few enough to be learnt in the steps of a trial. A model may have more outputs.
MAX_CLASSES = 10
# Fields of a pattern along each side of an image. Larger than what the first layers of a network average.
PATTERN_FIELDS = 4
NOISE = 0.5
MAX_BATCHES = 16
# Held-out samples of all ranks together.
NUM_HELD_OUT = 256


class LabelledBatches:
    """Cycles over generated batches; every rank has other samples of the same classes."""

    def __init__(
        self,
        shape: Shape,
        batch: int,
        num_classes: int,
        settings: Settings,
        context: RankContext,
        time_major: bool = False,
    ) -> None:
        self._num_classes, self._training = min(num_classes, MAX_CLASSES), settings.training
        self._settings, self._time_major = settings, time_major
        self._patterns = draw_patterns(self._num_classes, shape)
        batch_bytes = settings.tensor_dtype.itemsize * torch.Size((batch, *shape)).numel()
        num_batches = max(MIN_BATCHES, min(MAX_BATCHES, MAX_BYTES // batch_bytes))
        self._batches = self._draw_batches(num_batches, batch, SAMPLE_SEED + context.rank)
        self._held_out: List[Tuple[Tuple[Tensor], Tensor]] = []
        if settings.training:
            num_held_out = min(num_batches, -(-NUM_HELD_OUT // (batch * context.num_ranks)))
            self._held_out = self._draw_batches(num_held_out, batch, HELD_OUT_SEED + context.rank)
        self._turn = -1

    def next(self) -> Tuple[Tuple[Tensor], Optional[Tensor]]:
        """Return the next batch and, in training, its labels."""
        self._turn += 1
        inputs, labels = self._batches[self._turn % len(self._batches)]
        return inputs, labels if self._training else None

    def list_held_out(self) -> Sequence[Tuple[Tuple[Tensor], Tensor]]:
        return self._held_out

    def collect_facts(self) -> Mapping[str, Any]:
        num_held_out = sum(len(labels) for _, labels in self._held_out)
        return {
            "data": "labelled",
            "num_distinct_batches": len(self._batches),
            "num_classes": self._num_classes,
            "num_held_out_samples": num_held_out,
        }

    def close(self) -> None:
        return None

    def _draw_batches(self, num_batches: int, batch: int, seed: int) -> List[Tuple[Tuple[Tensor], Tensor]]:
        generator = torch.Generator().manual_seed(seed)
        drawn = []
        for _ in range(num_batches):
            labels = torch.randint(self._num_classes, (batch,), generator=generator)
            patterns = self._patterns[labels]
            samples = patterns + NOISE * torch.randn(patterns.shape, generator=generator)
            inputs = place_batch(samples, self._settings, self._time_major)
            drawn.append(((inputs,), labels.to(self._settings.device)))
        return drawn


def draw_patterns(num_classes: int, shape: Shape) -> Tensor:
    """Draw a pattern per class: colored fields for images, one vector for all steps of a sequence."""
    generator = torch.Generator().manual_seed(PATTERN_SEED)
    if len(shape) == 3:
        fields = torch.randn((num_classes, shape[0], PATTERN_FIELDS, PATTERN_FIELDS), generator=generator)
        return functional.interpolate(fields, size=shape[1:], mode="nearest")
    vectors = torch.randn((num_classes, *[1] * (len(shape) - 1), shape[-1]), generator=generator)
    return vectors.expand(num_classes, *shape)
