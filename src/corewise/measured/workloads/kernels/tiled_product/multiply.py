"""The work of the tiled product command, after its options are parsed and its threads are set.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Tuple

from corewise.measured.workloads.kernels.framework_arrays import load_arrays
from corewise.measured.workloads.kernels.framework_pieces import load_pieces
from corewise.measured.workloads.kernels.kernel import DTYPE_BYTES
from corewise.measured.workloads.kernels.tiled_product.factor_sources import make_tiles, open_npy
from corewise.measured.workloads.kernels.tiled_product.folder_lock import claim_folder
from corewise.measured.workloads.kernels.tiled_product.pipeline import (
    Factors,
    TiledMultiplication,
    TileMemory,
    find_finished_tiles,
)
from corewise.measured.workloads.kernels.tiled_product.product_check import check_product
from corewise.measured.workloads.kernels.tiled_product.run import (
    build_random_factors,
    compute_problem_id,
    count_tiles_within,
    describe_product,
    read_resident_bytes,
    require_disk,
    start_within_limit,
)
from corewise.measured.workloads.kernels.tiled_product.tile_files import TileFolder, TileGrid, remove_leftovers
from corewise.measured.workloads.kernels.tiled_product.tile_order import TileBlock, choose_block, order_products
from corewise.measured.workloads.kernels.tiled_product.workload import count_default_tiles
from corewise.measured.workloads.registry import load_attribute

MULTIPLY_ON_RANKS = "corewise.measured.workloads.kernels.distributed.product_command:multiply_on_ranks"
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
# Seconds of work in a block, which is what a kill may cost.
BLOCK_S = 60.0
# A block has at least 2x2 tiles of C. Fewer would read too often.
MIN_SUMS = 4
# Rows of the small product that measures the rate.
PROBE_ROWS = {"cpu": 1024, "cuda": 4096}


class UsageError(Exception):
    """A wrong use of the command; the message says what to do."""


def multiply(options: argparse.Namespace) -> Optional[Dict[str, Any]]:
    """Compute the whole product in its folder and return the report; None on a rank that has nothing to report."""
    folder = Path(options.folder)
    factors, product = _open_factors(options, folder)
    if options.distributed:
        return _multiply_on_ranks(folder, factors, product, options)
    with claim_folder(folder, product):
        return _multiply_in_folder(folder, factors, options)


def _multiply_on_ranks(
    folder: Path, factors: Factors, product: Mapping[str, Any], options: argparse.Namespace
) -> Optional[Dict[str, Any]]:
    progress = _Progress(quiet=options.json or not sys.stderr.isatty())
    result: Optional[Dict[str, Any]] = load_attribute(MULTIPLY_ON_RANKS)(
        folder,
        factors,
        product,
        _load_arrays(options, factors.c.dtype),
        memory_bytes=None if options.memory is None else _parse_bytes(options.memory),
        seed=options.seed,
        verifies=not options.no_verify,
        report=progress,
        prepare_folder=lambda: _prepare_folder(folder, factors, options),
    )
    progress.end()
    return None if result is None else {**result, "peak_memory_bytes": _read_peak_bytes()}


def _prepare_folder(folder: Path, factors: Factors, options: argparse.Namespace) -> None:
    remove_leftovers(folder)
    value_bytes = 0 if options.size is None else DTYPE_BYTES[factors.c.dtype]
    require_disk(folder, sum(_count_matrix_bytes(each) for each in _list_stored(factors)), value_bytes)


def _multiply_in_folder(folder: Path, factors: Factors, options: argparse.Namespace) -> Dict[str, Any]:
    _prepare_folder(folder, factors, options)
    arrays = _load_arrays(options, factors.c.dtype)
    pieces, tile, dtype = load_pieces(arrays), factors.c.grid.tile, factors.c.dtype
    tile_s = _measure_tile_s(arrays, factors)
    block = _choose_block(factors, arrays, pieces, tile_s, options)
    kill_costs_s = block.num_sums * tile_s
    if not options.json:
        print(
            f"if killed, up to {kill_costs_s:.2g} s of work are lost: "
            f"{block.num_rows}x{block.num_columns} tiles of the product are in memory at a time",
            file=sys.stderr,
        )
    memory = TileMemory(arrays, pieces, block, tile, dtype)
    buffer = memory.staging[0] if memory.staging else memory.inputs[0]
    progress = _Progress(quiet=options.json or not sys.stderr.isatty())
    for matrix in (factors.a, factors.b):
        if isinstance(matrix, TileFolder):
            make_tiles(matrix, options.seed, buffer, progress)
    done, damaged = find_finished_tiles(factors.c, buffer, progress)
    for problem in damaged:
        print(f"tiled_product: {problem}; computing it again", file=sys.stderr)
    products = order_products(factors.shape, block, done)
    report = TiledMultiplication(factors, arrays, pieces, memory, progress).run(products)
    result = {"num_tiles_kept": len(done), "tiles_of_memory": block.num_tiles, **report.to_facts()}
    result.update(block_of_sums=[block.num_rows, block.num_columns], kill_costs_s=kill_costs_s)
    full = factors.shape[0] * factors.shape[1] * factors.shape[2]
    result["gflop_per_s"] = _count_flops(factors) * len(products) / full / report.wall_s / 1e9
    if not options.no_verify:
        check = check_product(factors, buffer, progress)
        result.update(check_error=check.error, check_tolerance=check.tolerance, check_passed=check.passed)
    progress.end()
    return {**result, "peak_memory_bytes": _read_peak_bytes()}


def _choose_block(factors: Factors, arrays: Any, pieces: Any, tile_s: float, options: argparse.Namespace) -> TileBlock:
    """Choose the tiles of C held together: as memory allows, and at most one minute of work."""
    grid = factors.c.grid
    tile_bytes = grid.tile**2 * DTYPE_BYTES[factors.c.dtype]
    if options.memory is None:
        num_tiles = count_default_tiles(max(grid.num_rows, grid.num_columns), grid.tile)
    else:
        start_within_limit(arrays, pieces, factors.c.dtype, tile_bytes)
        num_tiles = count_tiles_within(_parse_bytes(options.memory), tile_bytes, pieces.is_host, pieces.num_spare)
    block = choose_block(factors.shape, num_tiles, max(MIN_SUMS, int(BLOCK_S / tile_s)))
    # Fewer than three tiles were already refused.
    assert block is not None
    needed_bytes, free_bytes = (block.num_tiles + pieces.num_spare) * tile_bytes, arrays.free_bytes()
    if needed_bytes > free_bytes:
        most_bytes = free_bytes + (read_resident_bytes() if pieces.is_host else 0)
        raise UsageError(
            f"the tiles in memory need {needed_bytes} bytes, {free_bytes} are free; "
            f"use --memory {most_bytes} or less, or smaller tiles"
        )
    return block


def _measure_tile_s(arrays: Any, factors: Factors) -> float:
    """Estimate the seconds for one tile of C from a small product."""
    rows = min(factors.c.grid.tile, PROBE_ROWS[arrays.device])
    a, b, out = (arrays.draw_normal((rows, rows), factors.c.dtype, seed) for seed in (1, 2, 3))
    durations_s = []
    for _ in range(3):
        began = time.perf_counter()
        out = arrays.matmul(a, b, out=out)
        arrays.finish(out)
        durations_s.append(time.perf_counter() - began)
    return min(durations_s) * (factors.c.grid.tile / rows) ** 3 * factors.shape[2]


def _open_factors(options: argparse.Namespace, folder: Path) -> Tuple[Factors, Mapping[str, Any]]:
    """Return the matrices and the values that identify the problem."""
    if (options.a is None) != (options.b is None):
        raise UsageError("--a and --b must be used together")
    if options.a is None:
        if options.size is None:
            raise UsageError("use --size N, or matrices from files with --a A.npy --b B.npy")
        sizes, tile = (options.size, options.size, options.size), min(options.tile, options.size)
        dtype = options.dtype or "float32"
        product = describe_product(sizes, tile, dtype, options.seed)
        return build_random_factors(folder, sizes, tile, dtype, options.seed), product
    if options.size is not None:
        raise UsageError("--size is for random matrices; with --a and --b leave it out")
    try:
        a, b = (open_npy(path, options.tile) for path in (options.a, options.b))
    except OSError as problem:
        raise UsageError(str(problem)) from problem
    if a.dtype != b.dtype or a.grid.num_columns != b.grid.num_rows:
        raise UsageError(
            f"{options.a} ({a.grid.num_rows}×{a.grid.num_columns}, {a.dtype}) and {options.b} "
            f"({b.grid.num_rows}×{b.grid.num_columns}, {b.dtype}) cannot be multiplied"
        )
    if options.dtype not in (None, a.dtype):
        raise UsageError(f"--dtype {options.dtype}: {options.a} is {a.dtype}; leave --dtype out")
    product = {"a": a.identity, "b": b.identity, "tile": options.tile}
    grid = TileGrid(a.grid.num_rows, b.grid.num_columns, options.tile)
    return Factors(a, b, TileFolder(folder, "C", grid, a.dtype, compute_problem_id(product))), product


def _list_stored(factors: Factors) -> List[TileFolder]:
    return [each for each in (factors.a, factors.b, factors.c) if isinstance(each, TileFolder)]


def _count_matrix_bytes(matrix: TileFolder) -> int:
    return matrix.grid.num_rows * matrix.grid.num_columns * DTYPE_BYTES[matrix.dtype]


def _count_flops(factors: Factors) -> float:
    rows, columns, depth = factors.c.grid.num_rows, factors.c.grid.num_columns, factors.a.grid.num_columns
    return 2.0 * rows * columns * depth - float(rows) * columns


def _load_arrays(options: argparse.Namespace, dtype: str) -> Any:
    if options.device != "cpu" and options.runtime == "numpy":
        raise UsageError(f"--device {options.device}: numpy runs on the cpu only; use another --runtime")
    try:
        arrays = load_arrays(options.runtime, options.device, options.threads, dtype)
        arrays.create_empty((1,), dtype)
    except (ImportError, RuntimeError, AssertionError) as problem:
        raise UsageError(f"{options.runtime} on {options.device} is not available here: {problem}") from problem
    return arrays


def _parse_bytes(text: str) -> int:
    """Parse a number of bytes with an optional unit K, M, G or T."""
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "")
    try:
        return int(float(number) * UNITS[unit])
    except (ValueError, KeyError, OverflowError):
        raise UsageError(f"--memory takes bytes, or a number with K, M, G or T; not {text!r}") from None


def _read_peak_bytes() -> int:
    """Return the peak memory of this process."""
    with open("/proc/self/status", encoding="utf-8") as lines:
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


class _Progress:
    """A progress line on the terminal, updated at most every half second."""

    def __init__(self, quiet: bool) -> None:
        self._quiet, self._last = quiet, 0.0

    def __call__(self, activity: str, number: int, count: int) -> None:
        if self._quiet or time.monotonic() - self._last < 0.5:
            return
        self._last = time.monotonic()
        print(f"\r\x1b[K{activity}: {number} of {count}", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        if not self._quiet:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
