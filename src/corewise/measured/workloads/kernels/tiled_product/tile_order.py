"""The order in which tiles are read, multiplied and written, chosen to read few tiles with little memory.

Measured side: standard library only, Python 3.9. The plan is complete before anything is read.

A block of p×q tiles of C stays in memory while, for each k, p tiles of A's column and q tiles of B's row are
read: p + q reads for p·q products. The tiles of the shorter side stay for the whole k, the others are read
one by one. Blocks alternate their direction (boustrophedon), and k reverses at the end of each block, so that
tiles shared by neighbouring blocks are still in memory.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, deque
from typing import Collection, Deque, Dict, Iterator, List, Optional, Sequence, Tuple

Tile = Tuple[int, int]
# Name of the matrix, row and column.
Input = Tuple[str, int, int]
# Tiles that are read ahead.
PREFETCHED = 2
# One tile of each matrix; reading and multiplying do not overlap then.
MIN_TILES = 3


@dataclasses.dataclass(frozen=True)
class TileProduct:
    """One product of tiles, with the tiles to read before it and to evict after it.

    `first` and `last` refer to the products of its tile of C.
    """

    row: int
    column: int
    k: int
    first: bool
    last: bool
    reads: Tuple[Input, ...]
    evictions: Tuple[Input, ...]


@dataclasses.dataclass(frozen=True)
class TileBlock:
    """The tiles of C held together; `num_buffers` counts the buffers for tiles of A and B."""

    num_rows: int
    num_columns: int
    num_buffers: int

    @property
    def num_sums(self) -> int:
        return self.num_rows * self.num_columns

    @property
    def num_held(self) -> int:
        """Tiles of A and B held for products; the other buffers are for prefetching."""
        least = min(self.num_rows, self.num_columns) + 1
        return max(least, self.num_buffers - PREFETCHED)

    @property
    def num_tiles(self) -> int:
        return self.num_sums + self.num_buffers


def choose_block(shape: Tuple[int, int, int], num_tiles: int, most_sums: Optional[int] = None) -> Optional[TileBlock]:
    """Return the block with the fewest reads if `num_tiles` fit into memory; None if fewer than three fit.

    `shape` counts tiles: rows of C, columns of C, and the inner dimension. Spare memory is for prefetching.
    `most_sums` limits the tiles of C in a block; the memory it frees holds tiles of A and B.
    """
    rows, columns, depth = shape
    num_cached = 0 if most_sums is None or most_sums >= rows * columns else depth * (rows + columns)
    best: Optional[Tuple[Tuple[int, int], TileBlock]] = None
    for p in range(1, min(rows, num_tiles) + 1):
        for q in range(1, min(columns, num_tiles // p) + 1):
            least = min(p, q) + 1
            spare = num_tiles - p * q - least
            if spare < 0 or (most_sums is not None and p * q > most_sums):
                break
            reads = depth * (rows * -(-columns // q) + columns * -(-rows // p))
            starved = max(0, PREFETCHED - spare)
            num_buffers = min(least + spare, max(p + q, num_cached) + PREFETCHED)
            # Without prefetching, every read blocks, which costs more than additional reads.
            candidate = ((starved, reads), TileBlock(p, q, num_buffers))
            if best is None or candidate[0] < best[0]:
                best = candidate
    return None if best is None else best[1]


def order_products(shape: Tuple[int, int, int], block: TileBlock, done: Collection[Tile] = ()) -> List[TileProduct]:
    """Return all products except those of finished tiles of C, with the reads of each."""
    finished = frozenset(done)
    steps = [
        step
        for number, tiles in enumerate(_iterate_blocks(shape, block))
        for step in _iterate_steps(tiles, range(shape[2]), number % 2 == 1, finished)
    ]
    return plan_products(steps, block.num_held)


def plan_products(steps: Sequence[Tuple[int, int, int]], capacity: int) -> List[TileProduct]:
    """Return products in this order (row, column, k), with the reads of each and room for `capacity` tiles."""
    reads, evictions = _plan_reads(steps, capacity)
    products: List[TileProduct] = []
    total = Counter((row, column) for row, column, _ in steps)
    count: Dict[Tile, int] = Counter()
    for place, (row, column, k) in enumerate(steps):
        count[row, column] += 1
        first, last = count[row, column] == 1, count[row, column] == total[row, column]
        products.append(TileProduct(row, column, k, first, last, tuple(reads[place]), tuple(evictions[place])))
    return products


def count_reads(products: Sequence[TileProduct]) -> int:
    """Return the total number of tile reads."""
    return sum(len(product.reads) for product in products)


def _iterate_blocks(shape: Tuple[int, int, int], block: TileBlock) -> Iterator[Tuple[range, range]]:
    rows, columns, _ = shape
    starts = range(0, columns, block.num_columns)
    for number, top in enumerate(range(0, rows, block.num_rows)):
        block_rows = range(top, min(rows, top + block.num_rows))
        for left in starts if number % 2 == 0 else reversed(starts):
            yield block_rows, range(left, min(columns, left + block.num_columns))


def _iterate_steps(
    tiles: Tuple[range, range], depth: range, backwards: bool, done: Collection[Tile]
) -> Iterator[Tuple[int, int, int]]:
    """Yield the products of one block; for each k the outer loop runs over the longer side."""
    rows, columns = tiles
    for k in reversed(depth) if backwards else depth:
        if len(rows) <= len(columns):
            pairs = ((row, column) for column in columns for row in rows)
        else:
            pairs = ((row, column) for row in rows for column in columns)
        yield from ((row, column, k) for row, column in pairs if (row, column) not in done)


def _plan_reads(steps: Sequence[Tuple[int, int, int]], capacity: int) -> Tuple[List[List[Input]], List[List[Input]]]:
    """Return, for each step, the tiles to read before and to evict after it, with room for `capacity` tiles.

    The tile whose next use is furthest away is evicted, which is optimal (Belady 1966).
    """
    uses: Dict[Input, Deque[int]] = {}
    for place, step in enumerate(steps):
        for tile in _list_inputs(step):
            uses.setdefault(tile, deque()).append(place)
    reads: List[List[Input]] = [[] for _ in steps]
    evictions: List[List[Input]] = [[] for _ in steps]
    # By tile: the step of its last use so far.
    held: Dict[Input, int] = {}
    for place, step in enumerate(steps):
        needed = _list_inputs(step)
        for tile in needed:
            uses[tile].popleft()
            if tile not in held:
                if len(held) == capacity:
                    furthest = max((one for one in held if one not in needed), key=lambda one: uses[one][0])
                    evictions[held.pop(furthest)].append(furthest)
                reads[place].append(tile)
            held[tile] = place
        for tile in needed:
            if not uses[tile]:
                del held[tile]
                evictions[place].append(tile)
    return reads, evictions


def _list_inputs(step: Tuple[int, int, int]) -> Tuple[Input, Input]:
    row, column, k = step
    return ("A", row, k), ("B", k, column)
