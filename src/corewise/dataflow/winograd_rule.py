"""Which convolutions our kernel computes by Winograd's way, and for which of them that pays.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

from typing import Sequence

KERNELS = ((3, 3), (5, 5))
CHANNEL_STEP = 16  # channels come in multiples of it
NUM_POINTS = 36  # at which products are made of a tile of values and the weights: so many for each weight
VALUES_OF_TILE = 6  # along a side; results are fewer by the kernel
MANY_WEIGHTS = 2**16  # of a point; at all points they leave the cache
FEWEST_TILES = 16  # fewer do not make up for what is done for each weight
FEWEST_FOR_MANY = 64  # the same of many weights that are transformed at every call
FEWEST_OF_THREAD = 2  # the same of many weights that lie transformed, for each thread that shares them


def has_form(
    weight: Sequence[int], kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int], groups: int
) -> bool:
    """Whether it is one of those that the kernel knows; weight: channels out and in."""
    is_simple = (tuple(stride), tuple(dilation), groups) == ((1, 1), (1, 1), 1)
    has_whole_groups = weight[0] % CHANNEL_STEP == weight[1] % CHANNEL_STEP == 0
    return is_simple and has_whole_groups and tuple(kernel) in KERNELS


def tile_of(kernel: int) -> int:
    """Results of a tile along a side."""
    return VALUES_OF_TILE + 1 - kernel


def num_tiles(x: Sequence[int], kernel: int, padding: Sequence[int]) -> int:
    """Of a batch of images of these sizes."""
    tile = tile_of(kernel)
    down, across = (-(-(x[2 + i] + 2 * padding[i] - kernel + 1) // tile) for i in (0, 1))
    return x[0] * down * across


def pays(x: Sequence[int], weight: Sequence[int], padding: Sequence[int]) -> bool:
    """Whether a convolution is quicker so, its weights transformed in the same call."""
    return _has_enough(x, weight, padding, FEWEST_FOR_MANY)


def pays_prepared(x: Sequence[int], weight: Sequence[int], padding: Sequence[int], num_threads: int) -> bool:
    """Whether it is quicker so with weights that were transformed before."""
    return _has_enough(x, weight, padding, max(FEWEST_TILES, FEWEST_OF_THREAD * num_threads))


def _has_enough(x: Sequence[int], weight: Sequence[int], padding: Sequence[int], for_many: int) -> bool:
    fewest = for_many if weight[0] * weight[1] > MANY_WEIGHTS else FEWEST_TILES
    return num_tiles(x, weight[2], padding) >= fewest
