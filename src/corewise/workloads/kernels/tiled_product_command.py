"""The product of matrices larger than memory as a command: in any memory, resumable, verified.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from corewise.runtimes.base import Infeasible
from corewise.workloads.kernels.base import DTYPE_BYTES
from corewise.workloads.kernels.framework_pieces import PIECES, pieces_of
from corewise.workloads.kernels.tile_check import check_product
from corewise.workloads.kernels.tile_engine import Factors, TiledMultiplication, TileMemory, finished_tiles
from corewise.workloads.kernels.tile_order import choose_block, ordered_products
from corewise.workloads.kernels.tile_sources import make_tiles, open_npy
from corewise.workloads.kernels.tile_store import BadTile, Grid, StorageFull, TileFolder, remove_leftovers
from corewise.workloads.kernels.tiled_product import tiles_by_default
from corewise.workloads.kernels.tiled_product_run import (
    problem_id,
    random_factors,
    require_disk,
    tiles_within,
)
from corewise.workloads.registry import load_attribute

MANIFEST = "product.json"
ARRAYS = {
    "numpy": "corewise.runtimes.numpy.arrays:NumpyArrays",
    "torch": "corewise.runtimes.torch.arrays:TorchArrays",
}
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
EXAMPLES = """examples:
  python -m corewise.workloads.kernels.tiled_product --size 32768 --tile 4096 --memory 2G --folder tiles
  python -m corewise.workloads.kernels.tiled_product --a A.npy --b B.npy --memory 4G --folder product

The tiles of the product are files C_ROW_COLUMN.tile in the folder. The same command goes on where it stopped.
"""


class Refused(Exception):
    """The user's mistake; its text says what to do."""


def main(words: Optional[List[str]] = None) -> int:
    """The exit code: 0 done, 1 failed, 2 the user's mistake."""
    given = _parser().parse_args(words)
    try:
        found = _run(given)
    except (Infeasible, Refused, ValueError) as problem:
        print(
            f"tiled_product: {problem}".replace("tiled_product: tiled_product:", "tiled_product:"),
            file=sys.stderr,
        )
        return 2
    except (BadTile, StorageFull, OSError, MemoryError, RuntimeError) as problem:
        print(f"tiled_product: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("tiled_product: stopped; the same command goes on from here", file=sys.stderr)
        return 130
    print(json.dumps(found) if given.json else _as_text(found))
    return 0 if found.get("check_passed", True) else 1


def _run(given: argparse.Namespace) -> Dict[str, Any]:
    folder = Path(given.folder)
    folder.mkdir(parents=True, exist_ok=True)
    factors, described = _factors(given, folder)
    _claim(folder, described)
    remove_leftovers(folder)
    require_disk(folder, sum(_matrix_bytes(each) for each in _stored(factors)))
    arrays = _arrays(given)
    tile, dtype = factors.c.grid.tile, factors.c.dtype
    tile_bytes = tile**2 * DTYPE_BYTES[dtype]
    pieces = pieces_of(arrays)
    if given.memory is None:
        num_tiles = tiles_by_default(max(factors.c.grid.num_rows, factors.c.grid.num_columns), tile)
    else:
        num_tiles = tiles_within(_bytes(given.memory), tile_bytes, pieces.is_host)
    block = choose_block(factors.shape, num_tiles)
    assert block is not None  # fewer than three tiles were refused
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
    full = factors.shape[0] * factors.shape[1] * factors.shape[2]
    found["gflop_per_s"] = _flops(factors) * len(products) / full / report.wall_s / 1e9
    if not given.no_verify:
        check = check_product(factors, buffer, told)
        found.update(check_error=check.error, check_tolerance=check.tolerance, check_passed=check.passed)
    told.end()
    return {**found, "peak_memory_bytes": _peak_bytes()}


def _factors(given: argparse.Namespace, folder: Path) -> Tuple[Factors, Dict[str, Any]]:
    """The matrices and what tells this problem from others."""
    if given.tile < 1:
        raise Refused(f"--tile must be at least 1, not {given.tile}")
    if (given.a is None) != (given.b is None):
        raise Refused("--a and --b go together")
    if given.a is None:
        if given.size is None or given.size < 1:
            raise Refused("give --size N, or your own matrices with --a A.npy --b B.npy")
        sizes, tile = (given.size, given.size, given.size), min(given.tile, given.size)
        described = {"sizes": sizes, "tile": tile, "dtype": given.dtype, "seed": given.seed}
        return random_factors(folder, sizes, tile, given.dtype, given.seed), described
    try:
        a, b = (open_npy(path, given.tile) for path in (given.a, given.b))
    except OSError as problem:
        raise Refused(str(problem)) from problem
    if a.dtype != b.dtype or a.grid.num_columns != b.grid.num_rows:
        raise Refused(
            f"{given.a} ({a.grid.num_rows}×{a.grid.num_columns}, {a.dtype}) and {given.b} "
            f"({b.grid.num_rows}×{b.grid.num_columns}, {b.dtype}) cannot be multiplied"
        )
    described = {"a": a.identity, "b": b.identity, "tile": given.tile}
    grid = Grid(a.grid.num_rows, b.grid.num_columns, given.tile)
    return Factors(a, b, TileFolder(folder, "C", grid, a.dtype, problem_id(described))), described


def _claim(folder: Path, described: Dict[str, Any]) -> None:
    """Writes what the folder holds; refuses one that holds another problem."""
    text, manifest = json.dumps(described, sort_keys=True), folder / MANIFEST
    if manifest.exists():
        if manifest.read_text(encoding="utf-8") != text:
            raise Refused(
                f"{folder} holds tiles of another product ({manifest.read_text(encoding='utf-8')}); "
                "name another folder, or remove this one"
            )
        return
    aside = folder / f".{MANIFEST}.{os.getpid()}"
    aside.write_text(text, encoding="utf-8")
    os.replace(aside, manifest)


def _stored(factors: Factors) -> List[TileFolder]:
    return [each for each in (factors.a, factors.b, factors.c) if isinstance(each, TileFolder)]


def _matrix_bytes(matrix: TileFolder) -> int:
    return matrix.grid.num_rows * matrix.grid.num_columns * DTYPE_BYTES[matrix.dtype]


def _flops(factors: Factors) -> float:
    rows, columns, depth = factors.c.grid.num_rows, factors.c.grid.num_columns, factors.a.grid.num_columns
    return 2.0 * rows * columns * depth - float(rows) * columns


def _arrays(given: argparse.Namespace) -> Any:
    if given.device != "cpu" and given.runtime != "torch":
        raise Refused(f"--device {given.device} needs --runtime torch")
    if given.threads is not None:
        os.environ.update(dict.fromkeys(THREADS, str(given.threads)))  # before the framework is loaded
    try:
        made = load_attribute(ARRAYS[given.runtime])
        arrays = made(given.device) if given.runtime == "torch" else made()
        arrays.empty((1,), given.dtype)
    except (ImportError, RuntimeError, AssertionError) as problem:
        raise Refused(f"{given.runtime} on {given.device} is not to be had here: {problem}") from problem
    return arrays


def _bytes(text: str) -> int:
    """A number of bytes with a unit of K, M, G or T."""
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "")
    try:
        return int(float(number) * UNITS[unit])
    except (ValueError, KeyError):
        raise Refused(f"--memory takes bytes, or a number with K, M, G or T; not {text!r}") from None


def _peak_bytes() -> int:
    """The most memory this process has had."""
    with open("/proc/self/status", encoding="utf-8") as lines:
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def _as_text(found: Dict[str, Any]) -> str:
    lines = [
        f"{found['gflop_per_s']:.1f} Gflop/s in {found['wall_s']:.1f} s; {found['num_tiles_written']} tiles "
        f"written, {found['num_tiles_kept']} kept from before, {found['num_tiles_read']} read",
        f"multiplied {found['multiply_s']:.1f} s; beside it read {found['read_s']:.1f} s and wrote "
        f"{found['write_s']:.1f} s; waited {found['wait_s']:.1f} s",
    ]
    if "check_error" in found:
        verdict = "right" if found["check_passed"] else "WRONG"
        lines.append(
            f"the numbers are {verdict}: error {found['check_error']:.2g}, "
            f"{found['check_tolerance']:.2g} is allowed"
        )
    return "\n".join(lines)


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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m corewise.workloads.kernels.tiled_product",
        description="C = A·B for matrices larger than memory, in tiles kept in files.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--size", type=int, help="rows and columns of random matrices")
    parser.add_argument("--a", metavar="A.npy", help="your own left matrix, with --b")
    parser.add_argument("--b", metavar="B.npy", help="your own right matrix")
    parser.add_argument("--tile", type=int, default=4096, help="rows and columns of a tile (default 4096)")
    parser.add_argument(
        "--memory",
        help="the most the process may have, on a GPU the tiles, such as 2G "
        "(default: a tenth of the matrices for tiles)",
    )
    parser.add_argument("--folder", required=True, help="where the tile files are")
    parser.add_argument("--runtime", choices=tuple(PIECES), default="torch")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    parser.add_argument("--threads", type=int, help="of the framework (default: its own choice)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-verify", action="store_true", help="leave out Freivalds' check at the end")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser
