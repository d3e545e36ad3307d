"""Matrices split into square tiles, each stored in a file with a checksum.

Measured side: standard library and numpy only, Python 3.9. A file has a header of one page, then the tile's
elements, row by row. It is written to a temporary name and renamed, so that it is either complete or missing.
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

# One page, so that the rest can be read directly into a buffer.
HEADER_BYTES = 4096
MAGIC = "corewise-tile-2"
Tile = Tuple[int, int]


class BadTile(Exception):
    """A missing or damaged tile file; the message names it."""


class StorageFull(Exception):
    """No space for a tile, which was removed; the message names the file and the bytes needed."""


@dataclasses.dataclass(frozen=True)
class TileGrid:
    """The tiling of a matrix; the last tiles of a row or column may be smaller."""

    num_rows: int
    num_columns: int
    tile: int

    @property
    def shape(self) -> Tile:
        """The number of rows and columns of tiles."""
        return -(-self.num_rows // self.tile), -(-self.num_columns // self.tile)

    def compute_tile_shape(self, row: int, column: int) -> Tuple[int, int]:
        return (min(self.tile, self.num_rows - row * self.tile), min(self.tile, self.num_columns - column * self.tile))

    def iterate_tiles(self) -> Iterator[Tile]:
        rows, columns = self.shape
        return ((row, column) for row in range(rows) for column in range(columns))


class TileSource(Protocol):
    """A matrix that can be read tile by tile."""

    @property
    def grid(self) -> TileGrid: ...

    @property
    def dtype(self) -> str: ...

    def read(self, tile: Tile, out: Any) -> Any:
        """Read the tile into the flat array `out` and return it."""
        ...

    def name_file(self, tile: Tile) -> str:
        """Return the file that contains the tile."""
        ...


@dataclasses.dataclass(frozen=True)
class TileFolder:
    """One matrix as tile files in a folder.

    `name` is the name of the matrix. Tiles with another `problem` are rejected.
    """

    folder: Path
    name: str
    grid: TileGrid
    dtype: str
    problem: str = ""

    def build_path(self, tile: Tile) -> Path:
        return self.folder / f"{self.name}_{tile[0]:05d}_{tile[1]:05d}.tile"

    def name_file(self, tile: Tile) -> str:
        return str(self.build_path(tile))

    def has_tile(self, tile: Tile) -> bool:
        return self.build_path(tile).exists()

    def read(self, tile: Tile, out: Any) -> Any:
        path, shape = self.build_path(tile), self.grid.compute_tile_shape(*tile)
        array = out[: shape[0] * shape[1]].reshape(shape)
        try:
            with open(path, "rb", buffering=0) as file:
                header = _parse_header(path, file.read(HEADER_BYTES))
                num_bytes = _read_whole(file, array)
        except FileNotFoundError as problem:
            raise BadTile(f"{path} is missing") from problem
        if num_bytes != array.nbytes:
            raise BadTile(f"{path} is truncated: it has {num_bytes} of {array.nbytes} bytes of data")
        for key, expected in self._describe_tile(shape).items():
            if header.get(key) != expected:
                raise BadTile(f"{path} belongs to another problem: its {key} is {header.get(key)!r}, not {expected!r}")
        checksum = zlib.crc32(_as_bytes(array))
        if checksum != header.get("crc32"):
            raise BadTile(f"{path} is damaged: its data does not match its checksum")
        return array

    def write(self, tile: Tile, array: Any) -> None:
        path = self.build_path(tile)
        header = {**self._describe_tile(array.shape), "crc32": zlib.crc32(_as_bytes(array))}
        header["header_crc32"] = _compute_checksum(header)
        page = json.dumps({"magic": MAGIC, **header}).encode("ascii").ljust(HEADER_BYTES)
        aside = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with open(aside, "wb", buffering=0) as file:
                _write_whole(file, page)
                _write_whole(file, _as_bytes(array))
            os.replace(aside, path)
        except BaseException as problem:
            with contextlib.suppress(OSError):
                aside.unlink()
            if isinstance(problem, OSError) and problem.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise StorageFull(
                    f"no space for the {HEADER_BYTES + array.nbytes} bytes of {path}: {problem.strerror}; "
                    "the incomplete file was removed. Free some disk space and run again to resume"
                ) from problem
            raise

    def _describe_tile(self, shape: Tuple[int, ...]) -> Dict[str, Any]:
        return {"problem": self.problem, "matrix": self.name, "shape": list(shape), "dtype": self.dtype}


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files of killed writers."""
    for path in folder.glob(".*.tile.*"):
        with contextlib.suppress(OSError):
            path.unlink()


def _parse_header(path: Path, page: bytes) -> Dict[str, Any]:
    try:
        header: Dict[str, Any] = json.loads(page)
        if len(page) == HEADER_BYTES and header.pop("magic") == MAGIC:
            if header.pop("header_crc32") == _compute_checksum(header):
                return header
            raise BadTile(f"{path} is damaged: its header does not match its checksum")
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    raise BadTile(f"{path} is not a tile file, or its header is damaged")


def _compute_checksum(header: Dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(header, sort_keys=True).encode())


def _as_bytes(array: Any) -> memoryview:
    whole: Any = np.ascontiguousarray(array)
    return memoryview(whole).cast("B")


def _read_whole(file: Any, array: Any) -> int:
    view, done = memoryview(array).cast("B"), 0
    while done < len(view):
        # Linux reads at most 2 GiB at a time.
        count = file.readinto(view[done:])
        if not count:
            break
        done += count
    return done


def _write_whole(file: Any, data: Any) -> None:
    view = memoryview(data)
    while len(view):
        view = view[file.write(view) :]
