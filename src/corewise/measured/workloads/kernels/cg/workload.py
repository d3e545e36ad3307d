"""The conjugate gradients workload in float64: a dense system, or a 27-point stencil as CSR or matrix-free.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import shutil
from typing import Any, Dict, List, Mapping, Optional, Tuple

import numpy as np

from corewise.measured.runtimes.base import Check, Infeasible, NotNow
from corewise.measured.workloads.base import Work
from corewise.measured.workloads.kernels.cg.checkpoint import CheckpointNotWritten, require_checkpoint_space
from corewise.measured.workloads.kernels.cg.iteration import SolverState
from corewise.measured.workloads.kernels.cg.operators import MATRICES
from corewise.measured.workloads.kernels.cg.problem import CgProblem
from corewise.measured.workloads.kernels.cg.system import LinearSystem
from corewise.measured.workloads.kernels.kernel import RUNTIMES, Kernel, KernelRun, KernelSetup
from corewise.measured.workloads.kernels.kernel_parameters import fill_defaults, read_choice, read_whole_number

DEFAULT_SIZE = {"dense": 4096, "csr": 96, "matrix-free": 96}
MEMORY_FACTORS = {
    "dense": {"numpy": 1.0, "torch": 1.0, "jax": 2.0, "tensorflow": 2.0},
    "csr": {"numpy": 1.3, "torch": 1.3, "jax": 2.4, "tensorflow": 3.8},
    "matrix-free": {"numpy": 3.2, "torch": 3.2, "jax": 4.2, "tensorflow": 5.7},
}
# The largest edge whose cube has 32-bit indices.
LARGEST_EDGE = 1289
ROUNDOFF = 2.0**-53
# Runtimes that give identical bits in every run on a CPU. Others distribute the work differently each time.
REPRODUCIBLE_RUNTIMES = ("numpy", "torch")
# Residuals that are stored with a record.
NUM_RESIDUALS_SHOWN = 12


@dataclasses.dataclass(frozen=True)
class ConjugateGradient(Kernel):
    """One step runs `iterations` iterations from x = 0."""

    name: str = "cg"
    summary: str = "conjugate gradients, float64: dense, csr or matrix-free (args.matrix, args.size)"
    modes: Tuple[str, ...] = ("infer",)
    runtimes: Tuple[str, ...] = RUNTIMES
    concurrent: bool = False

    @property
    def parameters(self) -> Mapping[str, Any]:
        return {
            "matrix": "dense",
            "size": None,
            "iterations": 50,
            "shift": 0.0,
            "tolerance": 0.0,
            "checkpoint_every": 0,
            "checkpoint": "",
        }

    def list_dtypes(self, args: Mapping[str, Any]) -> Tuple[str, ...]:
        return ("float64",)

    def count_work(self, mode: str, args: Mapping[str, Any], dtype: Optional[str] = None) -> Work:
        problem = self.read_problem(args)
        return Work(
            flops_per_sample=problem.iterations * problem.count_flops_per_iteration(),
            bytes_per_sample=problem.iterations * problem.count_bytes_per_iteration(),
            num_parameters=0,
        )

    def estimate_memory_bytes(self, args: Mapping[str, Any], dtype: str) -> int:
        return self.read_problem(args).estimate_memory_bytes()

    def estimate_memory_factors(self, args: Mapping[str, Any], dtype: str) -> Mapping[str, float]:
        """Return factors measured on CPUs.

        Frameworks without in-place writes concatenate tiles, and the stencil is checked in numpy.
        """
        return MEMORY_FACTORS[self.read_problem(args).matrix]

    def fit_to_memory(self, args: Mapping[str, Any], dtype: str, free_bytes: int) -> Dict[str, Any]:
        size = self.read_problem(args).find_largest_size(free_bytes)
        return {**args, "size": size} if size else dict(args)

    def build(self, setup: KernelSetup) -> KernelRun:
        return ConjugateGradientRun(setup, self.read_problem(setup.args))

    def read_problem(self, args: Mapping[str, Any], workload: str = "cg") -> CgProblem:
        """Return the problem that the parameters describe; raise ValueError if they are invalid.

        Args:
            workload: the name in messages.
        """
        filled = fill_defaults(workload, self.parameters, args)
        matrix = read_choice(workload, filled, "matrix", MATRICES)
        if filled["size"] is None:
            filled["size"] = DEFAULT_SIZE[matrix]
        size = read_whole_number(workload, filled, "size")
        if matrix != "dense" and size > LARGEST_EDGE:
            raise ValueError(
                f"{workload}: size is the edge of a cube of points for matrix {matrix}, "
                f"at most {LARGEST_EDGE}, not {size}"
            )
        every = read_whole_number(workload, filled, "checkpoint_every", 0)
        if filled["checkpoint"] and not every:
            raise ValueError(f"{workload}: a checkpoint needs checkpoint_every, the iterations between two checkpoints")
        return CgProblem(
            matrix=matrix,
            size=size,
            iterations=read_whole_number(workload, filled, "iterations"),
            shift=_read_number(workload, filled, "shift"),
            tolerance=_read_number(workload, filled, "tolerance", 0.0),
            checkpoint_every=every,
            checkpoint=str(filled["checkpoint"] or ""),
        )


class ConjugateGradientRun(KernelRun):
    """A system that every step solves from the start."""

    def __init__(self, setup: KernelSetup, problem: CgProblem, system: Optional[LinearSystem] = None) -> None:
        self._arrays, self._problem = setup.arrays, problem
        self._system = system or LinearSystem(setup.arrays, problem, setup.seed, setup.num_threads)
        base = problem.checkpoint or os.path.join(setup.folder, "cg.checkpoint")
        # All ranks of a trial get the same name, so the seed makes it unique.
        self._path = f"{base}.{setup.seed}"
        # The first checkpoint of a step, kept only during the check.
        self._first_path = f"{self._path}.first"
        if problem.checkpoint_every:
            self._require_checkpoint_space()
        self._checkpoint_bytes = 0
        self._num_checkpoints = 0
        self._checking = False

    def _require_checkpoint_space(self) -> None:
        """Raise Infeasible if no checkpoint can be written, NotNow if the disk is full."""
        try:
            require_checkpoint_space(self._path, self._system.estimate_checkpoint_bytes())
        except CheckpointNotWritten as problem:
            raise NotNow(f"cg: {problem}") from problem
        except ValueError as problem:
            raise Infeasible(f"cg: {problem}") from problem

    def step(self) -> None:
        self._num_checkpoints = 0
        solver, problem = self._system.solver, self._problem
        solver.start()
        solver.run(problem.iterations, problem.checkpoint_every, self._save)

    def _save(self, state: SolverState) -> None:
        self._checkpoint_bytes = self._system.save(self._path, state)
        self._num_checkpoints += 1
        is_first = self._num_checkpoints == 1 and state.iteration < self._problem.iterations
        if self._checking and is_first:
            self._copy_first_checkpoint()

    def _copy_first_checkpoint(self) -> None:
        shutil.copyfile(self._path, self._first_path)

    def _draw_vector(self) -> Any:
        """Draw the random vector of the check."""
        return np.random.default_rng().standard_normal(self._problem.num_rows)

    def check(self) -> Check:
        """Check the product with a new vector, the true residual and the known solution in numpy."""
        self._checking = True
        try:
            self._run_step_with_restart_point()
            return self._find_worst_check()
        finally:
            self._checking = False
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._first_path)

    def _run_step_with_restart_point(self) -> None:
        """Run a step; if its only checkpoint is at the end, save one from the middle for the check."""
        problem, solver = self._problem, self._system.solver
        if problem.checkpoint_every != problem.iterations:
            self.step()
            return
        self._num_checkpoints = 0
        solver.start()
        solver.run(problem.iterations // 2 // self._system.at_once * self._system.at_once)
        self._system.save(self._first_path, solver.capture_state())
        solver.run(problem.iterations, problem.checkpoint_every, self._save)

    def _find_worst_check(self) -> Check:
        """Return the check with the largest error relative to its tolerance."""
        system = self._system
        fresh = self._draw_vector()
        x = system.operator.from_layout(self._arrays.to_host(system.solver.x))
        # Both products share one pass over a large matrix.
        product, product_of_x = system.operator.compute_reference(np.stack([fresh, x]))
        residual = system.rhs - product_of_x
        checks = [self._check_residual(residual), self._check_product(fresh, product)]
        checks += self._check_solution(x, residual)
        if self._problem.tolerance:
            reached = math.sqrt(self._compute_relative_squares()[-1])
            checks.append(Check(reached, self._problem.tolerance, "the requested tolerance"))
        if self._num_checkpoints:
            checks.append(self._check_restart())
        return max(checks, key=_compute_excess)

    def _check_product(self, fresh: Any, expected: Any) -> Check:
        actual = self._system.compute_product(fresh)
        row = self._problem.size if self._problem.matrix == "dense" else 27
        tolerance = 16 * ROUNDOFF * math.sqrt(row) * max(1.0, self._compute_matrix_norm())
        error = _compute_norm(actual - expected) / _compute_norm(fresh)
        return Check(error, tolerance, "the product with a random vector in numpy")

    def _check_residual(self, residual: Any) -> Check:
        """Compare the recursively updated residual with b - Ax, computed in numpy."""
        system = self._system
        carried = system.operator.from_layout(self._arrays.to_host(system.solver.r))
        error = _compute_norm(residual - carried) / _compute_norm(system.rhs)
        scale = self._compute_matrix_norm() * _compute_norm(system.solution) / _compute_norm(system.rhs)
        tolerance = 8 * ROUNDOFF * (10 + self._problem.iterations) * max(1.0, scale)
        return Check(error, tolerance, "the residual b - Ax computed in numpy")

    def _check_solution(self, x: Any, residual: Any) -> List[Check]:
        """Compare the distance to the known solution with two bounds, if the matrix is definite."""
        least, greatest = self._system.operator.bound_eigenvalues()
        if least <= 0:
            return []
        known = self._system.solution
        error, scale = known - x, _compute_norm(known)
        floor = 64 * ROUNDOFF * (10 + self._problem.iterations) * greatest / least
        bound = _compute_norm(residual) / least / scale + floor
        root = math.sqrt(greatest / least)
        theory = 2 * ((root - 1) / (root + 1)) ** self._problem.iterations
        energy = math.sqrt(max(0.0, float(error @ residual)) / float(known @ self._system.rhs))
        return [
            Check(_compute_norm(error) / scale, bound, "the known solution, by the residual"),
            Check(energy, theory + floor, "the known solution, by the bound for conjugate gradients"),
        ]

    def _check_restart(self) -> Check:
        """Resume from the first checkpoint and compare residuals.

        They must be bitwise equal if the framework always sums in the same order.
        """
        solver = self._system.solver
        before = solver.read_residuals().copy()
        solver.resume(self._system.load(self._first_path).state)
        solver.run(self._problem.iterations)
        after = solver.read_residuals()
        exact = self._is_reproducible()
        error = float(np.max(np.abs(after - before) / before[0]))
        return Check(error, 0.0 if exact else 1e-9, "the residuals without a restart")

    def _is_reproducible(self) -> bool:
        return self._arrays.device == "cpu" and self._arrays.runtime in REPRODUCIBLE_RUNTIMES

    def _compute_matrix_norm(self) -> float:
        return max(abs(each) for each in self._system.operator.bound_eigenvalues())

    def _compute_relative_squares(self) -> Any:
        residuals = self._system.solver.read_residuals()
        return residuals / residuals[0]

    def read_facts(self) -> Mapping[str, Any]:
        """Return the size of the system and some of its residuals, relative to the first."""
        history = np.sqrt(self._compute_relative_squares())
        shown = sorted({round(k) for k in np.linspace(0, len(history) - 1, NUM_RESIDUALS_SHOWN)})
        facts: Dict[str, Any] = {
            "num_rows": self._problem.num_rows,
            "matrix_bytes": self._problem.count_matrix_bytes(),
            "iterations_at_once": self._system.at_once,
            "residual_history": [[k, float(history[k])] for k in shown],
        }
        if self._num_checkpoints:
            facts["num_checkpoints"] = self._num_checkpoints
            facts["checkpoint_bytes"] = self._checkpoint_bytes
        return facts

    def collect_notes(self) -> Tuple[str, ...]:
        """Return a warning if the figure does not include any checkpoint."""
        every, iterations = self._problem.checkpoint_every, self._problem.iterations
        if every <= iterations:
            return ()
        return (f"no checkpoint is written: checkpoint_every is {every}, a step has {iterations} iterations",)

    def close(self) -> None:
        if self._num_checkpoints and not self._problem.checkpoint and os.path.exists(self._path):
            os.unlink(self._path)


def _read_number(name: str, args: Mapping[str, Any], parameter: str, least: float = -math.inf) -> float:
    value = args[parameter]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not (least <= value and abs(value) < math.inf):
        wanted = "a finite number" if least == -math.inf else f"a number of at least {least}"
        raise ValueError(f"{name}: {parameter} must be {wanted}, not {value!r}")
    return float(value)


def _compute_excess(check: Check) -> float:
    """Return the error divided by its tolerance; infinite for NaN."""
    if check.error == 0:
        return 0.0
    if math.isnan(check.error) or check.tolerance == 0:
        return math.inf
    return check.error / check.tolerance


def _compute_norm(x: Any) -> float:
    return float(np.linalg.norm(x))


CG = ConjugateGradient()
