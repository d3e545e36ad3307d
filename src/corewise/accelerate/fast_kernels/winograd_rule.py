"""Decide which convolutions use our Winograd kernel, and for which it is faster.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

from typing import Sequence

KERNELS = ((3, 3), (5, 5))
# Input and output channels must be multiples of it.
CHANNEL_MULTIPLE = 16
# Points at which a tile and the weights are multiplied. Each weight is transformed to this many values.
NUM_POINTS = 36
# Input values along a side of a tile. Results are fewer by the kernel size minus one.
TILE_VALUES = 6
# Weights of a point above which the transformed weights do not fit the cache.
MANY_WEIGHTS = 2**16
# Fewer tiles do not amortize the work per weight.
MIN_TILES = 16
# The same for many weights that are transformed at every call.
MIN_TILES_MANY_WEIGHTS = 64
# The same for many pretransformed weights, for each thread that shares them.
MIN_TILES_PER_THREAD = 2


def supports_winograd(
    weight: Sequence[int], kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int], groups: int
) -> bool:
    """Return whether the kernel supports this convolution; weight: output and input channels."""
    is_simple = (tuple(stride), tuple(dilation), groups) == ((1, 1), (1, 1), 1)
    has_whole_groups = weight[0] % CHANNEL_MULTIPLE == weight[1] % CHANNEL_MULTIPLE == 0
    return is_simple and has_whole_groups and tuple(kernel) in KERNELS


def compute_tile_size(kernel: int) -> int:
    """Compute the results along a side of a tile."""
    return TILE_VALUES + 1 - kernel


def count_tiles(x: Sequence[int], kernel: int, padding: Sequence[int]) -> int:
    """Count the tiles of a batch of images."""
    tile = compute_tile_size(kernel)
    down, across = (-(-(x[2 + i] + 2 * padding[i] - kernel + 1) // tile) for i in (0, 1))
    return x[0] * down * across


def is_worthwhile(x: Sequence[int], weight: Sequence[int], padding: Sequence[int]) -> bool:
    """Return whether Winograd convolution is faster with weights transformed in the same call."""
    return _has_enough(x, weight, padding, MIN_TILES_MANY_WEIGHTS)


def is_worthwhile_prepared(x: Sequence[int], weight: Sequence[int], padding: Sequence[int], num_threads: int) -> bool:
    """Return whether Winograd convolution is faster with pretransformed weights."""
    return _has_enough(x, weight, padding, max(MIN_TILES, MIN_TILES_PER_THREAD * num_threads))


def _has_enough(x: Sequence[int], weight: Sequence[int], padding: Sequence[int], for_many: int) -> bool:
    fewest = for_many if weight[0] * weight[1] > MANY_WEIGHTS else MIN_TILES
    return count_tiles(x, weight[2], padding) >= fewest
