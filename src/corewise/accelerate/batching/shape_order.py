"""Orders of images in which neighbours have similar shapes, and shuffles that keep images near their place.

Measured side: standard library and numpy only, Python 3.9.

Two images with sides (h, w) and (h', w') share a batch of max(h, h') × max(w, w') pixels. Equal area is therefore not
enough: both sides must be similar. The order follows the sort-tile-recursive packing of rectangle trees (Leutenegger
et al., 1997): sort by height or by aspect ratio, cut into strips, sort each strip by width. The number of strips is
the one that pads least.
"""

from __future__ import annotations

import math
from typing import Any, List, Sequence

import numpy as np
from numpy.typing import NDArray

from corewise.accelerate.batching.batch_cutting import BatchLimit, Numbers, cut_batches

# Of larger collections, this many images decide the number of strips and the extent of windows.
_MAX_TRIED_IMAGES = 1 << 16
# Pieces of the collection that are tried, so that all shapes are represented.
_NUM_PIECES = 32
# Strips that are tried, as multiples of the square root of the number of batches.
_STRIP_FACTORS = (0.5, 1.0, 2.0)
# Extents of windows that are tried.
_EXTENTS = tuple(0.002 * 2 ** (step / 2) for step in range(26))
# Windows consist of blocks of this many batches.
_BLOCK_OF_BATCH = 0.25


def order_by_shape(heights: Numbers, widths: Numbers, limit: BatchLimit) -> Numbers:
    """Return all images in an order in which consecutive batches pad little."""
    num_batches = estimate_num_batches(heights, widths, limit)
    strips = sorted({max(1, round(factor * num_batches**0.5)) for factor in _STRIP_FACTORS})
    tilings = [_Tiling(key, heights, widths, limit) for key in (heights, heights / widths)]
    tried = [(tiling.try_strips(number), number, k) for k, tiling in enumerate(tilings) for number in strips]
    _, number, k = min(tried)
    return tilings[k].sort_strips(number)


def estimate_num_batches(heights: Numbers, widths: Numbers, limit: BatchLimit) -> float:
    """Estimate the number of batches, without padding."""
    return max(1.0, float(compute_weights(heights, widths, limit).sum()))


def choose_extent(
    order: Numbers, heights: Numbers, widths: Numbers, limit: BatchLimit, tolerance: float, rng: np.random.Generator
) -> float:
    """Return the widest extent of windows that costs at most `tolerance` of the informative share of the order.

    Wider windows mix more images and pad more. An extent of 0.1 lets the area of a batch grow by about 10 %.
    """
    tried = _take_pieces(order)
    wanted = (1 - tolerance) * compute_informative_share(tried, heights, widths, limit)
    low, high = 0, len(_EXTENTS)
    while low < high:
        middle = (low + high) // 2
        shuffled = shuffle_in_windows(tried, heights, widths, limit, _EXTENTS[middle], rng)
        if compute_informative_share(shuffled, heights, widths, limit) < wanted:
            high = middle
        else:
            low = middle + 1
    return _EXTENTS[low - 1] if low else 0.0


def compute_weights(heights: Numbers, widths: Numbers, limit: BatchLimit) -> NDArray[np.float64]:
    """Return the part of a batch that each image takes, by images or by pixels."""
    weights = np.full(len(heights), 1.0 / limit.max_images if limit.max_images else 0.0)
    return np.maximum(weights, heights * widths / limit.max_pixels) if limit.max_pixels else weights


def shuffle_in_windows(
    order: Numbers, heights: Numbers, widths: Numbers, limit: BatchLimit, extent: float, rng: np.random.Generator
) -> Numbers:
    """Shuffle the images within windows of similar shapes. The windows start at another place each time.

    A window is a number of blocks. Blocks are joined while the logarithms of their heights and widths together vary
    by at most `extent`, so windows are long where many images have similar shapes.
    """
    weights = compute_weights(heights, widths, limit)[order]
    blocks = ((np.cumsum(weights) - weights) / _BLOCK_OF_BATCH + rng.random()).astype(np.int64)
    starts = np.flatnonzero(np.diff(blocks, prepend=-1))
    lows, lefts = (np.minimum.reduceat(np.log(sides[order]), starts).tolist() for sides in (heights, widths))
    highs, rights = (np.maximum.reduceat(np.log(sides[order]), starts).tolist() for sides in (heights, widths))
    joined = np.array(_join_blocks(lows, highs, lefts, rights, extent), dtype=np.int64)
    windows = np.repeat(joined, np.diff(starts, append=len(order)))
    return order[np.lexsort((rng.random(len(order)), windows))]


def _join_blocks(
    lows: Sequence[float], highs: Sequence[float], lefts: Sequence[float], rights: Sequence[float], extent: float
) -> List[int]:
    """Return the window of each block, given the least and largest logarithms of heights and widths."""
    windows: List[int] = []
    window = -1
    low = left = math.inf
    high = right = -math.inf
    for block_low, block_high, block_left, block_right in zip(lows, highs, lefts, rights):
        # Comparisons are faster than calls of min and max, and there may be a million blocks.
        low = block_low if block_low < low else low
        high = block_high if block_high > high else high
        left = block_left if block_left < left else left
        right = block_right if block_right > right else right
        if window < 0 or high - low + right - left > extent:
            window += 1
            low, high, left, right = block_low, block_high, block_left, block_right
        windows.append(window)
    return windows


def compute_informative_share(order: Numbers, heights: Numbers, widths: Numbers, limit: BatchLimit) -> float:
    """Return the share of pixels that belong to images, if consecutive images of the order form batches."""
    batches = cut_batches(order, heights, widths, limit)
    pixels = (heights * widths)[order]
    return float(pixels.sum(dtype=np.float64) / batches.padded_pixels.sum(dtype=np.float64))


class _Tiling:
    """Strips of images that are similar in one quantity, each sorted by width."""

    def __init__(self, key: NDArray[Any], heights: Numbers, widths: Numbers, limit: BatchLimit) -> None:
        self._heights, self._widths, self._limit = heights, widths, limit
        self._by_key = np.lexsort((widths, key))
        # Strips of equal weight hold equally many batches.
        weights = compute_weights(heights, widths, limit)[self._by_key]
        self._places = (np.cumsum(weights) - weights / 2) / weights.sum()

    def sort_strips(self, num_strips: int) -> Numbers:
        """Return all images, strip after strip."""
        return self._join((self._places * num_strips).astype(np.int64), self._by_key)

    def try_strips(self, num_strips: int) -> float:
        """Return the padded pixels per informative pixel with this number of strips, from a part of the strips."""
        strips = (self._places * num_strips).astype(np.int64)
        num_tried = max(1, min(num_strips, _MAX_TRIED_IMAGES * num_strips // len(strips)))
        tried = np.unique(np.linspace(0, num_strips - 1, num_tried).astype(np.int64))
        is_tried = np.isin(strips, tried)
        order = self._join(strips[is_tried], self._by_key[is_tried])
        return 1.0 / compute_informative_share(order, self._heights, self._widths, self._limit)

    def _join(self, strips: Numbers, images: Numbers) -> Numbers:
        """Sort each strip by width; each begins with the end that is nearer to the end of the strip before."""
        order = images[np.lexsort((self._heights[images], self._widths[images], strips))]
        starts = np.flatnonzero(np.diff(strips, prepend=-1))
        ends = np.append(starts[1:], len(order))
        shapes = np.log(np.stack([self._heights[order], self._widths[order]]))
        firsts, lasts = shapes[:, starts].T.tolist(), shapes[:, ends - 1].T.tolist()
        previous = firsts[0]
        for number, (first, last) in enumerate(zip(firsts, lasts)):
            if _compute_distance(previous, last) < _compute_distance(previous, first):
                order[starts[number] : ends[number]] = order[starts[number] : ends[number]][::-1].copy()
                previous = first
            else:
                previous = last
        return order


def _compute_distance(first: Sequence[float], second: Sequence[float]) -> float:
    return abs(first[0] - second[0]) + abs(first[1] - second[1])


def _take_pieces(order: Numbers) -> Numbers:
    """Return the order, or evenly spread pieces of a long one."""
    if len(order) <= _MAX_TRIED_IMAGES:
        return order
    length = _MAX_TRIED_IMAGES // _NUM_PIECES
    begins: List[int] = np.linspace(0, len(order) - length, _NUM_PIECES).astype(np.int64).tolist()
    return np.concatenate([order[begin : begin + length] for begin in begins])
