"""In which order tiles of a product are read, multiplied and written, so that few are read in little memory.

Measured side: standard library only, Python 3.9. Pure functions: the plan is made before anything is read.

A block of p×q tiles of C stays in memory while, for each k, p tiles of A's column and q of B's row come:
p + q reads for p·q products. The tiles of the shorter side stay for the whole k, the others come one by one.
Blocks follow each other as an ox ploughs, and k turns round at the end of each, so that the tiles that two
neighbours share are still there.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, deque
from typing import Collection, Deque, Dict, Iterator, List, Optional, Sequence, Tuple

Tile = Tuple[int, int]
Input = Tuple[str, int, int]  # the matrix's name, row, column
PREFETCHED = 2  # tiles on their way beside those at work
LEAST_TILES = 3  # one of each matrix; nothing overlaps then


@dataclasses.dataclass(frozen=True)
class Product:
    """One product of tiles, what must be read for it and what may be forgotten after it."""

    row: int
    column: int
    k: int
    first: bool  # of its tile of C
    last: bool
    reads: Tuple[Input, ...]
    forgets: Tuple[Input, ...]


@dataclasses.dataclass(frozen=True)
class Block:
    """The tiles of C held at once, and the buffers beside them."""

    num_rows: int
    num_columns: int
    num_buffers: int  # for tiles of A and B

    @property
    def num_sums(self) -> int:
        return self.num_rows * self.num_columns

    @property
    def num_held(self) -> int:
        """Tiles of A and B that products may count on; the other buffers are for those on their way."""
        least = min(self.num_rows, self.num_columns) + 1
        return max(least, self.num_buffers - PREFETCHED)

    @property
    def num_tiles(self) -> int:
        return self.num_sums + self.num_buffers


def choose_block(
    shape: Tuple[int, int, int], num_tiles: int, most_sums: Optional[int] = None
) -> Optional[Block]:
    """The block that reads least when so many tiles fit into memory; None when not even three do.

    `shape` counts tiles: rows of C, columns of C, and the sum's. What fits besides is for tiles on their way.
    With `most_sums` the block has no more tiles of C, and the memory it leaves keeps tiles of A and B.
    """
    rows, columns, depth = shape
    kept = 0 if most_sums is None or most_sums >= rows * columns else depth * (rows + columns)
    best: Optional[Tuple[Tuple[int, int], Block]] = None
    for p in range(1, min(rows, num_tiles) + 1):
        for q in range(1, min(columns, num_tiles // p) + 1):
            least = min(p, q) + 1
            spare = num_tiles - p * q - least
            if spare < 0 or (most_sums is not None and p * q > most_sums):
                break
            reads = depth * (rows * -(-columns // q) + columns * -(-rows // p))
            starved = max(0, PREFETCHED - spare)
            num_buffers = min(least + spare, max(p + q, kept) + PREFETCHED)
            # Without a tile on its way every read is waited for: that is worse than reading more.
            candidate = ((starved, reads), Block(p, q, num_buffers))
            if best is None or candidate[0] < best[0]:
                best = candidate
    return None if best is None else best[1]


def ordered_products(shape: Tuple[int, int, int], block: Block, done: Collection[Tile] = ()) -> List[Product]:
    """All products but those of finished tiles of C, with the reads each of them brings."""
    finished = frozenset(done)
    steps = [
        step
        for number, tiles in enumerate(_blocks(shape, block))
        for step in _steps(tiles, range(shape[2]), number % 2 == 1, finished)
    ]
    reads, forgets = _reads_and_forgets(steps, block.num_held)
    products: List[Product] = []
    count: Dict[Tile, int] = Counter()
    for place, (row, column, k) in enumerate(steps):
        count[row, column] += 1
        first, last = count[row, column] == 1, count[row, column] == shape[2]
        products.append(Product(row, column, k, first, last, tuple(reads[place]), tuple(forgets[place])))
    return products


def count_reads(products: Sequence[Product]) -> int:
    """How many tiles are read altogether."""
    return sum(len(product.reads) for product in products)


def _blocks(shape: Tuple[int, int, int], block: Block) -> Iterator[Tuple[range, range]]:
    rows, columns, _ = shape
    starts = range(0, columns, block.num_columns)
    for number, top in enumerate(range(0, rows, block.num_rows)):
        own = range(top, min(rows, top + block.num_rows))
        for left in starts if number % 2 == 0 else reversed(starts):
            yield own, range(left, min(columns, left + block.num_columns))


def _steps(
    tiles: Tuple[range, range], depth: range, backwards: bool, done: Collection[Tile]
) -> Iterator[Tuple[int, int, int]]:
    """The products of one block: for each k, the longer side outside, so that the shorter one stays."""
    rows, columns = tiles
    for k in reversed(depth) if backwards else depth:
        if len(rows) <= len(columns):
            pairs = ((row, column) for column in columns for row in rows)
        else:
            pairs = ((row, column) for row in rows for column in columns)
        yield from ((row, column, k) for row, column in pairs if (row, column) not in done)


def _reads_and_forgets(
    steps: Sequence[Tuple[int, int, int]], capacity: int
) -> Tuple[List[List[Input]], List[List[Input]]]:
    """For each step the tiles read before and forgotten after it, when so many can be held.

    What is needed last goes first, which reads least (Belady 1966), and it goes right after its last use.
    """
    uses: Dict[Input, Deque[int]] = {}
    for place, step in enumerate(steps):
        for tile in _needed(step):
            uses.setdefault(tile, deque()).append(place)
    reads: List[List[Input]] = [[] for _ in steps]
    forgets: List[List[Input]] = [[] for _ in steps]
    held: Dict[Input, int] = {}  # with the step of the last use
    for place, step in enumerate(steps):
        needed = _needed(step)
        for tile in needed:
            uses[tile].popleft()
            if tile not in held:
                if len(held) == capacity:
                    furthest = max((one for one in held if one not in needed), key=lambda one: uses[one][0])
                    forgets[held.pop(furthest)].append(furthest)
                reads[place].append(tile)
            held[tile] = place
        for tile in needed:
            if not uses[tile]:
                del held[tile]
                forgets[place].append(tile)
    return reads, forgets


def _needed(step: Tuple[int, int, int]) -> Tuple[Input, Input]:
    row, column, k = step
    return ("A", row, k), ("B", k, column)
