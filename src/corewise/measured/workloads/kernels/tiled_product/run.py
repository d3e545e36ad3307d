"""A run of the tiled product, and its use of memory and disk.

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

from corewise.measured.runtimes.base import Check, Infeasible, NotNow
from corewise.measured.workloads.kernels.framework_pieces import load_pieces
from corewise.measured.workloads.kernels.kernel import DTYPE_BYTES, KernelRun, KernelSetup
from corewise.measured.workloads.kernels.tiled_product.factor_sources import make_tiles
from corewise.measured.workloads.kernels.tiled_product.folder_lock import claim_folder
from corewise.measured.workloads.kernels.tiled_product.pipeline import (
    Factors,
    MultiplicationReport,
    TiledMultiplication,
    TileMemory,
)
from corewise.measured.workloads.kernels.tiled_product.product_check import CHUNK_BYTES, check_product
from corewise.measured.workloads.kernels.tiled_product.tile_files import (
    HEADER_BYTES,
    TileFolder,
    TileGrid,
    remove_leftovers,
)
from corewise.measured.workloads.kernels.tiled_product.tile_order import MIN_TILES, choose_block, order_products

# Memory besides the tiles: chunks of the check, thread stacks and the BLAS workspace.
OVERHEAD_BYTES = 2 * CHUNK_BYTES + 2**26
# glibc's mallopt parameter. Valid thresholds are 128 KiB, the default, to 32 MiB.
M_MMAP_THRESHOLD = -3


class TiledProductRun(KernelRun):
    """The tile files of one product; every step reads all of A and B and writes all of C."""

    def __init__(self, setup: KernelSetup, size: int, tile: int, num_tiles: int) -> None:
        self._folder, self._is_temporary = _choose_folder(setup)
        sizes = (size, size, size)
        self._lock = claim_folder(self._folder, describe_product(sizes, tile, setup.dtype, setup.seed))
        try:
            self._prepare(setup, sizes, tile, num_tiles)
        except BaseException:
            self.close()
            raise

    def _prepare(self, setup: KernelSetup, sizes: Tuple[int, int, int], tile: int, num_tiles: int) -> None:
        remove_leftovers(self._folder)
        value_bytes = DTYPE_BYTES[setup.dtype]
        require_disk(self._folder, 3 * sizes[0] ** 2 * value_bytes, value_bytes)
        self._factors = build_random_factors(self._folder, sizes, tile, setup.dtype, setup.seed)
        block = choose_block(self._factors.shape, num_tiles)
        # Fewer than three tiles were already refused.
        assert block is not None
        self._block, self._tile_bytes = block, tile**2 * DTYPE_BYTES[setup.dtype]
        self._products = order_products(self._factors.shape, block)
        self._arrays, self._pieces = setup.arrays, load_pieces(setup.arrays)
        self._memory = TileMemory(setup.arrays, self._pieces, block, tile, setup.dtype)
        self._cpus = frozenset(os.sched_getaffinity(0))
        self._report: Optional[MultiplicationReport] = None
        with self._borrow_host_buffer() as buffer:
            for matrix in (self._factors.a, self._factors.b):
                make_tiles(matrix, setup.seed, buffer, _ignore_progress)  # type: ignore[arg-type]

    def _borrow_host_buffer(self) -> _BorrowedBuffer:
        return _BorrowedBuffer(self._memory)

    def step(self) -> None:
        multiplication = TiledMultiplication(self._factors, self._arrays, self._pieces, self._memory, _ignore_progress)
        multiplication.allow(self._cpus)
        self._report = multiplication.run(self._products)

    def check(self) -> Check:
        self.step()
        with self._borrow_host_buffer() as buffer:
            return check_product(self._factors, buffer, _ignore_progress)

    def read_facts(self) -> Mapping[str, Any]:
        durations = {} if self._report is None else self._report.to_facts()
        return {
            **durations,
            "tiles_bytes": (self._block.num_tiles + self._pieces.num_spare) * self._tile_bytes,
            "tiles_of_memory": self._block.num_tiles,
            "block_of_sums": [self._block.num_rows, self._block.num_columns],
            "folder": str(self._folder),
        }

    def close(self) -> None:
        self._lock.close()
        if self._is_temporary:
            shutil.rmtree(self._folder, ignore_errors=True)


class _BorrowedBuffer:
    """Context manager that borrows a host buffer of a product that is not running."""

    def __init__(self, memory: TileMemory) -> None:
        self._buffers: Any = memory.staging or memory.inputs

    def __enter__(self) -> Any:
        self._buffer = self._buffers.pop()
        return self._buffer if isinstance(self._buffer, np.ndarray) else np.asarray(self._buffer)

    def __exit__(self, *_: object) -> None:
        self._buffers.append(self._buffer)


def count_tiles_within(
    memory_bytes: int, tile_bytes: int, is_host: bool, num_spare: int = 0, workload: str = "tiled_product"
) -> int:
    """Return how many tiles fit into `memory_bytes`, besides those that the framework needs to multiply.

    On the host the limit applies to the process, on a GPU to the tiles. Raises Infeasible if fewer than three
    tiles fit.
    """
    taken = read_resident_bytes() + OVERHEAD_BYTES if is_host else 0
    num_tiles, least = (memory_bytes - taken) // tile_bytes, MIN_TILES + num_spare
    if num_tiles < least:
        raise Infeasible(
            f"{workload}: {memory_bytes} bytes of memory are too few: the program and the framework need "
            f"{taken}, {least} tiles need {least * tile_bytes}; allow at least "
            f"{taken + least * tile_bytes}, or use smaller tiles"
        )
    return num_tiles - num_spare


def start_within_limit(arrays: Any, pieces: Any, dtype: str, tile_bytes: int) -> None:
    """Prepare a framework that allocates every result for a memory limit.

    Its compiler is loaded now, so that its memory is counted. Freed tiles return to the system instead of
    staying in malloc's heap.
    """
    if pieces.writes_in_place:
        return
    # Some C libraries have no mallopt.
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, max(2**17, min(2**25, tile_bytes // 2)))
    a, b = (arrays.draw_normal((64, 64), dtype, seed) for seed in (1, 2))
    pieces.wait(pieces.add_product(arrays.matmul(a, b), a, b))


def read_resident_bytes() -> int:
    """Return the resident memory of this process."""
    with open("/proc/self/statm", encoding="ascii") as fields:
        return int(fields.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def build_random_factors(folder: Path, sizes: Tuple[int, int, int], tile: int, dtype: str, seed: int) -> Factors:
    """Return the tile folders of A, B and C; `sizes` are rows and columns of C and the inner dimension."""
    rows, columns, depth = sizes
    problem = compute_problem_id(describe_product(sizes, tile, dtype, seed))
    grids = {"A": TileGrid(rows, depth, tile), "B": TileGrid(depth, columns, tile), "C": TileGrid(rows, columns, tile)}
    a, b, c = (TileFolder(folder, name, grid, dtype, problem) for name, grid in grids.items())
    return Factors(a, b, c)


def describe_product(sizes: Tuple[int, int, int], tile: int, dtype: str, seed: int) -> Mapping[str, Any]:
    """Return the values that identify a product of random matrices."""
    return {"sizes": sizes, "tile": tile, "dtype": dtype, "seed": seed}


def compute_problem_id(product: Mapping[str, Any]) -> str:
    """Return a short hash of the values that identify a problem."""
    return hashlib.sha256(json.dumps(product, sort_keys=True).encode()).hexdigest()[:16]


def require_disk(folder: Path, needed_bytes: int, value_bytes: int = 0) -> None:
    """Raise NotNow if the folder's disk has no space for the tiles.

    With `value_bytes`, the message names the largest size of three square matrices that fits.
    """
    free_bytes = shutil.disk_usage(folder).free
    existing_bytes = sum(path.stat().st_size - HEADER_BYTES for path in folder.glob("*.tile"))
    if needed_bytes - existing_bytes <= free_bytes:
        return
    size = math.isqrt((existing_bytes + free_bytes) // (3 * value_bytes)) if value_bytes else 0
    fits = f"the largest size that fits is {size}: use it" if size else "free some disk space"
    raise NotNow(
        f"tiled_product: the tiles need {needed_bytes - existing_bytes} bytes in {folder}, "
        f"{free_bytes} are free; {fits}, or name another folder"
    )


def _choose_folder(setup: KernelSetup) -> Tuple[Path, bool]:
    """Return the folder of this rank's tiles, and whether it is removed after the run."""
    given = str(setup.args.get("folder") or "")
    folder = Path(given or setup.folder) / f"tiles-{setup.seed}"
    return folder, not given


def _ignore_progress(activity: str, number: int, count: int) -> None:
    """Ignore progress: a step of a study does not show it."""
