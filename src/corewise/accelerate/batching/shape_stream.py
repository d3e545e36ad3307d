"""Batches of similar shapes from a stream of samples whose sizes become known late, through a bounded buffer.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, Callable, Generic, Iterable, Iterator, List, Optional, Tuple, TypeVar

import numpy as np

from corewise.accelerate.batching.batch_cutting import BatchLimit, check_sizes
from corewise.accelerate.batching.errors import BatchingError

Sample = TypeVar("Sample")


class ShapeBatchStream(Generic[Sample]):
    """Lists of samples of similar shape, from any iterable of samples.

    A buffer holds samples until it is full. Then the oldest sample forms a batch with the samples in the buffer that
    are most similar to it. So no sample waits for more than `buffer_size` batches, and every sample appears exactly
    once. Batches are as random as the order of the stream.

    Args:
        samples: an iterable of samples, read again for each iteration.
        get_size: returns (height, width) of a sample.
        batch_size, max_pixels: the most that a batch may hold, as for `ShapeBatchSampler`.
        buffer_size: samples that are held back; more samples give more similar batches and take more memory.
        oversized: what to do with a sample larger than `max_pixels`: `own` batch, or `refuse`.

    Example:
        >>> stream = ShapeBatchStream(decode(shards), lambda sample: sample[0].shape[-2:], max_pixels=20_000_000)
        >>> for samples in stream:
        ...     batch = PadCollate()(samples)
    """

    def __init__(
        self,
        samples: Iterable[Sample],
        get_size: Callable[[Sample], Any],
        *,
        batch_size: Optional[int] = None,
        max_pixels: Optional[int] = None,
        buffer_size: int = 256,
        oversized: str = "own",
    ) -> None:
        self._samples, self._get_size = samples, get_size
        self._limit = BatchLimit(batch_size, max_pixels)
        if buffer_size < 1:
            raise BatchingError(f"buffer_size={buffer_size}: at least 1 is needed")
        if oversized not in ("own", "refuse"):
            raise BatchingError(f"oversized={oversized!r}: choose one of own, refuse")
        self._buffer_size, self._refuses = buffer_size, oversized == "refuse"

    def __iter__(self) -> Iterator[List[Sample]]:
        """Yield batches until the stream ends and the buffer is empty."""
        held: List[Tuple[int, int, Sample]] = []
        for number, sample in enumerate(self._samples):
            held.append((*self._read_size(number, sample), sample))
            if len(held) >= self._buffer_size:
                yield self._take_batch(held)
        while held:
            yield self._take_batch(held)

    def _read_size(self, number: int, sample: Sample) -> Tuple[int, int]:
        try:
            heights, widths = check_sizes([tuple(self._get_size(sample))])
        except BatchingError as problem:
            raise BatchingError(f"sample {number} of the stream: {problem}") from problem
        height, width = int(heights[0]), int(widths[0])
        if self._refuses and self._limit.max_pixels is not None and height * width > self._limit.max_pixels:
            raise BatchingError(
                f"sample {number} of the stream has {height}×{width} pixels, more than "
                f"max_pixels={self._limit.max_pixels:,}: increase max_pixels, or pass oversized='own'"
            )
        return height, width

    def _take_batch(self, held: List[Tuple[int, int, Sample]]) -> List[Sample]:
        """Remove the oldest sample and those that are most similar to it, as many as the limit allows."""
        sides = np.array([(height, width) for height, width, _ in held], dtype=np.float64)
        distances = np.abs(np.log(sides / sides[0])).sum(axis=1)
        # The oldest sample has the distance 0 and stays first.
        nearest = np.argsort(distances, kind="stable").tolist()
        nearest.remove(0)
        chosen, batch_height, batch_width = [0], held[0][0], held[0][1]
        for i in nearest:
            height, width = max(batch_height, held[i][0]), max(batch_width, held[i][1])
            count = len(chosen) + 1
            if count > (self._limit.max_images or count):
                break
            if self._limit.max_pixels is not None and height * width * count > self._limit.max_pixels:
                break
            chosen.append(i)
            batch_height, batch_width = height, width
        batch = [held[i][2] for i in chosen]
        for i in sorted(chosen, reverse=True):
            del held[i]
        return batch
