"""Command that multiplies matrices larger than memory: within a memory limit, resumable and verified.

Measured side: standard library only, Python 3.9. Nothing that needs numpy is imported before the threads of
its libraries are set.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any, Callable, Dict, List, Optional

from corewise.measured.runtimes.base import Infeasible, is_lost_connection
from corewise.measured.workloads.kernels.framework_pieces import PIECES
from corewise.measured.workloads.kernels.thread_variables import set_thread_variables

EXAMPLES = """examples:
  python -m corewise.measured.workloads.kernels.tiled_product --size 32768 --memory 2G --folder tiles
  corewise launch --processes 2 -- python -m corewise.measured.workloads.kernels.tiled_product --distributed \\
      --size 32768 --folder /shared/tiles
  python -m corewise.measured.workloads.kernels.tiled_product --a A.npy --b B.npy --memory 4G --folder product

The tiles of the product are files C_ROW_COLUMN.tile in the folder. Run the same command again to resume.
"""
LOST_RANK = "the connection to another rank was lost; run the same command again to resume"
DONE, FAILED, MISTAKE, INTERRUPTED = 0, 1, 2, 130


def main(arguments: Optional[List[str]] = None) -> int:
    """Run the command; return 0 if done, 1 on failure, 2 on misuse."""
    options = _build_parser().parse_args(arguments)
    # Libraries read these variables when they are loaded.
    note = set_thread_variables(options.threads)
    try:
        import numpy  # noqa: F401
    except ImportError as problem:
        return _report_error(f"numpy is not installed for this Python: pip install numpy ({problem})", MISTAKE)
    if note:
        print(f"tiled_product: {note}", file=sys.stderr)
    return _run_multiply(options)


def _run_multiply(options: argparse.Namespace) -> int:
    """Multiply, and report expected errors with their exit code."""
    from corewise.measured.workloads.kernels.tiled_product.multiply import UsageError, multiply
    from corewise.measured.workloads.kernels.tiled_product.tile_files import BadTile, StorageFull

    try:
        result = multiply(options)
    except (Infeasible, UsageError, ValueError) as problem:
        return _report_error(str(problem), MISTAKE)
    except BadTile as problem:
        remedy = "" if options.a else "; remove it and run the same command again to recreate it"
        return _report_error(f"{problem}{remedy}", FAILED)
    except (StorageFull, OSError, MemoryError, RuntimeError) as problem:
        if options.distributed and is_lost_connection(problem):
            return _report_error(f"{LOST_RANK} ({str(problem).splitlines()[0]})", FAILED)
        return _report_error(str(problem), FAILED)
    except KeyboardInterrupt:
        return _report_error("stopped; run the same command again to resume", INTERRUPTED)
    # The first rank reports for all.
    if result is None:
        return DONE
    print(json.dumps(result) if options.json else _format_result(result))
    return DONE if result.get("check_passed", True) else FAILED


def _report_error(text: str, code: int) -> int:
    prefix = "tiled_product: "
    print(text if text.startswith(prefix) else f"{prefix}{text}", file=sys.stderr)
    return code


def _format_result(result: Dict[str, Any]) -> str:
    lines = [
        f"{result['gflop_per_s']:.1f} Gflop/s in {result['wall_s']:.1f} s; "
        f"{result['num_tiles_written']} tiles written, {result['num_tiles_kept']} already finished, "
        f"{result['num_tiles_read']} read",
        f"multiplied for {result['multiply_s']:.1f} s; in parallel read for {result['read_s']:.1f} s "
        f"and wrote for {result['write_s']:.1f} s; waited for {result['wait_s']:.1f} s, "
        f"and {result['last_writes_s']:.1f} s for the last tiles",
    ]
    if "check_error" in result:
        verdict = "correct" if result["check_passed"] else "WRONG"
        lines.append(
            f"the product is {verdict}: error {result['check_error']:.2g}, tolerance {result['check_tolerance']:.2g}"
        )
    return "\n".join(lines)


def build_int_parser(least: int) -> Callable[[str], int]:
    """Return an argparse type that accepts whole numbers of at least `least`."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f"must be a whole number of at least {least}, not {text!r}")
        return value

    return parse


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m corewise.measured.workloads.kernels.tiled_product",
        description="C = A·B for matrices larger than memory, stored as tile files.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--size", type=build_int_parser(1), help="rows and columns of random matrices")
    parser.add_argument("--a", metavar="A.npy", help="left matrix from a file, with --b")
    parser.add_argument("--b", metavar="B.npy", help="right matrix from a file")
    parser.add_argument(
        "--tile", type=build_int_parser(1), default=4096, help="rows and columns of a tile (default 4096)"
    )
    parser.add_argument(
        "--memory",
        help="memory limit of the process, or of the tiles on a GPU, for example 2G "
        "(default: a tenth of the matrices for tiles)",
    )
    parser.add_argument("--folder", required=True, help="folder of the tile files")
    parser.add_argument("--runtime", choices=tuple(PIECES), default="torch")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=("float32", "float64"), help="dtype of random matrices (default float32)")
    parser.add_argument("--threads", type=build_int_parser(1), help="threads of the framework (default: its choice)")
    parser.add_argument("--seed", type=build_int_parser(0), default=0)
    parser.add_argument(
        "--distributed",
        action="store_true",
        help="one rank of several, started by corewise launch, torchrun, mpirun or srun, in a folder that all share",
    )
    parser.add_argument("--no-verify", action="store_true", help="skip Freivalds' check at the end")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
