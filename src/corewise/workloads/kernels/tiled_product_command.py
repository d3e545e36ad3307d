"""The product of matrices larger than memory as a command: in any memory, resumable, verified.

Measured side: standard library only, Python 3.9. Nothing that brings numpy is imported before the threads of
its libraries are set.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any, Callable, Dict, List, Optional

from corewise.runtimes.base import Infeasible
from corewise.workloads.kernels.framework_pieces import PIECES

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "BLIS_NUM_THREADS")
EXAMPLES = """examples:
  python -m corewise.workloads.kernels.tiled_product --size 32768 --tile 4096 --memory 2G --folder tiles
  python -m corewise.workloads.kernels.tiled_product --a A.npy --b B.npy --memory 4G --folder product

The tiles of the product are files C_ROW_COLUMN.tile in the folder. The same command goes on where it stopped.
"""
DONE, FAILED, MISTAKE, INTERRUPTED = 0, 1, 2, 130


def main(words: Optional[List[str]] = None) -> int:
    """The exit code: 0 done, 1 failed, 2 the user's mistake."""
    given = _parser().parse_args(words)
    if given.threads is not None:
        os.environ.update(dict.fromkeys(THREADS, str(given.threads)))  # read when libraries are loaded
    try:
        import numpy  # noqa: F401
    except ImportError as problem:
        return _complain(f"numpy is not installed for this Python: pip install numpy ({problem})", MISTAKE)
    return _multiply(given)


def _multiply(given: argparse.Namespace) -> int:
    from corewise.workloads.kernels.tile_store import BadTile, StorageFull
    from corewise.workloads.kernels.tiled_product_multiply import Refused, multiply

    try:
        found = multiply(given)
    except (Infeasible, Refused, ValueError) as problem:
        return _complain(str(problem), MISTAKE)
    except BadTile as problem:
        remedy = "" if given.a else "; remove it, and the same command makes it again"
        return _complain(f"{problem}{remedy}", FAILED)
    except (StorageFull, OSError, MemoryError, RuntimeError) as problem:
        return _complain(str(problem), FAILED)
    except KeyboardInterrupt:
        return _complain("stopped; the same command goes on from here", INTERRUPTED)
    print(json.dumps(found) if given.json else _as_text(found))
    return DONE if found.get("check_passed", True) else FAILED


def _complain(text: str, code: int) -> int:
    own = "tiled_product: "
    print(text if text.startswith(own) else f"{own}{text}", file=sys.stderr)
    return code


def _as_text(found: Dict[str, Any]) -> str:
    lines = [
        f"{found['gflop_per_s']:.1f} Gflop/s in {found['wall_s']:.1f} s; {found['num_tiles_written']} tiles "
        f"written, {found['num_tiles_kept']} kept from before, {found['num_tiles_read']} read",
        f"multiplied {found['multiply_s']:.1f} s; beside it read {found['read_s']:.1f} s and wrote "
        f"{found['write_s']:.1f} s; waited {found['wait_s']:.1f} s, "
        f"and {found['last_writes_s']:.1f} s for the last tiles",
    ]
    if "check_error" in found:
        verdict = "right" if found["check_passed"] else "WRONG"
        lines.append(
            f"the numbers are {verdict}: error {found['check_error']:.2g}, "
            f"{found['check_tolerance']:.2g} is allowed"
        )
    return "\n".join(lines)


def at_least(least: int) -> Callable[[str], int]:
    """What reads a whole number of at least so much from the command line."""

    def read(word: str) -> int:
        try:
            value = int(word)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f"must be a whole number of at least {least}, not {word!r}")
        return value

    return read


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m corewise.workloads.kernels.tiled_product",
        description="C = A·B for matrices larger than memory, in tiles kept in files.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--size", type=at_least(1), help="rows and columns of random matrices")
    parser.add_argument("--a", metavar="A.npy", help="your own left matrix, with --b")
    parser.add_argument("--b", metavar="B.npy", help="your own right matrix")
    parser.add_argument(
        "--tile", type=at_least(1), default=4096, help="rows and columns of a tile (default 4096)"
    )
    parser.add_argument(
        "--memory",
        help="the most the process may have, on a GPU the tiles, such as 2G "
        "(default: a tenth of the matrices for tiles)",
    )
    parser.add_argument("--folder", required=True, help="where the tile files are")
    parser.add_argument("--runtime", choices=tuple(PIECES), default="torch")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--dtype", choices=("float32", "float64"), help="of random matrices (default float32)"
    )
    parser.add_argument("--threads", type=at_least(1), help="of the framework (default: its own choice)")
    parser.add_argument("--seed", type=at_least(0), default=0)
    parser.add_argument("--no-verify", action="store_true", help="leave out Freivalds' check at the end")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser
