"""Tile files are complete or missing, and errors name the file."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from corewise.measured.workloads.kernels.tiled_product.factor_sources import make_tiles, open_npy
from corewise.measured.workloads.kernels.tiled_product.tile_files import (
    HEADER_BYTES,
    BadTile,
    StorageFull,
    TileFolder,
    TileGrid,
    remove_leftovers,
)

Need = Callable[[bool, str], None]


@pytest.fixture
def matrix(tmp_path: Path) -> TileFolder:
    """A matrix of 50×30 in tiles of 20, the last of them smaller."""
    matrix = TileFolder(tmp_path, "A", TileGrid(50, 30, 20), "float64", "mine")
    make_tiles(matrix, 1, np.empty(400), lambda *_: None)
    return matrix


def flip_bit(path: Path, place: int) -> None:
    with open(path, "r+b") as file:
        file.seek(place)
        value = file.read(1)[0]
        file.seek(place)
        file.write(bytes([value ^ 4]))


def test_tiles_come_back_as_written_at_the_edges_too(matrix: TileFolder) -> None:
    assert matrix.grid.shape == (3, 2)
    assert len(list(matrix.folder.iterdir())) == 6
    array = np.arange(100.0).reshape(10, 10)
    matrix.write((2, 1), array)
    assert np.array_equal(matrix.read((2, 1), np.empty(400)), array)


def test_tiles_made_again_are_the_same_and_those_there_are_left(matrix: TileFolder, tmp_path: Path) -> None:
    before = matrix.read((1, 0), np.empty(400)).copy()
    kept = matrix.build_path((0, 0)).stat().st_mtime_ns
    matrix.build_path((1, 0)).unlink()
    make_tiles(matrix, 1, np.empty(400), lambda *_: None)
    assert np.array_equal(matrix.read((1, 0), np.empty(400)), before)
    assert matrix.build_path((0, 0)).stat().st_mtime_ns == kept
    assert not np.array_equal(matrix.read((0, 0), np.empty(400)), before)


def test_a_flipped_bit_anywhere_is_found_and_the_file_named(matrix: TileFolder) -> None:
    path = matrix.build_path((1, 1))
    for place in (HEADER_BYTES, HEADER_BYTES + 777, path.stat().st_size - 1):
        flip_bit(path, place)
        with pytest.raises(BadTile, match=r"A_00001_00001\.tile is damaged.*checksum"):
            matrix.read((1, 1), np.empty(400))
        flip_bit(path, place)
    matrix.read((1, 1), np.empty(400))
    page = path.read_bytes()[:HEADER_BYTES]
    for name in (b"mine", b'"A"', b"float64", b"crc32", b"shape"):
        place = page.index(name) + 2 - (name == b'"A"')
        flip_bit(path, place)
        with pytest.raises(BadTile, match=r"A_00001_00001\.tile is damaged: its header"):
            matrix.read((1, 1), np.empty(400))
        flip_bit(path, place)
    flip_bit(path, 0)
    with pytest.raises(BadTile, match="is not a tile file"):
        matrix.read((1, 1), np.empty(400))


def test_a_truncated_or_missing_file_is_named(matrix: TileFolder) -> None:
    path = matrix.build_path((0, 1))
    for length in (path.stat().st_size - 8, HEADER_BYTES):
        os.truncate(path, length)
        with pytest.raises(BadTile, match=r"A_00000_00001\.tile is truncated: it has \d+ of 1600 bytes"):
            matrix.read((0, 1), np.empty(400))
    os.truncate(path, 100)
    with pytest.raises(BadTile, match="header is damaged"):
        matrix.read((0, 1), np.empty(400))
    path.unlink()
    with pytest.raises(BadTile, match="is missing"):
        matrix.read((0, 1), np.empty(400))


def test_a_tile_of_another_problem_is_not_taken(matrix: TileFolder) -> None:
    other = TileFolder(matrix.folder, "A", matrix.grid, "float64", "another")
    with pytest.raises(BadTile, match="its problem is 'mine', not 'another'"):
        other.read((0, 0), np.empty(400))


def test_leftovers_of_a_killed_writer_are_removed(matrix: TileFolder) -> None:
    left = matrix.folder / ".A_00000_00000.tile.123"
    left.write_bytes(b"half")
    remove_leftovers(matrix.folder)
    assert not left.exists()
    assert matrix.has_tile((0, 0))


def test_a_full_disk_leaves_no_partial_file_and_is_reported(need: Need, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    program = f"""
import numpy as np
from pathlib import Path
from corewise.measured.workloads.kernels.tiled_product.tile_files import StorageFull, TileFolder, TileGrid
matrix = TileFolder(Path({str(disk)!r}), "C", TileGrid(64, 64, 32), "float64")
matrix.write((0, 0), np.ones((32, 32)))
try:
    matrix.write((0, 1), np.ones((32, 32)))
except StorageFull as problem:
    print(problem)
print(sorted(p.name for p in matrix.folder.iterdir()))
matrix.read((0, 0), np.empty(1024))
"""
    script = f'mount -t tmpfs -o size=20k none {disk} || exit 77; exec "$0" -c "$1"'
    ran = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script, sys.executable, program], capture_output=True, text=True
    )
    need(ran.returncode != 77 and "unshare" not in ran.stderr, "no tmpfs can be mounted here")
    assert ran.returncode == 0, ran.stderr
    assert "no space for the 12288 bytes of" in ran.stdout
    assert "C_00000_00001.tile: No space left on device; the incomplete file was removed" in ran.stdout
    assert "['C_00000_00000.tile']" in ran.stdout


def test_other_failures_of_writing_leave_nothing_either(matrix: TileFolder) -> None:
    gone = TileFolder(matrix.folder / "gone", "A", matrix.grid, "float64")
    with pytest.raises(FileNotFoundError):
        gone.write((0, 0), np.ones((20, 20)))
    assert issubclass(StorageFull, Exception)


def test_a_matrix_in_npy_is_read_by_tiles(tmp_path: Path) -> None:
    whole = np.random.default_rng(0).standard_normal((33, 50)).astype(np.float32)
    np.save(tmp_path / "m.npy", whole)
    matrix = open_npy(tmp_path / "m.npy", 16)
    buffer = np.empty(256, np.float32)
    for row, column in matrix.grid.iterate_tiles():
        part = whole[16 * row : 16 * row + 16, 16 * column : 16 * column + 16]
        assert np.array_equal(matrix.read((row, column), buffer), part)
    os.truncate(tmp_path / "m.npy", matrix.offset + whole.nbytes - 4)
    with pytest.raises(BadTile, match=r"m\.npy is truncated: row 32 is incomplete"):
        matrix.read((2, 3), buffer)


def test_an_npy_without_numbers_is_refused(tmp_path: Path) -> None:
    for shape in ((0, 200), (200, 0)):
        np.save(tmp_path / "m.npy", np.empty(shape))
        with pytest.raises(ValueError, match=rf"m\.npy holds a matrix of {shape[0]} rows and {shape[1]} col"):
            open_npy(tmp_path / "m.npy", 16)


def test_an_npy_that_is_no_matrix_of_numbers_is_refused(tmp_path: Path) -> None:
    for number, wrong in enumerate((np.ones(5), np.ones((2, 2), np.int64), np.asfortranarray(np.ones((3, 2))))):
        path = tmp_path / f"{number}.npy"
        np.save(path, wrong)
        with pytest.raises(ValueError, match="must be a row-major matrix of float32 or float64"):
            open_npy(path, 16)
