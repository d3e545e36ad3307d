"""Where the factors of a tiled product come from: random numbers made into tile files, or a user's own .npy.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any, Callable, Tuple, Union

import numpy as np

from corewise.workloads.kernels.tile_store import BadTile, Grid, Tile, TileFolder

Told = Callable[[str, int, int], None]  # what is done, how many of it, of how many


def make_tiles(matrix: TileFolder, seed: int, buffer: Any, told: Told) -> None:
    """Writes the tiles that are not there yet: normal numbers that depend on seed, matrix and place alone."""
    tiles = list(matrix.grid.tiles())
    for number, tile in enumerate(tiles):
        told(f"making {matrix.name}", number, len(tiles))
        if matrix.exists(tile):
            continue
        shape = matrix.grid.tile_shape(*tile)
        array = buffer[: shape[0] * shape[1]].reshape(shape)
        random = np.random.Generator(np.random.SFC64([seed, *matrix.name.encode(), *tile]))
        random.standard_normal(dtype=array.dtype.type, out=array)
        matrix.write(tile, array)


@dataclasses.dataclass(frozen=True)
class NpyMatrix:
    """A matrix in a .npy file, read tile by tile; never mapped, so that memory stays what was allowed."""

    path: Path
    grid: Grid
    dtype: str
    offset: int  # of the first number

    def read(self, tile: Tile, out: Any) -> Any:
        rows, columns = self.grid.tile_shape(*tile)
        array = out[: rows * columns].reshape(rows, columns)
        size = array.itemsize
        first = self.offset + (tile[0] * self.grid.num_columns + tile[1]) * self.grid.tile * size
        file = os.open(self.path, os.O_RDONLY)
        try:
            for row in range(rows):
                start = first + row * self.grid.num_columns * size
                if os.preadv(file, [memoryview(array[row]).cast("B")], start) != columns * size:
                    raise BadTile(
                        f"{self.path} is cut short: row {tile[0] * self.grid.tile + row} is not whole"
                    )
        finally:
            os.close(file)
        return array

    def place(self, tile: Tile) -> str:
        return str(self.path)

    @property
    def identity(self) -> Tuple[str, int, int]:
        """What changes when the file does."""
        stat = self.path.stat()
        return str(self.path.resolve()), stat.st_size, stat.st_mtime_ns


def open_npy(path: Union[str, Path], tile: int) -> NpyMatrix:
    """The matrix in a .npy file; ValueError where it is none of float32 or float64, row by row."""
    path = Path(path)
    with open(path, "rb") as file:
        try:
            is_first = np.lib.format.read_magic(file) == (1, 0)
            read = np.lib.format.read_array_header_1_0 if is_first else np.lib.format.read_array_header_2_0
            shape, by_columns, dtype = read(file)
        except ValueError as problem:
            raise ValueError(f"{path} is no .npy file: {problem}") from problem
        offset = file.tell()
    if len(shape) != 2 or by_columns or dtype.name not in ("float32", "float64") or not dtype.isnative:
        raise ValueError(
            f"{path} holds an array of shape {shape} and type {dtype}"
            f"{', column by column' if by_columns else ''}; it must be a matrix of float32 or float64 by rows"
        )
    if 0 in shape:
        raise ValueError(
            f"{path} holds a matrix of {shape[0]} rows and {shape[1]} columns: no numbers at all"
        )
    return NpyMatrix(path, Grid(shape[0], shape[1], tile), dtype.name, offset)
