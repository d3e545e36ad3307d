"""Put several images on one canvas: shelves of similar heights, filled from left to right.

Measured side: standard library and numpy only, Python 3.9. The method is next-fit decreasing height (Coffman et al.,
1980). The same images always get the same places, so the collate function repeats the packing of the plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Sequence, Tuple

import numpy as np

from corewise.accelerate.batching.batch_cutting import Batches, BatchLimit, Numbers

# Parts of a canvas that shelves can usually fill. The first that fits is used.
_FILL_SHARES = (0.97, 0.94, 0.91, 0.88, 0.84, 0.78, 0.7, 0.6, 0.45, 0.3, 0.15, 0.0)
# Widths of canvases that are tried, as multiples of the side of a square of the same area.
_WIDTH_FACTORS = (0.85, 1.1)


@dataclass(frozen=True)
class Canvas:
    """A canvas and the place of each image on it: (top, left) of its first pixel."""

    height: int
    width: int
    places: Tuple[Tuple[int, int], ...]

    @property
    def pixels(self) -> int:
        """The area of the canvas."""
        return self.height * self.width


def pack_canvas(heights: Sequence[int], widths: Sequence[int], gap: int = 0, multiple_of: int = 1) -> Canvas:
    """Place images on the smallest canvas that shelves of a few widths reach.

    Args:
        heights, widths: of the images.
        gap: free pixels between neighbours, so that convolutions do not mix them.
        multiple_of: sides of the canvas are rounded up to a multiple of it.
    """
    total = sum((height + gap) * (width + gap) for height, width in zip(heights, widths))
    by_height = sorted(range(len(heights)), key=lambda i: (-heights[i], -widths[i], i))
    widest = max(widths)
    tried = {max(widest, round(factor * total**0.5)) for factor in _WIDTH_FACTORS} | {widest}
    canvases = [_fill_shelves(heights, widths, by_height, width, gap, multiple_of) for width in sorted(tried)]
    return min(canvases, key=lambda canvas: (canvas.pixels, canvas.width))


def _fill_shelves(
    heights: Sequence[int], widths: Sequence[int], by_height: List[int], limit: int, gap: int, multiple_of: int
) -> Canvas:
    places: List[Tuple[int, int]] = [(0, 0)] * len(by_height)
    top = left = used = 0
    shelf = heights[by_height[0]]
    for i in by_height:
        if left and left + widths[i] > limit:
            top, left, shelf = top + shelf + gap, 0, heights[i]
        places[i] = (top, left)
        used = max(used, left + widths[i])
        left += widths[i] + gap
    height, width = (-(-side // multiple_of) * multiple_of for side in (top + shelf, used))
    return Canvas(height, width, tuple(places))


def cut_canvases(images: Numbers, heights: Numbers, widths: Numbers, limit: BatchLimit, gap: int) -> Batches:
    """Cut a sequence of images into canvases of at most `limit` pixels; a larger image gets its own canvas."""
    assert limit.max_pixels is not None
    max_images = limit.max_images or len(images)
    own_heights, own_widths = heights[images].tolist(), widths[images].tolist()
    areas = np.concatenate([[0], np.cumsum((heights[images] + gap) * (widths[images] + gap))])
    starts: List[int] = []
    canvases: List[Canvas] = []
    start = first = 0
    while start < len(images):
        tried = 0
        # Canvases of similar images fill alike, so the search begins near the last share.
        for number in range(max(0, first - 1), len(_FILL_SHARES)):
            end = int(np.searchsorted(areas, areas[start] + _FILL_SHARES[number] * limit.max_pixels, side="right")) - 1
            end = min(max(end, start + 1), start + max_images)
            if end == tried:
                continue
            tried = end
            canvas = pack_canvas(own_heights[start:end], own_widths[start:end], gap, limit.multiple_of)
            if canvas.pixels <= limit.max_pixels or end == start + 1:
                break
        first = number
        starts.append(start)
        canvases.append(canvas)
        start = end
    return _collect(images, np.array(starts, dtype=np.int64), canvases)


def measure_canvases(
    images: Numbers, starts: Numbers, heights: Numbers, widths: Numbers, limit: BatchLimit, gap: int
) -> Batches:
    """Pack the canvases of batches that are given by their starts."""
    ends = [*starts[1:].tolist(), len(images)]
    canvases = [
        pack_canvas(heights[part].tolist(), widths[part].tolist(), gap, limit.multiple_of)
        for part in (images[start:end] for start, end in zip(starts.tolist(), ends))
    ]
    return _collect(images, starts, canvases)


def _collect(images: Numbers, starts: Numbers, canvases: Sequence[Canvas]) -> Batches:
    sides = np.array([(canvas.height, canvas.width) for canvas in canvases], dtype=np.int64).reshape(-1, 2)
    return Batches(images, starts, np.ones(len(starts), dtype=np.int64), sides[:, 0], sides[:, 1])
