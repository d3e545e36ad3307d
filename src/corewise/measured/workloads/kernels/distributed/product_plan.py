"""Which rank computes and which rank adds up what of a tiled product, and in which order.

Measured side: standard library only, Python 3.9. Every rank derives the same plan.

Ranks work in teams. A team owns some tiles of C, and each of its members multiplies for a part of the inner dimension.
The tiles of a team are dealt out in rounds of one tile per member: that member is the reducer of the tile. Member m
first computes its part of the tile of member m + 1, then of m + 2, and so on, and its own tile last. After each of
these stages it pushes its part to the reducer and receives a part of its own tile. So all members push at the same
time, to different reducers, while they multiply the next part.
"""

from __future__ import annotations

import dataclasses
from typing import Collection, Iterator, List, Optional, Sequence, Tuple

from corewise.measured.workloads.kernels.distributed.rank_shares import split_evenly
from corewise.measured.workloads.kernels.tiled_product.tile_order import Tile


@dataclasses.dataclass(frozen=True)
class Stage:
    """One stage of a round: the tile that this rank has computed, and who exchanges parts.

    Attributes:
        tile: the tile whose part this rank computes; None if the round has no tile for that reducer.
        own: the tile that this rank adds up in the round; None if there is none.
        pushed_to: the rank that adds up `tile`; None if this rank does.
        received_from: the rank whose part of `own` arrives; None if none does.
    """

    tile: Optional[Tile]
    own: Optional[Tile]
    pushed_to: Optional[int] = None
    received_from: Optional[int] = None


@dataclasses.dataclass(frozen=True)
class ProductShare:
    """The work of one rank: the products (row, column, k) in their order, and the stages after them."""

    team_size: int
    steps: Tuple[Tuple[int, int, int], ...]
    stages: Tuple[Stage, ...]


def choose_team_size(shape: Tuple[int, int, int], num_ranks: int) -> int:
    """Choose the members of a team so that the rank with the most products has the fewest; larger teams read less.

    Args:
        shape: tiles: rows of C, columns of C, and the inner dimension.
    """
    rows, columns, depth = shape

    def count_products(size: int) -> int:
        return -(-rows * columns // (num_ranks // size)) * -(-depth // size)

    sizes = [size for size in range(1, min(num_ranks, depth) + 1) if num_ranks % size == 0]
    return min(sizes, key=lambda size: (count_products(size), -size))


def plan_rank(
    shape: Tuple[int, int, int], num_ranks: int, rank: int, num_held: int, done: Collection[Tile] = ()
) -> ProductShare:
    """Plan the products and stages of a rank.

    Args:
        shape: tiles: rows of C, columns of C, and the inner dimension.
        num_held: tiles of A and B in the memory of a rank, which decides the order.
        done: finished tiles of C.
    """
    size = choose_team_size(shape, num_ranks)
    team, member = divmod(rank, size)
    first, last = split_evenly(shape[2], size)[member]
    height = max(1, num_held // (last - first) - 1)
    tiles = [tile for tile in _iterate_tiles(shape, height) if tile not in done]
    start, stop = split_evenly(len(tiles), num_ranks // size)[team]
    stages = [
        stage
        for begin in range(start, stop, size)
        for stage in _iterate_stages(tiles[begin : min(stop, begin + size)], team * size, member, size)
    ]
    steps: List[Tuple[int, int, int]] = []
    for tile in (stage.tile for stage in stages if stage.tile is not None):
        # The last tiles of one product are the first of the next.
        depth = range(first, last) if len(steps) // (last - first) % 2 == 0 else range(last - 1, first - 1, -1)
        steps += [(*tile, k) for k in depth]
    return ProductShare(size, tuple(steps), tuple(stages))


def _iterate_tiles(shape: Tuple[int, int, int], height: int) -> Iterator[Tile]:
    """Yield the tiles of C in strips of `height` rows, column by column, and back in the next strip."""
    rows, columns, _ = shape
    for number, top in enumerate(range(0, rows, height)):
        for column in range(columns) if number % 2 == 0 else reversed(range(columns)):
            for row in range(top, min(rows, top + height)):
                yield row, column


def _iterate_stages(tiles: Sequence[Tile], first_rank: int, member: int, size: int) -> Iterator[Stage]:
    """Yield the stages of one round, whose last tiles may be missing; the own tile comes last."""
    own = tiles[member] if member < len(tiles) else None
    for distance in range(1, size):
        reducer, sender = (member + distance) % size, (member - distance) % size
        has_tile = reducer < len(tiles)
        if has_tile or own is not None:
            yield Stage(
                tile=tiles[reducer] if has_tile else None,
                own=own,
                pushed_to=first_rank + reducer if has_tile else None,
                received_from=None if own is None else first_rank + sender,
            )
    if own is not None:
        yield Stage(own, own)
