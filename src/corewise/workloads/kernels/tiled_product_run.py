"""A run of the tiled product, and what it takes of memory and disk.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import math
import os
import shutil
from pathlib import Path
from typing import Any, Mapping, Optional, Tuple

import numpy as np

from corewise.runtimes.base import Check, Infeasible, NotNow
from corewise.workloads.kernels.base import DTYPE_BYTES, Setup
from corewise.workloads.kernels.framework_pieces import pieces_of
from corewise.workloads.kernels.tile_check import CHUNK_BYTES, check_product
from corewise.workloads.kernels.tile_engine import Factors, Report, TiledMultiplication, TileMemory
from corewise.workloads.kernels.tile_folder import claim_folder
from corewise.workloads.kernels.tile_order import LEAST_TILES, choose_block, ordered_products
from corewise.workloads.kernels.tile_sources import make_tiles
from corewise.workloads.kernels.tile_store import HEADER_BYTES, Grid, TileFolder, remove_leftovers

BESIDE_TILES_BYTES = 2 * CHUNK_BYTES + 2**26  # the check's chunks, threads' stacks and the BLAS's own memory
M_MMAP_THRESHOLD = -3  # glibc's number for it; from 128 KiB, as it is at first, to 32 MiB, the most there is


class TiledProductRun:
    """The tile files of one product; every step reads all of A and B and writes all of C."""

    def __init__(self, setup: Setup, size: int, tile: int, num_tiles: int) -> None:
        self._folder, self._is_ours = _own_folder(setup)
        sizes = (size, size, size)
        self._hold = claim_folder(self._folder, described(sizes, tile, setup.dtype, setup.seed))
        try:
            self._prepare(setup, sizes, tile, num_tiles)
        except BaseException:
            self.close()
            raise

    def _prepare(self, setup: Setup, sizes: Tuple[int, int, int], tile: int, num_tiles: int) -> None:
        remove_leftovers(self._folder)
        value_bytes = DTYPE_BYTES[setup.dtype]
        require_disk(self._folder, 3 * sizes[0] ** 2 * value_bytes, value_bytes)
        self._factors = random_factors(self._folder, sizes, tile, setup.dtype, setup.seed)
        block = choose_block(self._factors.shape, num_tiles)
        assert block is not None  # fewer than three tiles were refused
        self._block, self._tile_bytes = block, tile**2 * DTYPE_BYTES[setup.dtype]
        self._products = ordered_products(self._factors.shape, block)
        self._arrays, self._pieces = setup.arrays, pieces_of(setup.arrays)
        self._memory = TileMemory(setup.arrays, self._pieces, block, tile, setup.dtype)
        self._cpus = frozenset(os.sched_getaffinity(0))
        self._report: Optional[Report] = None
        with self._host_buffer() as buffer:
            for matrix in (self._factors.a, self._factors.b):
                make_tiles(matrix, setup.seed, buffer, _untold)  # type: ignore[arg-type]

    def _host_buffer(self) -> _Borrowed:
        return _Borrowed(self._memory)

    def step(self) -> None:
        running = TiledMultiplication(self._factors, self._arrays, self._pieces, self._memory, _untold)
        running.allow(self._cpus)
        self._report = running.run(self._products)

    def check(self) -> Check:
        self.step()
        with self._host_buffer() as buffer:
            return check_product(self._factors, buffer, _untold)

    def facts(self) -> Mapping[str, Any]:
        moved = {} if self._report is None else self._report.facts()
        return {
            **moved,
            "tiles_bytes": (self._block.num_tiles + self._pieces.num_spare) * self._tile_bytes,
            "tiles_of_memory": self._block.num_tiles,
            "block_of_sums": [self._block.num_rows, self._block.num_columns],
            "folder": str(self._folder),
        }

    def close(self) -> None:
        self._hold.close()
        if self._is_ours:
            shutil.rmtree(self._folder, ignore_errors=True)


class _Borrowed:
    """One host buffer of a product that is not running, within a `with`."""

    def __init__(self, memory: TileMemory) -> None:
        self._from: Any = memory.staging or memory.inputs

    def __enter__(self) -> Any:
        self._buffer = self._from.pop()
        return self._buffer if isinstance(self._buffer, np.ndarray) else np.asarray(self._buffer)

    def __exit__(self, *_: object) -> None:
        self._from.append(self._buffer)


def tiles_within(memory_bytes: int, tile_bytes: int, is_host: bool, num_spare: int = 0) -> int:
    """How many tiles fit into so much memory beside those that a framework needs to multiply.

    On the host it is all that the process may have, on a GPU all that tiles may have. Infeasible where three
    do not fit.
    """
    taken = resident_bytes() + BESIDE_TILES_BYTES if is_host else 0
    num_tiles, least = (memory_bytes - taken) // tile_bytes, LEAST_TILES + num_spare
    if num_tiles < least:
        raise Infeasible(
            f"tiled_product: {memory_bytes} bytes of memory are too few: the program and the framework take "
            f"{taken}, {least} tiles {least * tile_bytes}; give at least "
            f"{taken + least * tile_bytes}, or take smaller tiles"
        )
    return num_tiles - num_spare


def start_within_limit(arrays: Any, pieces: Any, dtype: str, tile_bytes: int) -> None:
    """Readies a framework that makes its results anew: its compiler is there to be counted, and tiles it
    gives back leave the process instead of waiting in malloc's heap."""
    if pieces.writes_in_place:
        return
    with contextlib.suppress(AttributeError):  # a C library without it
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, max(2**17, min(2**25, tile_bytes // 2)))
    a, b = (arrays.normal((64, 64), dtype, seed) for seed in (1, 2))
    pieces.wait(pieces.multiply_add(arrays.matmul(a, b), a, b))


def resident_bytes() -> int:
    """What this process has of the memory now."""
    with open("/proc/self/statm", encoding="ascii") as fields:
        return int(fields.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def random_factors(folder: Path, sizes: Tuple[int, int, int], tile: int, dtype: str, seed: int) -> Factors:
    """The tile folders of A, B and C for these rows and columns of C and this length of sums."""
    rows, columns, depth = sizes
    problem = problem_id(described(sizes, tile, dtype, seed))
    grids = {"A": Grid(rows, depth, tile), "B": Grid(depth, columns, tile), "C": Grid(rows, columns, tile)}
    a, b, c = (TileFolder(folder, name, grid, dtype, problem) for name, grid in grids.items())
    return Factors(a, b, c)


def described(sizes: Tuple[int, int, int], tile: int, dtype: str, seed: int) -> Mapping[str, Any]:
    """What tells a product of random matrices from others."""
    return {"sizes": sizes, "tile": tile, "dtype": dtype, "seed": seed}


def problem_id(product: Mapping[str, Any]) -> str:
    """A short name of a problem: another problem has another one."""
    return hashlib.sha256(json.dumps(product, sort_keys=True).encode()).hexdigest()[:16]


def require_disk(folder: Path, needed_bytes: int, value_bytes: int = 0) -> None:
    """Raises where the folder's disk has no room for tiles of so many bytes.

    With the bytes of a number, of three square matrices, it says which size would fit.
    """
    free_bytes = shutil.disk_usage(folder).free
    there = sum(path.stat().st_size - HEADER_BYTES for path in folder.glob("*.tile"))
    if needed_bytes - there <= free_bytes:
        return
    size = math.isqrt((there + free_bytes) // (3 * value_bytes)) if value_bytes else 0
    fits = f"the largest size that fits is {size}: take it" if size else "free some space"
    raise NotNow(
        f"tiled_product: the tiles need {needed_bytes - there} bytes in {folder}, {free_bytes} are free; "
        f"{fits}, or name another folder"
    )


def _own_folder(setup: Setup) -> Tuple[Path, bool]:
    """The folder of this rank's tiles, and whether it goes when the run does."""
    given = str(setup.args.get("folder") or "")
    folder = Path(given or setup.folder) / f"tiles-{setup.seed}"
    return folder, not given


def _untold(what: str, number: int, count: int) -> None:
    """A step of a study says nothing of its progress."""
