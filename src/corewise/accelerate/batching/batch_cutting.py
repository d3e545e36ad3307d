"""Cut a sequence of images into batches by number of images or padded pixels, and compute what each batch pads.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional, Tuple

import numpy as np
from numpy.typing import NDArray

from corewise.accelerate.batching.errors import BatchingError

Numbers = NDArray[np.int64]
# More pixels than any memory holds; products of larger sides could overflow.
_MAX_SIDE = 2**20


@dataclass(frozen=True)
class BatchLimit:
    """The most that a batch may hold: images, pixels with padding, or both.

    Attributes:
        multiple_of: sides of a batch are rounded up to a multiple of it.
    """

    max_images: Optional[int] = None
    max_pixels: Optional[int] = None
    multiple_of: int = 1

    def __post_init__(self) -> None:
        for name, value in (("batch_size", self.max_images), ("max_pixels", self.max_pixels)):
            if value is not None and (isinstance(value, bool) or int(value) != value or value < 1):
                raise BatchingError(f"{name}={value!r}: a whole number from 1 on is needed")
        if self.max_images is None and self.max_pixels is None:
            raise BatchingError("batch_size or max_pixels is missing: state how much a batch may hold")
        if self.multiple_of < 1:
            raise BatchingError(f"multiple_of={self.multiple_of}: at least 1 is needed")


@dataclass(frozen=True)
class Batches:
    """Batches as one array of images and the places where batches start.

    Attributes:
        images: the number of each image, batch after batch.
        starts: the place of the first image of each batch.
        depths, heights, widths: the shape of each batch with its padding; images on one canvas have depth 1.
    """

    images: Numbers
    starts: Numbers
    depths: Numbers
    heights: Numbers
    widths: Numbers

    @property
    def counts(self) -> Numbers:
        """The number of images of each batch."""
        return np.diff(self.starts, append=len(self.images))

    @property
    def padded_pixels(self) -> Numbers:
        """The pixels of each batch with its padding."""
        return self.depths * self.heights * self.widths

    def select(self, number: int) -> Numbers:
        """Return the images of one batch."""
        end = self.starts[number + 1] if number + 1 < len(self.starts) else len(self.images)
        return self.images[self.starts[number] : end]

    def take(self, numbers: Numbers) -> Batches:
        """Return some of the batches, in the given order."""
        counts = self.counts[numbers]
        starts = np.cumsum(counts) - counts
        places = np.repeat(self.starts[numbers] - starts, counts) + np.arange(counts.sum())
        return Batches(self.images[places], starts, self.depths[numbers], self.heights[numbers], self.widths[numbers])

    def append(self, other: Batches) -> Batches:
        """Return these batches, followed by others."""
        return Batches(
            np.concatenate([self.images, other.images]),
            np.concatenate([self.starts, other.starts + len(self.images)]),
            np.concatenate([self.depths, other.depths]),
            np.concatenate([self.heights, other.heights]),
            np.concatenate([self.widths, other.widths]),
        )


def check_sizes(sizes: Any) -> Tuple[Numbers, Numbers]:
    """Return heights and widths of a collection.

    Args:
        sizes: one (height, width) per image: an array, a tensor, or a sequence of pairs.

    Raises:
        BatchingError: there is no image, or a size is no pair of whole positive numbers.
    """
    table = np.asarray(sizes)
    if table.size == 0:
        raise BatchingError("sizes is empty: there is no image to put into batches")
    if table.ndim != 2 or table.shape[1] != 2:
        raise BatchingError(f"sizes has the shape {table.shape}: one (height, width) per image is needed")
    if table.dtype.kind not in "iuf" or not np.all(np.isfinite(table)) or np.any(table != np.floor(table)):
        raise BatchingError("sizes holds values that are no whole numbers; give (height, width) in pixels")
    wrong = np.flatnonzero(((table < 1) | (table > _MAX_SIDE)).any(axis=1))
    if len(wrong):
        height, width = table[wrong[0]].tolist()
        raise BatchingError(f"sizes[{wrong[0]}] is {height}×{width}: each side must be from 1 to {_MAX_SIDE:,} pixels")
    return table[:, 0].astype(np.int64), table[:, 1].astype(np.int64)


def round_sides(sides: Numbers, multiple_of: int) -> Numbers:
    """Round sides up to a multiple."""
    return sides if multiple_of == 1 else -(-sides // multiple_of) * multiple_of


def cut_batches(images: Numbers, heights: Numbers, widths: Numbers, limit: BatchLimit) -> Batches:
    """Cut a sequence of images into batches, in its order.

    Args:
        images: numbers of images.
        heights, widths: of the whole collection, already rounded.
        limit: what a batch may hold. An image that exceeds it makes a batch on its own.
    """
    return measure_batches(images, _find_starts(heights[images], widths[images], limit), heights, widths)


def measure_batches(images: Numbers, starts: Numbers, heights: Numbers, widths: Numbers) -> Batches:
    """Compute the sides of batches that are given by their starts."""
    return Batches(
        images,
        starts,
        np.diff(starts, append=len(images)),
        np.maximum.reduceat(heights[images], starts),
        np.maximum.reduceat(widths[images], starts),
    )


def _find_starts(heights: Numbers, widths: Numbers, limit: BatchLimit) -> Numbers:
    if limit.max_pixels is None:
        assert limit.max_images is not None
        return np.arange(0, len(heights), limit.max_images, dtype=np.int64)
    # Whether an image fits depends on all images before it, so this is a loop over plain numbers.
    max_pixels, max_images = limit.max_pixels, limit.max_images or len(heights)
    starts, start, batch_height, batch_width = [0], 0, 0, 0
    for i, (height, width) in enumerate(zip(heights.tolist(), widths.tolist())):
        if height > batch_height:
            batch_height = height
        if width > batch_width:
            batch_width = width
        count = i - start + 1
        if count > 1 and (batch_height * batch_width * count > max_pixels or count > max_images):
            starts.append(i)
            start, batch_height, batch_width = i, height, width
    return np.array(starts, dtype=np.int64)
