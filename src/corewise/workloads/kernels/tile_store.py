"""Matrices cut into square tiles, every tile a file of its own with a checksum.

Measured side: standard library and numpy only, Python 3.9. A file is a header of one page and the tile's
numbers, row by row. It is written aside and renamed, so that under its name it is whole or not there at all.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import zlib
from pathlib import Path
from typing import Any, Dict, Iterator, Protocol, Tuple

import numpy as np

HEADER_BYTES = 4096  # a page: what follows can be read straight into a buffer
MAGIC = "corewise-tile-2"
Tile = Tuple[int, int]


class BadTile(Exception):
    """A tile file that is not what was written; its text names the file."""


class StorageFull(Exception):
    """No room for a tile; nothing of it was left. Its text names the folder and the bytes needed."""


@dataclasses.dataclass(frozen=True)
class Grid:
    """How a matrix is cut; the last tiles of a row or column may be smaller."""

    num_rows: int
    num_columns: int
    tile: int

    @property
    def shape(self) -> Tile:
        """The number of rows and columns of tiles."""
        return -(-self.num_rows // self.tile), -(-self.num_columns // self.tile)

    def tile_shape(self, row: int, column: int) -> Tuple[int, int]:
        return (
            min(self.tile, self.num_rows - row * self.tile),
            min(self.tile, self.num_columns - column * self.tile),
        )

    def tiles(self) -> Iterator[Tile]:
        rows, columns = self.shape
        return ((row, column) for row in range(rows) for column in range(columns))


class Source(Protocol):
    """Where tiles of a matrix come from."""

    @property
    def grid(self) -> Grid: ...

    @property
    def dtype(self) -> str: ...

    def read(self, tile: Tile, out: Any) -> Any:
        """The tile in the memory of `out`, a flat array that is long enough."""
        ...

    def place(self, tile: Tile) -> str:
        """The file the tile is in."""
        ...


@dataclasses.dataclass(frozen=True)
class TileFolder:
    """One matrix as tile files in a folder."""

    folder: Path
    name: str  # of the matrix
    grid: Grid
    dtype: str
    problem: str = ""  # what the tiles are part of; a tile of another problem is not taken

    def path(self, tile: Tile) -> Path:
        return self.folder / f"{self.name}_{tile[0]:05d}_{tile[1]:05d}.tile"

    def place(self, tile: Tile) -> str:
        return str(self.path(tile))

    def exists(self, tile: Tile) -> bool:
        return self.path(tile).exists()

    def read(self, tile: Tile, out: Any) -> Any:
        path, shape = self.path(tile), self.grid.tile_shape(*tile)
        array = out[: shape[0] * shape[1]].reshape(shape)
        try:
            with open(path, "rb", buffering=0) as file:
                header = _header(path, file.read(HEADER_BYTES))
                num_bytes = _read_whole(file, array)
        except FileNotFoundError as problem:
            raise BadTile(f"{path} is missing") from problem
        if num_bytes != array.nbytes:
            raise BadTile(f"{path} is cut short: it has {num_bytes} of {array.nbytes} bytes of numbers")
        for key, wanted in self._described(shape).items():
            if header.get(key) != wanted:
                raise BadTile(
                    f"{path} is of something else: its {key} is {header.get(key)!r}, not {wanted!r}"
                )
        checksum = zlib.crc32(_bytes_of(array))
        if checksum != header.get("crc32"):
            raise BadTile(f"{path} is damaged: its numbers do not have the checksum they were written with")
        return array

    def write(self, tile: Tile, array: Any) -> None:
        path = self.path(tile)
        header = {**self._described(array.shape), "crc32": zlib.crc32(_bytes_of(array))}
        header["header_crc32"] = _checksum_of(header)
        page = json.dumps({"magic": MAGIC, **header}).encode("ascii").ljust(HEADER_BYTES)
        aside = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with open(aside, "wb", buffering=0) as file:
                _write_whole(file, page)
                _write_whole(file, _bytes_of(array))
            os.replace(aside, path)
        except BaseException as problem:
            with contextlib.suppress(OSError):
                aside.unlink()
            if isinstance(problem, OSError) and problem.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise StorageFull(
                    f"no room for the {HEADER_BYTES + array.nbytes} bytes of {path}: {problem.strerror}; "
                    "nothing of it was left. Free some space and run it again: finished tiles are kept"
                ) from problem
            raise

    def _described(self, shape: Tuple[int, ...]) -> Dict[str, Any]:
        return {"problem": self.problem, "matrix": self.name, "shape": list(shape), "dtype": self.dtype}


def remove_leftovers(folder: Path) -> None:
    """Takes away what killed writers left aside."""
    for path in folder.glob(".*.tile.*"):
        with contextlib.suppress(OSError):
            path.unlink()


def _header(path: Path, page: bytes) -> Dict[str, Any]:
    try:
        header: Dict[str, Any] = json.loads(page)
        if len(page) == HEADER_BYTES and header.pop("magic") == MAGIC:
            if header.pop("header_crc32") == _checksum_of(header):
                return header
            raise BadTile(f"{path} is damaged: its header does not have the checksum written with it")
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    raise BadTile(f"{path} is no tile file, or its header is damaged")


def _checksum_of(header: Dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(header, sort_keys=True).encode())


def _bytes_of(array: Any) -> memoryview:
    whole: Any = np.ascontiguousarray(array)
    return memoryview(whole).cast("B")


def _read_whole(file: Any, array: Any) -> int:
    view, done = memoryview(array).cast("B"), 0
    while done < len(view):
        count = file.readinto(view[done:])  # the kernel gives at most 2 GiB at a time
        if not count:
            break
        done += count
    return done


def _write_whole(file: Any, data: Any) -> None:
    view = memoryview(data)
    while len(view):
        view = view[file.write(view) :]
