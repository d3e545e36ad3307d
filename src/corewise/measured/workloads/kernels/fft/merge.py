"""The merge of sub-transforms: twiddle factors, and a short transform across the tiles, block by block.

Measured side: standard library and numpy only, Python 3.9.

Tile t of the signal is x[t], x[t + T], ... and its sub-transform is Y_t[k] for k below M = N/T. Then
X[k + M·q] = Σ_t e^(-2πi·t·q/T) · e^(-2πi·t·k/N) · Y_t[k] (Cooley, Tukey 1965). Y is a matrix of tiles by
frequencies: each column is multiplied with its twiddle factors and transformed, a block of columns at a time.
The factors of a block that starts at k0 are those of the first block times e^(-2πi·t·k0/N). With few tiles,
this extra factor is part of the short transform's matrix.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Iterator, Tuple

import numpy as np

from corewise.measured.workloads.kernels.fft.roots_of_unity import compute_roots_of_unity

# Elements of a block per thread. With their factors they fit its cache.
BLOCK_ELEMENTS = {"cpu": 2**16, "cuda": 2**24}
# Elements of a block of all threads, which limits the memory besides the signal.
MAX_BLOCK_ELEMENTS = {"cpu": 2**21, "cuda": 2**24}
MIN_WIDTH = 256
# Up to this number of tiles, a matrix product is the fastest transform across tiles (measured).
MAX_TILES_BY_PRODUCT = {"cpu": 16, "cuda": 64}


@dataclasses.dataclass(frozen=True)
class TileSplit:
    """A signal split into interleaved tiles."""

    size: int
    num_tiles: int

    @property
    def tile_size(self) -> int:
        return self.size // self.num_tiles

    def choose_width(self, num_elements: int) -> int:
        """Choose the columns of a block of about `num_elements`."""
        return min(self.tile_size, max(MIN_WIDTH, num_elements // self.num_tiles))

    def iterate_blocks(self, width: int) -> Iterator[Tuple[int, int]]:
        """Yield the first column and the end column (exclusive) of every block."""
        for start in range(0, self.tile_size, width):
            yield start, min(self.tile_size, start + width)


def compute_twiddles(cut: TileSplit, start: int, stop: int) -> Any:
    """Compute the factors of the columns from start to stop, as tiles by columns."""
    return compute_roots_of_unity(np.arange(cut.num_tiles)[:, None] * np.arange(start, stop)[None, :], cut.size)


def build_dft_matrix(num_tiles: int) -> Any:
    """Build the matrix of the short transform."""
    tiles = np.arange(num_tiles)
    return compute_roots_of_unity(tiles[:, None] * tiles[None, :], num_tiles)


def choose_block_elements(device: str, num_tiles: int, num_threads: int) -> int:
    """Choose the elements of a block; a matrix product needs no copies, so twice as many fit."""
    is_product = device == "cpu" and num_tiles <= MAX_TILES_BY_PRODUCT[device]
    per_thread = BLOCK_ELEMENTS[device] * (2 if is_product else 1)
    return min(MAX_BLOCK_ELEMENTS[device], num_threads * per_thread)


class BlockMerger:
    """Merges blocks of columns, in place if the framework can write its arrays."""

    def __init__(self, arrays: Any, pieces: Any, dtype: str, cut: TileSplit, width: int) -> None:
        self._arrays, self._pieces, self._cut, self._width = arrays, pieces, cut, width
        self._dtype = dtype
        self._table = self._upload_table(compute_twiddles(cut, 0, width), dtype)
        self._by_product = cut.num_tiles <= MAX_TILES_BY_PRODUCT[arrays.device]
        starts = np.arange(0, cut.tile_size, width)[:, None] * np.arange(cut.num_tiles)[None, :]
        # Factors of blocks by tiles. They do not depend on the column, so a matrix product includes them.
        offsets = compute_roots_of_unity(starts, cut.size)
        if self._by_product:
            self._offsets = self._upload_table(build_dft_matrix(cut.num_tiles) * offsets[:, None, :], dtype)
        else:
            self._offsets = self._upload_table(offsets[:, :, None], dtype)
        # Used by frameworks that cannot write into existing arrays.
        self._compiled = arrays.compile(self._compute_merged)

    def _upload_table(self, table: Any, dtype: str) -> Any:
        return self._arrays.from_host(np.ascontiguousarray(table.astype(dtype, copy=False)))

    def allocate_scratch(self) -> Any:
        """Allocate memory for one block per concurrent caller; None if it is not needed."""
        if not self._pieces.writes_in_place:
            return None
        return self._arrays.create_empty((self._cut.num_tiles, self._width), self._dtype)

    def merge_block(self, columns: Any, start: int, scratch: Any) -> Any:
        """Merge the columns that begin at `start`, in place if the framework can write its arrays."""
        width, offset = int(columns.shape[1]), self._offsets[start // self._width]
        table = self._table if width == self._width else self._table[:, :width]
        if not self._pieces.writes_in_place:
            return self._compiled(columns, table, offset)
        twisted = self._arrays.multiply(columns, table, out=scratch[:, :width])
        if self._by_product:
            return self._arrays.matmul(offset, twisted, out=columns)
        self._arrays.multiply(twisted, offset, out=twisted)
        return self._pieces.compute_fft(twisted, 0, out=columns)

    def _compute_merged(self, columns: Any, table: Any, offset: Any) -> Any:
        twisted = self._arrays.multiply(columns, table)
        if self._by_product:
            return self._arrays.matmul(offset, twisted)
        return self._pieces.compute_fft(self._arrays.multiply(twisted, offset), 0)
