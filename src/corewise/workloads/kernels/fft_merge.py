"""The merge of sub-transforms: twiddle factors, and a short transform across the tiles, block by block.

Measured side: standard library and numpy only, Python 3.9.

The signal's tile t is x[t], x[t + T], ...; its sub-transform is Y_t[k], k below M = N/T. Then
X[k + M·q] = Σ_t e^(-2πi·t·q/T) · e^(-2πi·t·k/N) · Y_t[k] (Cooley, Tukey 1965): of the matrix Y, tiles by
frequencies, every column is multiplied with its twiddle factors and transformed, and the columns of a block
are done at once. The factors of a block that starts at k0 are those of the first times e^(-2πi·t·k0/N); few
tiles take those into the matrix of the short transform.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Iterator, Tuple

import numpy as np

from corewise.workloads.kernels.roots_of_unity import roots_of_unity

BLOCK_ELEMENTS = {"cpu": 2**16, "cuda": 2**24}  # of a thread: with their factors they stay in its cache
MOST_BLOCK_ELEMENTS = {"cpu": 2**21, "cuda": 2**24}  # of all threads: what lies beside the signal stays small
LEAST_WIDTH = 256
MOST_TILES_BY_PRODUCT = {"cpu": 16, "cuda": 64}  # so many are transformed fastest by a product of matrices


@dataclasses.dataclass(frozen=True)
class Cut:
    """How a signal is cut into interleaved tiles."""

    size: int
    num_tiles: int

    @property
    def tile_size(self) -> int:
        return self.size // self.num_tiles

    def width(self, num_elements: int) -> int:
        """Columns of a block of about so many elements."""
        return min(self.tile_size, max(LEAST_WIDTH, num_elements // self.num_tiles))

    def blocks(self, width: int) -> Iterator[Tuple[int, int]]:
        """First and last column (exclusive) of every block."""
        for start in range(0, self.tile_size, width):
            yield start, min(self.tile_size, start + width)


def twiddles(cut: Cut, start: int, stop: int) -> Any:
    """The factors of the columns from start to stop, tiles by columns."""
    return roots_of_unity(np.arange(cut.num_tiles)[:, None] * np.arange(start, stop)[None, :], cut.size)


def dft_matrix(num_tiles: int) -> Any:
    """The short transform as a matrix."""
    tiles = np.arange(num_tiles)
    return roots_of_unity(tiles[:, None] * tiles[None, :], num_tiles)


def block_elements(device: str, num_tiles: int, num_threads: int) -> int:
    """Of a block that so many threads merge together; a product needs no copies, so twice as many fit."""
    is_product = device == "cpu" and num_tiles <= MOST_TILES_BY_PRODUCT[device]
    of_thread = BLOCK_ELEMENTS[device] * (2 if is_product else 1)
    return min(MOST_BLOCK_ELEMENTS[device], num_threads * of_thread)


class Merge:
    """Merges blocks of columns, where they lie if the framework writes its arrays."""

    def __init__(self, arrays: Any, pieces: Any, dtype: str, cut: Cut, width: int) -> None:
        self._arrays, self._pieces, self._cut, self._width = arrays, pieces, cut, width
        self._dtype = dtype
        self._table = self._place(twiddles(cut, 0, width), dtype)
        self._by_product = cut.num_tiles <= MOST_TILES_BY_PRODUCT[arrays.device]
        starts = np.arange(0, cut.tile_size, width)[:, None] * np.arange(cut.num_tiles)[None, :]
        offsets = roots_of_unity(starts, cut.size)  # blocks by tiles
        if self._by_product:  # the block's factor belongs to the tile: it goes into the matrix
            self._offsets = self._place(dft_matrix(cut.num_tiles) * offsets[:, None, :], dtype)
        else:
            self._offsets = self._place(offsets[:, :, None], dtype)
        self._compiled = arrays.compiled(self._merged)  # for frameworks whose results are new arrays

    def _place(self, table: Any, dtype: str) -> Any:
        return self._arrays.from_host(np.ascontiguousarray(table.astype(dtype, copy=False)))

    def scratch(self) -> Any:
        """Memory for one block; whoever merges beside others brings their own. None where it has no use."""
        if not self._pieces.writes_in_place:
            return None
        return self._arrays.empty((self._cut.num_tiles, self._width), self._dtype)

    def block(self, columns: Any, start: int, scratch: Any) -> Any:
        """The columns that begin at `start`, merged; in place where the framework writes its arrays."""
        width, offset = int(columns.shape[1]), self._offsets[start // self._width]
        table = self._table if width == self._width else self._table[:, :width]
        if not self._pieces.writes_in_place:
            return self._compiled(columns, table, offset)
        twisted = self._arrays.multiply(columns, table, out=scratch[:, :width])
        if self._by_product:
            return self._arrays.matmul(offset, twisted, out=columns)
        self._arrays.multiply(twisted, offset, out=twisted)
        return self._pieces.fft(twisted, 0, out=columns)

    def _merged(self, columns: Any, table: Any, offset: Any) -> Any:
        twisted = self._arrays.multiply(columns, table)
        if self._by_product:
            return self._arrays.matmul(offset, twisted)
        return self._pieces.fft(self._arrays.multiply(twisted, offset), 0)
