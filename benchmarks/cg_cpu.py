"""Compare conjugate gradients on the CPU: ours (CSR and matrix-free), scipy's and PETSc's.

All sides solve the same system (27-point stencil, same right-hand side) on the same cores. Each has its own
process, and they take turns. STREAM's triad takes part too and gives the memory bound. The residuals of all
sides after the last iteration are compared. Needs numpy, torch and the source folder of Corewise. scipy and
PETSc (Debian: libpetsc-real-dev, mpi-default-bin, a compiler) are left out if they are missing.

  python benchmarks/cg_cpu.py --threads 2 --out cg_cpu.json
"""

import argparse
import importlib.util
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from kernel_runs import Side, compare_speed, describe_machine, find_best_s, prepare_kernel_job, serve, take_turns

from corewise.measured.runtimes.base import Job
from corewise.measured.workloads.kernels.cg.stencil import build_stencil_rows, compute_stencil_product
from corewise.measured.workloads.kernels.cg.workload import CG
from corewise.measured.workloads.kernels.stream import STREAM

PETSC_SOURCE = Path(__file__).with_name("petsc_cg.c")
TORCH, FREE, NUMPY = "torch csr", "torch matrix-free", "numpy csr"
SCIPY, PETSC, PETSC_DEFAULT = "scipy cg", "PETSc cg, natural norm", "PETSc cg, as it comes"
TRIAD = "triad"
# The fraction of the memory bound that our solver has to reach.
ASKED = 0.8
# Relative difference up to which residuals count as equal.
SAME_RESIDUAL = 1e-6


class ScipyJob:
    """scipy.sparse.linalg.cg for a fixed number of iterations."""

    def __init__(self, edge: int, iterations: int, rhs: Any) -> None:
        import scipy.sparse
        import scipy.sparse.linalg

        starts, columns, values = build_stencil_rows(edge, 0, edge**3, 0.0)
        self._matrix = scipy.sparse.csr_matrix((values, columns, starts), shape=(edge**3, edge**3))
        self._solve, self._iterations, self._rhs = scipy.sparse.linalg.cg, iterations, rhs
        self.x = rhs

    def step(self) -> None:
        self.x, _ = self._solve(self._matrix, self._rhs, rtol=0.0, atol=0.0, maxiter=self._iterations)


def run_side(options: argparse.Namespace) -> None:
    """Build one side, write its residual to the folder, and take turns."""
    folder, args = Path(options.folder), {"size": options.edge, "iterations": options.iterations}
    if options.child == TRIAD:
        serve(prepare_kernel_job("stream", "torch", "float64", options.threads, {"operation": "triad"}))
        return
    if options.child == SCIPY:
        rhs = np.fromfile(folder / "rhs")
        job: Any = ScipyJob(options.edge, options.iterations, rhs)
        job.step()
        residual = rhs - compute_stencil_product(job.x, options.edge, 0.0)
        leave_residual(folder, np.linalg.norm(residual) / np.linalg.norm(rhs))
        serve(job)
        return
    runtime, matrix = options.child.split()
    own: Job = prepare_kernel_job("cg", runtime, "float64", options.threads, {"matrix": matrix, **args})
    leave_residual(folder, own.read_facts()["residual_history"][-1][1])
    serve(own)


def leave_residual(folder: Path, residual: float) -> None:
    (folder / "residual").write_text(repr(float(residual)))


def write_rhs(path: Path, edge: int) -> None:
    """Write the right-hand side that our kernel makes for its first rank."""
    solution = np.random.default_rng([0, edge**3]).standard_normal(edge**3)
    compute_stencil_product(solution, edge, 0.0).tofile(path)


def build_petsc_command(options: argparse.Namespace, folder: Path) -> tuple[list[str], str]:
    """Return the start of PETSc's command, or an empty list and the reason."""
    missing = [tool for tool in ("mpicc", "mpirun", "pkg-config") if shutil.which(tool) is None]
    if missing:
        return [], f"no {', '.join(missing)} on the PATH"
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "PETSc"], capture_output=True, text=True)
    if flags.returncode:
        return [], "pkg-config does not find PETSc"
    program = folder / "petsc_cg"
    arguments = ["mpicc", "-O3", "-march=native", str(PETSC_SOURCE), "-o", str(program), *flags.stdout.split()]
    built = subprocess.run(arguments, capture_output=True, text=True)
    if built.returncode:
        return [], f"petsc_cg.c does not compile: {built.stderr.strip().splitlines()[-1]}"
    return ["mpirun", "--bind-to", "core", "-n", str(options.threads), str(program)], ""


def start_sides(options: argparse.Namespace, folder: Path) -> tuple[dict[str, Side], dict[str, str]]:
    """Start all available sides; return them, and why others are left out."""
    rhs, left_out = folder / "rhs", {}
    write_rhs(rhs, options.edge)
    threads = {name: str(options.threads) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    commands: dict[str, list[str]] = {}
    for name in (TRIAD, TORCH, FREE, NUMPY, SCIPY):
        if name == SCIPY and importlib.util.find_spec("scipy") is None:
            left_out[name] = "scipy is not installed"
            continue
        arguments = [f"--{each}={getattr(options, each)}" for each in ("edge", "iterations", "threads")]
        own = folder / name.replace(" ", "_")
        own.mkdir()
        (own / "rhs").symlink_to(rhs)
        commands[name] = [sys.executable, __file__, "--child", name, "--folder", str(own), *arguments]
    petsc, reason = build_petsc_command(options, folder)
    for name, norm in ((PETSC, "natural"), (PETSC_DEFAULT, "default")):
        if not petsc:
            left_out[name] = reason
            continue
        own = folder / norm
        own.mkdir()
        arguments = [str(options.edge), str(options.iterations), norm, str(rhs), str(own / "residual")]
        commands[name] = [*petsc, *arguments]
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    one_thread = {**allowed, "OMP_NUM_THREADS": "1"}
    sides = {}
    for name, arguments in commands.items():
        sides[name] = Side(name, arguments, one_thread if "PETSc" in name else threads)
    return sides, left_out


def read_residuals(folder: Path) -> dict[str, float]:
    return {path.parent.name: float(path.read_text()) for path in sorted(folder.glob("*/residual"))}


def summarize(sides: dict[str, Side], options: argparse.Namespace) -> dict[str, Any]:
    """Compute time per iteration, rates, fractions of the bound, and our speed relative to each peer."""
    triad = STREAM.count_work("infer", {}, "float64").bytes_per_sample / find_best_s(sides[TRIAD])
    figures: dict[str, Any] = {"triad_gbyte_per_s": triad / 1e9, "sides": {}}
    for name, side in sides.items():
        if name == TRIAD:
            continue
        matrix = "matrix-free" if name == FREE else "csr"
        args = {"matrix": matrix, "size": options.edge, "iterations": options.iterations}
        num_bytes = CG.count_work("infer", args, "float64").bytes_per_sample
        rounds = [
            num_bytes / min(own) / (STREAM.count_work("infer", {}, "float64").bytes_per_sample / min(memory))
            for own, memory in zip(side.turns, sides[TRIAD].turns, strict=True)
        ]
        figures["sides"][name] = {
            "ms_per_iteration": find_best_s(side) / options.iterations * 1e3,
            "gbyte_per_s": num_bytes / find_best_s(side) / 1e9,
            "fraction_of_bound": num_bytes / find_best_s(side) / triad,
            "fraction_by_rounds": sorted(rounds)[len(rounds) // 2],
            "turns_s": side.turns,
        }
        if name not in (TORCH, FREE, NUMPY):
            by_best, by_rounds = compare_speed(sides[TORCH], side)
            figures["sides"][name]["torch_csr_is_faster_by"] = [by_best, by_rounds]
    return figures


def show(figures: dict[str, Any]) -> None:
    print(f"triad {figures['triad_gbyte_per_s']:.1f} GB/s")
    print(f"{'':24} {'ms/iter':>8} {'GB/s':>6} {'of bound':>8} {'by rounds':>9}  torch csr faster by")
    for name, row in figures["sides"].items():
        faster = row.get("torch_csr_is_faster_by")
        ratio = "" if faster is None else f"{faster[0]:.2f}, {faster[1]:.2f}"
        print(
            f"{name:24} {row['ms_per_iteration']:8.2f} {row['gbyte_per_s']:6.1f} "
            f"{row['fraction_of_bound']:8.2f} {row['fraction_by_rounds']:9.2f}  {ratio}"
        )
    # The best solve is compared with the best triad, as STREAM does.
    reached = figures["sides"][TORCH]["fraction_of_bound"] >= ASKED
    print(f"torch csr at {ASKED:.0%} of the bound or more: {'yes' if reached else 'NO'}")
    if figures["load_after"][0] > 1.5 * figures["threads"]:
        print("other processes were active: do not rely on these figures")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--edge", type=int, default=128, help="points along an edge of the cube")
    parser.add_argument("--iterations", type=int, default=20, help="of one solve")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=3, help="solves in one turn")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        run_side(options)
        return
    began = time.monotonic()
    figures: dict[str, Any] = {"machine": describe_machine(), "edge": options.edge, "threads": options.threads}
    print(f"{figures['machine']}; edge {options.edge}, {options.threads} threads")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sides, left_out = start_sides(options, folder)
        try:
            found = figures["residuals"] = read_residuals(folder)
            low, high = min(found.values()), max(found.values())
            if not math.isclose(low, high, rel_tol=SAME_RESIDUAL):
                raise SystemExit(f"the sides do not solve the same system: {found}")
            take_turns(list(sides.values()), options.rounds, options.steps)
        finally:
            for side in sides.values():
                side.close()
    figures.update(summarize(sides, options), left_out=left_out, load_after=os.getloadavg())
    for name, reason in left_out.items():
        print(f"left out: {name}: {reason}")
    show(figures)
    print(f"{time.monotonic() - began:.0f} s; load afterwards {os.getloadavg()[0]:.1f}")
    if options.out:
        options.out.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
