"""Conjugate gradients in float64: a dense system, and a 27-point stencil as CSR or without a matrix.

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

from corewise.runtimes.base import Check, Infeasible, NotNow
from corewise.workloads.base import Work
from corewise.workloads.kernels.base import RUNTIMES, KernelRun, Setup
from corewise.workloads.kernels.cg_checkpoint import NotWritten, require_place
from corewise.workloads.kernels.cg_iteration import State
from corewise.workloads.kernels.cg_operators import MATRICES
from corewise.workloads.kernels.cg_problem import Problem
from corewise.workloads.kernels.cg_system import System
from corewise.workloads.kernels.parameters import one_of, whole_number, with_defaults

DEFAULT_SIZE = {"dense": 4096, "csr": 96, "matrix-free": 96}
MEMORY_FACTORS = {
    "dense": {"numpy": 1.0, "torch": 1.0, "jax": 2.0, "tensorflow": 2.0},
    "csr": {"numpy": 1.3, "torch": 1.3, "jax": 2.4, "tensorflow": 3.8},
    "matrix-free": {"numpy": 3.2, "torch": 3.2, "jax": 4.2, "tensorflow": 5.7},
}
LARGEST_EDGE = 1289  # its cube still counts in 32 bits
ROUNDOFF = 2.0**-53
SAME_BITS = ("numpy", "torch")  # on a CPU; others share work out anew in every run
NUM_SHOWN = 12  # residuals kept with a record


@dataclasses.dataclass(frozen=True)
class ConjugateGradient:
    """So many iterations from x = 0 are one step."""

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

    def dtypes(self, args: Mapping[str, Any]) -> Tuple[str, ...]:
        return ("float64",)

    def work(self, mode: str, args: Mapping[str, Any], dtype: Optional[str] = None) -> Work:
        problem = self.problem(args)
        return Work(
            flops_per_sample=problem.iterations * problem.flops_per_iteration(),
            bytes_per_sample=problem.iterations * problem.bytes_per_iteration(),
            num_parameters=0,
        )

    def needed_bytes(self, args: Mapping[str, Any], dtype: str) -> int:
        return self.problem(args).needed_bytes()

    def memory_factors(self, args: Mapping[str, Any], dtype: str) -> Mapping[str, float]:
        """As measured on CPUs: frameworks that cannot write join tiles anew, and the stencil is checked in
        numpy."""
        return MEMORY_FACTORS[self.problem(args).matrix]

    def largest_that_fits(self, args: Mapping[str, Any], dtype: str, free_bytes: int) -> Dict[str, Any]:
        problem = self.problem(args)
        fits, too_large = 0, problem.size
        while too_large - fits > 1:
            middle = (fits + too_large) // 2
            if dataclasses.replace(problem, size=middle).needed_bytes() <= free_bytes:
                fits = middle
            else:
                too_large = middle
        return {**args, "size": fits} if fits else dict(args)

    def build(self, setup: Setup) -> KernelRun:
        return ConjugateGradientRun(setup, self.problem(setup.args))

    def problem(self, args: Mapping[str, Any]) -> Problem:
        """The problem these parameters ask for; ValueError where they ask for none."""
        filled = with_defaults(self.name, self.parameters, args)
        matrix = one_of(self.name, filled, "matrix", MATRICES)
        if filled["size"] is None:
            filled["size"] = DEFAULT_SIZE[matrix]
        size = whole_number(self.name, filled, "size")
        if matrix != "dense" and size > LARGEST_EDGE:
            raise ValueError(
                f"{self.name}: size is the edge of a cube of points for matrix {matrix}, "
                f"at most {LARGEST_EDGE}, not {size}"
            )
        every = whole_number(self.name, filled, "checkpoint_every", 0)
        if filled["checkpoint"] and not every:
            raise ValueError(f"{self.name}: a checkpoint needs checkpoint_every, the iterations between two")
        return Problem(
            matrix=matrix,
            size=size,
            iterations=whole_number(self.name, filled, "iterations"),
            shift=_number(self.name, filled, "shift"),
            tolerance=_number(self.name, filled, "tolerance", 0.0),
            checkpoint_every=every,
            checkpoint=str(filled["checkpoint"] or ""),
        )


class ConjugateGradientRun:
    """A system solved again in every step, from the start."""

    def __init__(self, setup: Setup, problem: Problem) -> None:
        self._arrays, self._problem = setup.arrays, problem
        self._system = System(setup.arrays, problem, setup.seed, setup.num_threads)
        kept = problem.checkpoint or os.path.join(setup.folder, "cg.checkpoint")
        self._path = f"{kept}.{setup.seed}"  # the ranks of a trial are told the same name
        self._first_path = f"{self._path}.first"  # kept while numbers are checked
        if problem.checkpoint_every:
            self._require_place()
        self._checkpoint_bytes = 0
        self._num_checkpoints = 0
        self._checking = False

    def _require_place(self) -> None:
        """Raises Infeasible where no checkpoint can be written, or not now."""
        try:
            require_place(self._path, self._system.checkpoint_bytes())
        except NotWritten as problem:
            raise NotNow(f"cg: {problem}") from problem
        except ValueError as problem:
            raise Infeasible(f"cg: {problem}") from problem

    def step(self) -> None:
        self._num_checkpoints = 0
        solver, problem = self._system.solver, self._problem
        solver.start()
        solver.run(problem.iterations, problem.checkpoint_every, self._save)

    def _save(self, state: State) -> None:
        self._checkpoint_bytes = self._system.save(self._path, state)
        self._num_checkpoints += 1
        is_first = self._num_checkpoints == 1 and state.iteration < self._problem.iterations
        if self._checking and is_first:
            shutil.copyfile(self._path, self._first_path)

    def check(self) -> Check:
        """The product with a fresh vector, the true residual and the known solution, in numpy; see each."""
        self._checking = True
        try:
            self._step_with_something_to_restart()
            return self._worst_check()
        finally:
            self._checking = False
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._first_path)

    def _step_with_something_to_restart(self) -> None:
        """A step; where its only checkpoint is its end, one more is kept from the middle for the check."""
        problem, solver = self._problem, self._system.solver
        if problem.checkpoint_every != problem.iterations:
            self.step()
            return
        self._num_checkpoints = 0
        solver.start()
        solver.run(problem.iterations // 2 // self._system.at_once * self._system.at_once)
        self._system.save(self._first_path, solver.state())
        solver.run(problem.iterations, problem.checkpoint_every, self._save)

    def _worst_check(self) -> Check:
        """Of all the checks the one that comes closest to what it allows, or furthest beyond."""
        system = self._system
        fresh = np.random.default_rng().standard_normal(self._problem.num_rows)
        x = system.operator.extract(self._arrays.to_host(system.solver.x))
        product, of_x = system.operator.reference(np.stack([fresh, x]))  # one pass over a large matrix
        residual = system.rhs - of_x
        checks = [self._check_residual(residual), self._check_product(fresh, product)]
        checks += self._check_solution(x, residual)
        if self._problem.tolerance:
            reached = math.sqrt(self._relative_squares()[-1])
            checks.append(Check(reached, self._problem.tolerance, "the tolerance asked for"))
        if self._num_checkpoints:
            checks.append(self._check_restart())
        return max(checks, key=_badness)

    def _check_product(self, fresh: Any, wanted: Any) -> Check:
        found = self._system.times(fresh)
        row = self._problem.size if self._problem.matrix == "dense" else 27
        tolerance = 16 * ROUNDOFF * math.sqrt(row) * max(1.0, self._norm_of_matrix())
        error = _norm(found - wanted) / _norm(fresh)
        return Check(error, tolerance, "the product with a random vector in numpy")

    def _check_residual(self, residual: Any) -> Check:
        """The residual that iterations carry along against b - Ax, computed in numpy another way."""
        system = self._system
        carried = system.operator.extract(self._arrays.to_host(system.solver.r))
        error = _norm(residual - carried) / _norm(system.rhs)
        scale = self._norm_of_matrix() * _norm(system.solution) / _norm(system.rhs)
        tolerance = 8 * ROUNDOFF * (10 + self._problem.iterations) * max(1.0, scale)
        return Check(error, tolerance, "the residual b - Ax computed in numpy")

    def _check_solution(self, x: Any, residual: Any) -> List[Check]:
        """The distance to the known solution against two bounds; none where the matrix may be indefinite."""
        least, greatest = self._system.operator.eigenvalues()
        if least <= 0:
            return []
        known = self._system.solution
        error, scale = known - x, _norm(known)
        floor = 64 * ROUNDOFF * (10 + self._problem.iterations) * greatest / least
        bound = _norm(residual) / least / scale + floor
        root = math.sqrt(greatest / least)
        theory = 2 * ((root - 1) / (root + 1)) ** self._problem.iterations
        energy = math.sqrt(max(0.0, float(error @ residual)) / float(known @ self._system.rhs))
        return [
            Check(_norm(error) / scale, bound, "the known solution, by the residual"),
            Check(energy, theory + floor, "the known solution, by the bound for conjugate gradients"),
        ]

    def _check_restart(self) -> Check:
        """The residuals after the first checkpoint, from it once more: the same to the last bit where the
        framework adds up in the same order every time."""
        solver = self._system.solver
        before = solver.residuals().copy()
        solver.resume(self._system.load(self._first_path).state)
        solver.run(self._problem.iterations)
        after = solver.residuals()
        exact = self._arrays.device == "cpu" and self._arrays.runtime in SAME_BITS
        error = float(np.max(np.abs(after - before) / before[0]))
        return Check(error, 0.0 if exact else 1e-9, "the residuals without a restart")

    def _norm_of_matrix(self) -> float:
        return max(abs(each) for each in self._system.operator.eigenvalues())

    def _relative_squares(self) -> Any:
        residuals = self._system.solver.residuals()
        return residuals / residuals[0]

    def facts(self) -> Mapping[str, Any]:
        """The size of the system and some of its residuals, relative to the first."""
        history = np.sqrt(self._relative_squares())
        shown = sorted({round(k) for k in np.linspace(0, len(history) - 1, NUM_SHOWN)})
        facts: Dict[str, Any] = {
            "num_rows": self._problem.num_rows,
            "matrix_bytes": self._problem.matrix_bytes(),
            "iterations_at_once": self._system.at_once,
            "residual_history": [[k, float(history[k])] for k in shown],
        }
        if self._num_checkpoints:
            facts["num_checkpoints"] = self._num_checkpoints
            facts["checkpoint_bytes"] = self._checkpoint_bytes
        return facts

    def notes(self) -> Tuple[str, ...]:
        """What a reader must know who takes the figure for one with checkpoints."""
        every, iterations = self._problem.checkpoint_every, self._problem.iterations
        if every <= iterations:
            return ()
        return (f"no checkpoint is written: checkpoint_every is {every}, a step has {iterations} iterations",)

    def close(self) -> None:
        if self._num_checkpoints and not self._problem.checkpoint and os.path.exists(self._path):
            os.unlink(self._path)


def _number(name: str, args: Mapping[str, Any], parameter: str, least: float = -math.inf) -> float:
    value = args[parameter]
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not (least <= value and abs(value) < math.inf)
    ):
        wanted = "a finite number" if least == -math.inf else f"a number of at least {least}"
        raise ValueError(f"{name}: {parameter} must be {wanted}, not {value!r}")
    return float(value)


def _badness(check: Check) -> float:
    """The error in units of what is allowed; endless for what is not a number."""
    if check.error == 0:
        return 0.0
    if math.isnan(check.error) or check.tolerance == 0:
        return math.inf
    return check.error / check.tolerance


def _norm(x: Any) -> float:
    return float(np.linalg.norm(x))


CG = ConjugateGradient()
