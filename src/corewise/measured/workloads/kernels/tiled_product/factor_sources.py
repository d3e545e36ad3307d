"""Sources of the factors of a tiled product: random numbers in tile files, or a user's .npy files.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any, Callable, Tuple, Union

import numpy as np

from corewise.measured.workloads.kernels.tiled_product.tile_files import BadTile, Tile, TileFolder, TileGrid

# Receives the current activity, the number of finished items and their total.
Progress = Callable[[str, int, int], None]


def make_tiles(matrix: TileFolder, seed: int, buffer: Any, report: Progress, share: Tuple[int, int] = (0, 1)) -> None:
    """Write the missing tiles with normal random numbers that depend on seed, matrix and position only.

    Args:
        share: with (1, 3), every third tile from the second on; another process makes the others.
    """
    tiles = list(matrix.grid.iterate_tiles())[share[0] :: share[1]]
    for number, tile in enumerate(tiles):
        report(f"making {matrix.name}", number, len(tiles))
        if matrix.has_tile(tile):
            continue
        shape = matrix.grid.compute_tile_shape(*tile)
        array = buffer[: shape[0] * shape[1]].reshape(shape)
        random = np.random.Generator(np.random.SFC64([seed, *matrix.name.encode(), *tile]))
        random.standard_normal(dtype=array.dtype.type, out=array)
        matrix.write(tile, array)


@dataclasses.dataclass(frozen=True)
class NpyMatrix:
    """A matrix in a .npy file, read tile by tile; `offset` is the position of the first element.

    The file is not memory-mapped, so that memory stays within its limit.
    """

    path: Path
    grid: TileGrid
    dtype: str
    offset: int

    def read(self, tile: Tile, out: Any) -> Any:
        rows, columns = self.grid.compute_tile_shape(*tile)
        array = out[: rows * columns].reshape(rows, columns)
        size = array.itemsize
        first = self.offset + (tile[0] * self.grid.num_columns + tile[1]) * self.grid.tile * size
        file = os.open(self.path, os.O_RDONLY)
        try:
            for row in range(rows):
                start = first + row * self.grid.num_columns * size
                if os.preadv(file, [memoryview(array[row]).cast("B")], start) != columns * size:
                    raise BadTile(f"{self.path} is truncated: row {tile[0] * self.grid.tile + row} is incomplete")
        finally:
            os.close(file)
        return array

    def name_file(self, tile: Tile) -> str:
        return str(self.path)

    @property
    def identity(self) -> Tuple[str, int, int]:
        """Path, size and modification time, which change with the file."""
        stat = self.path.stat()
        return str(self.path.resolve()), stat.st_size, stat.st_mtime_ns


def open_npy(path: Union[str, Path], tile: int) -> NpyMatrix:
    """Open a matrix in a .npy file; raise ValueError unless it is a row-major float32 or float64 matrix."""
    path = Path(path)
    with open(path, "rb") as file:
        try:
            is_first = np.lib.format.read_magic(file) == (1, 0)
            read = np.lib.format.read_array_header_1_0 if is_first else np.lib.format.read_array_header_2_0
            shape, by_columns, dtype = read(file)
        except ValueError as problem:
            raise ValueError(f"{path} is not a .npy file: {problem}") from problem
        offset = file.tell()
    if len(shape) != 2 or by_columns or dtype.name not in ("float32", "float64") or not dtype.isnative:
        raise ValueError(
            f"{path} holds an array of shape {shape} and type {dtype}"
            f"{', column-major' if by_columns else ''}; it must be a row-major matrix of float32 or float64"
        )
    if 0 in shape:
        raise ValueError(f"{path} holds a matrix of {shape[0]} rows and {shape[1]} columns, which is empty")
    return NpyMatrix(path, TileGrid(shape[0], shape[1], tile), dtype.name, offset)
