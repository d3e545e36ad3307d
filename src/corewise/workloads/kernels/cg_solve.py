"""Solve a system by conjugate gradients outside a study, with checkpoints; residuals come as lines of JSON.

    python -m corewise.workloads.kernels.cg_solve --matrix csr --size 64 --iterations 500
    python -m corewise.workloads.kernels.cg_solve --matrix csr --size 64 --iterations 500 \\
        --checkpoint cg.checkpoint --checkpoint-every 50 --runtime torch

The same command again goes on from the checkpoint, if there is one. A line is printed for every iteration
since the start, those before the checkpoint included: {"iteration": 1, "residual": ..., "square_hex": ...},
the last being r'r to the last bit.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from typing import Any, List, Optional

from corewise.workloads.kernels.framework_arrays import ARRAYS, arrays_of
from corewise.workloads.kernels.tiled_product_command import THREADS, at_least
from corewise.workloads.registry import load_attribute

REQUIRE_MEMORY = "corewise.runtimes.kernel_job:require_memory"
DONE, FAILED, MISTAKE = 0, 1, 2
CHECKPOINT_EVERY = 50


def main(words: Optional[List[str]] = None) -> int:
    """The exit code: 0 solved or all iterations done, 1 broken down or no room, 2 the user's mistake."""
    options = _parser().parse_args(words)
    for name in THREADS:  # read by libraries when they are loaded: nothing is imported before
        os.environ[name] = str(options.threads)

    try:
        import numpy  # noqa: F401
    except ImportError as problem:
        return _complain(f"numpy is not installed for this Python: pip install numpy ({problem})", MISTAKE)
    return _told(options)


def _told(options: argparse.Namespace) -> int:
    from corewise.runtimes.base import Infeasible
    from corewise.workloads.kernels.cg_checkpoint import BadCheckpoint, NotWritten
    from corewise.workloads.kernels.cg_iteration import Breakdown

    try:
        return _solve(options)
    except (Breakdown, NotWritten) as problem:
        return _complain(str(problem), FAILED)
    except BadCheckpoint as problem:
        return _complain(f"{problem}; remove it to start anew, or name another file", MISTAKE)
    except ModuleNotFoundError as problem:
        if problem.name != options.runtime:
            raise
        return _complain(f"{options.runtime} is not installed for this Python ({problem})", MISTAKE)
    except (Infeasible, ValueError, OSError) as problem:
        return _complain(str(problem), MISTAKE)


def _solve(options: argparse.Namespace) -> int:
    from corewise.workloads.kernels.cg import CG
    from corewise.workloads.kernels.cg_checkpoint import require_place
    from corewise.workloads.kernels.cg_iteration import State
    from corewise.workloads.kernels.cg_system import System

    if options.checkpoint_every is not None and not options.checkpoint:
        raise ValueError("--checkpoint-every: no checkpoint is written without --checkpoint FILE")
    every = CHECKPOINT_EVERY if options.checkpoint_every is None else options.checkpoint_every
    problem = CG.problem(
        {
            "matrix": options.matrix,
            "size": options.size,
            "iterations": options.iterations,
            "shift": options.shift,
            "tolerance": options.tolerance,
            "checkpoint_every": every if options.checkpoint else 0,
            "checkpoint": options.checkpoint or "",
        }
    )
    arrays = _arrays(options)
    given = dataclasses.asdict(problem)
    load_attribute(REQUIRE_MEMORY)(CG, given, "float64", arrays.free_bytes(), arrays)
    system = System(arrays, problem, options.seed, options.threads)
    solver = system.solver
    if options.checkpoint:
        require_place(options.checkpoint, system.checkpoint_bytes())
    if options.checkpoint and os.path.exists(options.checkpoint):
        _resume(system, options.checkpoint)
    else:
        solver.start()

    def save(state: State) -> None:
        system.save(options.checkpoint, state)

    try:
        solver.run(problem.iterations, problem.checkpoint_every, save, problem.tolerance)
    finally:
        _print_history(solver.known_residuals()[: problem.iterations + 1])
    return DONE


def _resume(system: Any, path: str) -> None:
    kept = system.load(path)
    system.solver.resume(kept.state)
    reached, wanted = kept.state.iteration, system.problem.iterations
    if reached > wanted:
        print(f"{path} has iterated {reached} times already; these are the first {wanted}", file=sys.stderr)
    else:
        print(f"goes on after iteration {reached} from {path}", file=sys.stderr)
    now, then = json.loads(json.dumps(system.conditions())), kept.conditions
    other = [
        f"{name} {then.get(name, 'not set')} then, {now.get(name, 'not set')} now"
        for name in sorted({*now, *then})
        if now.get(name) != then.get(name)
    ]
    if other:
        print(f"the last bits may differ from an unbroken run: {'; '.join(other)}", file=sys.stderr)


def _print_history(squares: Any) -> None:
    """One line an iteration, from 0, the start: the residual's norm, and its square to the last bit."""
    for iteration, square in enumerate(squares):
        residual = float(square) ** 0.5
        line = {"iteration": iteration, "residual": residual, "square_hex": float(square).hex()}
        print(json.dumps(line))
    sys.stdout.flush()


def _arrays(options: argparse.Namespace) -> Any:
    """The framework's arrays, once its threads are those asked for."""
    if options.device != "cpu" and options.runtime != "torch":
        raise ValueError(f"--device {options.device}: this command has it for --runtime torch only")
    return arrays_of(options.runtime, options.device, options.threads, "float64")


def _complain(text: str, code: int) -> int:
    print(f"cg_solve: {text}", file=sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m corewise.workloads.kernels.cg_solve",
        description="Solve a system by conjugate gradients; residuals come as lines of JSON.",
        epilog="example:\n  --matrix csr --size 64 --iterations 500 --checkpoint F --checkpoint-every 50",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--matrix", choices=("dense", "csr", "matrix-free"), default="csr")
    add("--size", type=int, help="rows of a dense matrix, or points along an edge of the cube")
    add("--iterations", type=int, default=500, help="at the most (default %(default)s)")
    add("--shift", type=float, default=0.0, help="added to the diagonal")
    add("--tolerance", type=float, default=0.0, help="end once the residual is this part of the first")
    add("--checkpoint", metavar="FILE", help="kept up to date; gone on from if it is there")
    add("--checkpoint-every", type=int, help=f"iterations between two (default {CHECKPOINT_EVERY})")
    add("--runtime", choices=tuple(ARRAYS), default="torch")
    add("--device", choices=("cpu", "cuda"), default="cpu")
    add("--threads", type=at_least(1), default=len(os.sched_getaffinity(0)))
    add("--seed", type=at_least(0), default=0)
    return parser


if __name__ == "__main__":
    sys.exit(main())
