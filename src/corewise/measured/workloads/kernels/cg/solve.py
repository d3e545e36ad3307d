"""Command that solves a system by conjugate gradients with checkpoints and prints residuals as JSON lines.

    python -m corewise.measured.workloads.kernels.cg.solve --matrix csr --size 64 --iterations 500
    python -m corewise.measured.workloads.kernels.cg.solve --matrix csr --size 64 --iterations 500 \\
        --checkpoint cg.checkpoint --checkpoint-every 50 --runtime torch
    corewise launch --processes 2 -- python -m corewise.measured.workloads.kernels.cg.solve --distributed \\
        --matrix dense --size 8192 --checkpoint cg.checkpoint

Running the same command again resumes from the checkpoint, if there is one. One line is printed for every
iteration since the start, including those before the checkpoint:
{"iteration": 1, "residual": ..., "square_hex": ...}, where square_hex is r'r with all bits.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from typing import Any, List, Optional

from corewise.measured.workloads.kernels.framework_arrays import ARRAYS, load_arrays
from corewise.measured.workloads.kernels.thread_variables import set_thread_variables
from corewise.measured.workloads.kernels.tiled_product.__main__ import LOST_RANK, build_int_parser
from corewise.measured.workloads.registry import load_attribute

REQUIRE_MEMORY = "corewise.measured.runtimes.kernel_job:require_memory"
LONE = "corewise.measured.runtimes.communication.lone_communicator:LoneCommunicator"
CONNECT = "corewise.measured.runtimes.torch.communication.launched_ranks:connect_launched_ranks"
DISTRIBUTED_CG = "corewise.measured.workloads.kernels.distributed.cg_workload:DISTRIBUTED_CG"
DISTRIBUTED_SYSTEM = "corewise.measured.workloads.kernels.distributed.cg_system:DistributedSystem"
DONE, FAILED, MISTAKE = 0, 1, 2
CHECKPOINT_EVERY = 50


def main(arguments: Optional[List[str]] = None) -> int:
    """Run the command; return 0 if done, 1 on breakdown or a full disk, 2 on misuse."""
    options = _build_parser().parse_args(arguments)
    # Libraries read these variables when they are loaded, so nothing is imported before.
    note = set_thread_variables(options.threads)
    try:
        import numpy  # noqa: F401
    except ImportError as problem:
        return _report_error(f"numpy is not installed for this Python: pip install numpy ({problem})", MISTAKE)
    if note:
        print(f"cg_solve: {note}", file=sys.stderr)
    return _run_solve(options)


def _run_solve(options: argparse.Namespace) -> int:
    """Solve, and report expected errors with their exit code."""
    from corewise.measured.runtimes.base import Infeasible, is_lost_connection
    from corewise.measured.workloads.kernels.cg.checkpoint import BadCheckpoint, CheckpointNotWritten
    from corewise.measured.workloads.kernels.cg.iteration import SolverBreakdown

    try:
        return _solve(options)
    except (SolverBreakdown, CheckpointNotWritten) as problem:
        return _report_error(str(problem), FAILED)
    except RuntimeError as problem:
        if not is_lost_connection(problem):
            raise
        return _report_error(f"{LOST_RANK} ({str(problem).splitlines()[0]})", FAILED)
    except BadCheckpoint as problem:
        return _report_error(f"{problem}; remove it to start again, or name another file", MISTAKE)
    except ModuleNotFoundError as problem:
        if problem.name != options.runtime:
            raise
        return _report_error(f"{options.runtime} is not installed for this Python ({problem})", MISTAKE)
    except (Infeasible, ValueError, OSError) as problem:
        return _report_error(str(problem), MISTAKE)


def _solve(options: argparse.Namespace) -> int:
    from corewise.measured.workloads.kernels.cg.checkpoint import require_checkpoint_space
    from corewise.measured.workloads.kernels.cg.iteration import SolverState
    from corewise.measured.workloads.kernels.cg.workload import CG
    from corewise.measured.workloads.kernels.distributed.first_rank import run_on_first_rank

    if options.checkpoint_every is not None and not options.checkpoint:
        raise ValueError("--checkpoint-every has no effect without --checkpoint FILE")
    every = CHECKPOINT_EVERY if options.checkpoint_every is None else options.checkpoint_every
    problem = CG.read_problem(
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
    arrays, messages = _load_arrays(options), load_attribute(CONNECT if options.distributed else LONE)()
    try:
        system = _build_system(options, problem, arrays, messages)
        solver = system.solver
        if options.checkpoint:
            num_bytes = system.estimate_checkpoint_bytes()
            run_on_first_rank(messages, lambda: require_checkpoint_space(options.checkpoint, num_bytes))
        if options.checkpoint and messages.agree(messages.rank > 0 or os.path.exists(options.checkpoint)):
            _resume(system, options.checkpoint, is_silent=messages.rank > 0)
        else:
            solver.start()

        def save(state: SolverState) -> None:
            system.save(options.checkpoint, state)

        try:
            solver.run(problem.iterations, problem.checkpoint_every, save, problem.tolerance)
        finally:
            if messages.rank == 0:
                _print_history(solver.get_known_residuals()[: problem.iterations + 1])
        return DONE
    finally:
        messages.close()


def _build_system(options: argparse.Namespace, problem: Any, arrays: Any, messages: Any) -> Any:
    """Build the system of this process, or its share of one for all ranks."""
    from corewise.measured.workloads.kernels.cg.system import LinearSystem
    from corewise.measured.workloads.kernels.cg.workload import CG

    require_memory, free_bytes = load_attribute(REQUIRE_MEMORY), arrays.free_bytes()
    if not options.distributed:
        require_memory(CG, dataclasses.asdict(problem), "float64", free_bytes, arrays)
        return LinearSystem(arrays, problem, options.seed, options.threads)
    if options.matrix != "dense" or options.device != "cpu":
        raise ValueError("--distributed solves dense systems on CPUs: add --matrix dense, and leave --device cpu")
    kernel = load_attribute(DISTRIBUTED_CG)
    args = {name: value for name, value in dataclasses.asdict(problem).items() if name in kernel.parameters}
    refusal = kernel.explain_ranks(args, messages.num_ranks)
    if refusal is not None:
        raise ValueError(refusal)
    require_memory(kernel.share_among(messages.num_ranks), args, "float64", free_bytes, arrays)
    return load_attribute(DISTRIBUTED_SYSTEM)(arrays, problem, options.seed, options.threads, messages)


def _resume(system: Any, path: str, *, is_silent: bool) -> None:
    """Resume from a checkpoint and say what differs from the conditions under which it was written."""
    checkpoint = system.load(path)
    system.solver.resume(checkpoint.state)
    if is_silent:
        return
    reached, wanted = checkpoint.state.iteration, system.problem.iterations
    if reached > wanted:
        print(f"{path} already has {reached} iterations; showing the first {wanted}", file=sys.stderr)
    else:
        print(f"resuming after iteration {reached} from {path}", file=sys.stderr)
    now, then = json.loads(json.dumps(system.describe_conditions())), checkpoint.conditions
    differences = [
        f"{name} {then.get(name, 'not set')} then, {now.get(name, 'not set')} now"
        for name in sorted({*now, *then})
        if now.get(name) != then.get(name)
    ]
    if differences:
        print(f"the last bits may differ from an uninterrupted run: {'; '.join(differences)}", file=sys.stderr)


def _print_history(squares: Any) -> None:
    """Print one line per iteration: the norm of the residual, and its square with all bits."""
    for iteration, square in enumerate(squares):
        residual = float(square) ** 0.5
        line = {"iteration": iteration, "residual": residual, "square_hex": float(square).hex()}
        print(json.dumps(line))
    sys.stdout.flush()


def _load_arrays(options: argparse.Namespace) -> Any:
    """Set the threads and return the framework's arrays."""
    if options.device != "cpu" and options.runtime != "torch":
        raise ValueError(f"--device {options.device}: only --runtime torch supports it in this command")
    return load_arrays(options.runtime, options.device, options.threads, "float64")


def _report_error(text: str, code: int) -> int:
    print(f"cg_solve: {text}", file=sys.stderr)
    return code


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m corewise.measured.workloads.kernels.cg.solve",
        description="Solve a linear system by conjugate gradients and print residuals as JSON lines.",
        epilog="example:\n  --matrix csr --size 64 --iterations 500 --checkpoint F --checkpoint-every 50",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--matrix", choices=("dense", "csr", "matrix-free"), default="csr")
    add("--size", type=int, help="rows of a dense matrix, or points along an edge of the cube")
    add("--iterations", type=int, default=500, help="maximum number of iterations (default %(default)s)")
    add("--shift", type=float, default=0.0, help="added to the diagonal")
    add("--tolerance", type=float, default=0.0, help="stop when the residual relative to the first is this small")
    add("--checkpoint", metavar="FILE", help="checkpoint file; resumed from if it exists")
    add("--checkpoint-every", type=int, help=f"iterations between checkpoints (default {CHECKPOINT_EVERY})")
    add("--runtime", choices=tuple(ARRAYS), default="torch")
    add("--device", choices=("cpu", "cuda"), default="cpu")
    add("--threads", type=build_int_parser(1), default=len(os.sched_getaffinity(0)))
    add(
        "--distributed",
        action="store_true",
        help="one rank of several, started by corewise launch, torchrun, mpirun or srun; each keeps a block of rows",
    )
    add("--seed", type=build_int_parser(0), default=0)
    return parser


if __name__ == "__main__":
    sys.exit(main())
