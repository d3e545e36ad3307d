"""What the command of the tiled product does, once its words are read and its threads are set.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Mapping, Tuple

from corewise.workloads.kernels.base import DTYPE_BYTES
from corewise.workloads.kernels.framework_arrays import arrays_of
from corewise.workloads.kernels.framework_pieces import pieces_of
from corewise.workloads.kernels.tile_check import check_product
from corewise.workloads.kernels.tile_engine import Factors, TiledMultiplication, TileMemory, finished_tiles
from corewise.workloads.kernels.tile_folder import claim_folder
from corewise.workloads.kernels.tile_order import Block, choose_block, ordered_products
from corewise.workloads.kernels.tile_sources import make_tiles, open_npy
from corewise.workloads.kernels.tile_store import Grid, TileFolder, remove_leftovers
from corewise.workloads.kernels.tiled_product import tiles_by_default
from corewise.workloads.kernels.tiled_product_run import (
    described,
    problem_id,
    random_factors,
    require_disk,
    resident_bytes,
    start_within_limit,
    tiles_within,
)

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
BLOCK_S = 60.0  # of work in a block: what a kill may cost
LEAST_SUMS = 4  # of 2x2 tiles; fewer would be read too often
PROBED = {"cpu": 1024, "cuda": 4096}  # rows of the product that tells the rate


class Refused(Exception):
    """The user's mistake; its text says what to do."""


def multiply(given: argparse.Namespace) -> Dict[str, Any]:
    """What came of it, once the whole product is in its folder."""
    folder = Path(given.folder)
    factors, product = _factors(given, folder)
    with claim_folder(folder, product):
        return _multiply_in(folder, factors, given)


def _multiply_in(folder: Path, factors: Factors, given: argparse.Namespace) -> Dict[str, Any]:
    remove_leftovers(folder)
    value_bytes = 0 if given.size is None else DTYPE_BYTES[factors.c.dtype]
    require_disk(folder, sum(_matrix_bytes(each) for each in _stored(factors)), value_bytes)
    arrays = _arrays(given, factors.c.dtype)
    pieces, tile, dtype = pieces_of(arrays), factors.c.grid.tile, factors.c.dtype
    tile_s = _seconds_of_tile(arrays, factors)
    block = _block(factors, arrays, pieces, tile_s, given)
    kill_costs_s = block.num_sums * tile_s
    if not given.json:
        print(
            f"a kill costs up to {kill_costs_s:.2g} s of work: {block.num_rows}x{block.num_columns} tiles of "
            "the product are in memory at a time",
            file=sys.stderr,
        )
    memory = TileMemory(arrays, pieces, block, tile, dtype)
    buffer = memory.staging[0] if memory.staging else memory.inputs[0]
    told = _Progress(quiet=given.json or not sys.stderr.isatty())
    for matrix in (factors.a, factors.b):
        if isinstance(matrix, TileFolder):
            make_tiles(matrix, given.seed, buffer, told)
    done, damaged = finished_tiles(factors.c, buffer, told)
    for problem in damaged:
        print(f"tiled_product: {problem}; it is computed again", file=sys.stderr)
    products = ordered_products(factors.shape, block, done)
    report = TiledMultiplication(factors, arrays, pieces, memory, told).run(products)
    found = {"num_tiles_kept": len(done), "tiles_of_memory": block.num_tiles, **report.facts()}
    found.update(block_of_sums=[block.num_rows, block.num_columns], kill_costs_s=kill_costs_s)
    full = factors.shape[0] * factors.shape[1] * factors.shape[2]
    found["gflop_per_s"] = _flops(factors) * len(products) / full / report.wall_s / 1e9
    if not given.no_verify:
        check = check_product(factors, buffer, told)
        found.update(check_error=check.error, check_tolerance=check.tolerance, check_passed=check.passed)
    told.end()
    return {**found, "peak_memory_bytes": _peak_bytes()}


def _block(factors: Factors, arrays: Any, pieces: Any, tile_s: float, given: argparse.Namespace) -> Block:
    """The tiles of C held at once: as memory allows, and no more than a minute's work."""
    grid = factors.c.grid
    tile_bytes = grid.tile**2 * DTYPE_BYTES[factors.c.dtype]
    if given.memory is None:
        num_tiles = tiles_by_default(max(grid.num_rows, grid.num_columns), grid.tile)
    else:
        start_within_limit(arrays, pieces, factors.c.dtype, tile_bytes)
        num_tiles = tiles_within(_bytes(given.memory), tile_bytes, pieces.is_host, pieces.num_spare)
    block = choose_block(factors.shape, num_tiles, max(LEAST_SUMS, int(BLOCK_S / tile_s)))
    assert block is not None  # fewer than three tiles were refused
    needed_bytes, free_bytes = (block.num_tiles + pieces.num_spare) * tile_bytes, arrays.free_bytes()
    if needed_bytes > free_bytes:
        most_bytes = free_bytes + (resident_bytes() if pieces.is_host else 0)
        raise Refused(
            f"the tiles in memory need {needed_bytes} bytes, {free_bytes} are free; "
            f"give --memory {most_bytes} or less, or take smaller tiles"
        )
    return block


def _seconds_of_tile(arrays: Any, factors: Factors) -> float:
    """About how long the framework takes for one tile of C, by a small product that stands for it."""
    rows = min(factors.c.grid.tile, PROBED[arrays.device])
    a, b, out = (arrays.normal((rows, rows), factors.c.dtype, seed) for seed in (1, 2, 3))
    took = []
    for _ in range(3):
        began = time.perf_counter()
        out = arrays.matmul(a, b, out=out)
        arrays.finish(out)
        took.append(time.perf_counter() - began)
    return min(took) * (factors.c.grid.tile / rows) ** 3 * factors.shape[2]


def _factors(given: argparse.Namespace, folder: Path) -> Tuple[Factors, Mapping[str, Any]]:
    """The matrices and what tells this problem from others."""
    if (given.a is None) != (given.b is None):
        raise Refused("--a and --b go together")
    if given.a is None:
        if given.size is None:
            raise Refused("give --size N, or your own matrices with --a A.npy --b B.npy")
        sizes, tile = (given.size, given.size, given.size), min(given.tile, given.size)
        dtype = given.dtype or "float32"
        product = described(sizes, tile, dtype, given.seed)
        return random_factors(folder, sizes, tile, dtype, given.seed), product
    if given.size is not None:
        raise Refused("--size is for random matrices; --a and --b have sizes of their own: leave it out")
    try:
        a, b = (open_npy(path, given.tile) for path in (given.a, given.b))
    except OSError as problem:
        raise Refused(str(problem)) from problem
    if a.dtype != b.dtype or a.grid.num_columns != b.grid.num_rows:
        raise Refused(
            f"{given.a} ({a.grid.num_rows}×{a.grid.num_columns}, {a.dtype}) and {given.b} "
            f"({b.grid.num_rows}×{b.grid.num_columns}, {b.dtype}) cannot be multiplied"
        )
    if given.dtype not in (None, a.dtype):
        raise Refused(f"--dtype {given.dtype}: {given.a} is of {a.dtype}; leave it out")
    own = {"a": a.identity, "b": b.identity, "tile": given.tile}
    grid = Grid(a.grid.num_rows, b.grid.num_columns, given.tile)
    return Factors(a, b, TileFolder(folder, "C", grid, a.dtype, problem_id(own))), own


def _stored(factors: Factors) -> List[TileFolder]:
    return [each for each in (factors.a, factors.b, factors.c) if isinstance(each, TileFolder)]


def _matrix_bytes(matrix: TileFolder) -> int:
    return matrix.grid.num_rows * matrix.grid.num_columns * DTYPE_BYTES[matrix.dtype]


def _flops(factors: Factors) -> float:
    rows, columns, depth = factors.c.grid.num_rows, factors.c.grid.num_columns, factors.a.grid.num_columns
    return 2.0 * rows * columns * depth - float(rows) * columns


def _arrays(given: argparse.Namespace, dtype: str) -> Any:
    if given.device != "cpu" and given.runtime == "numpy":
        raise Refused(f"--device {given.device}: numpy computes on the cpu; name another --runtime")
    try:
        arrays = arrays_of(given.runtime, given.device, given.threads, dtype)
        arrays.empty((1,), dtype)
    except (ImportError, RuntimeError, AssertionError) as problem:
        raise Refused(f"{given.runtime} on {given.device} is not to be had here: {problem}") from problem
    return arrays


def _bytes(text: str) -> int:
    """A number of bytes with a unit of K, M, G or T."""
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "")
    try:
        return int(float(number) * UNITS[unit])
    except (ValueError, KeyError, OverflowError):
        raise Refused(f"--memory takes bytes, or a number with K, M, G or T; not {text!r}") from None


def _peak_bytes() -> int:
    """The most memory this process has had."""
    with open("/proc/self/status", encoding="utf-8") as lines:
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


class _Progress:
    """One line on the terminal, told again at most every half second."""

    def __init__(self, quiet: bool) -> None:
        self._quiet, self._last = quiet, 0.0

    def __call__(self, what: str, number: int, count: int) -> None:
        if self._quiet or time.monotonic() - self._last < 0.5:
            return
        self._last = time.monotonic()
        print(f"\r\x1b[K{what}: {number} of {count}", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        if not self._quiet:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
