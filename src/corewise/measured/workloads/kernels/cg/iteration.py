"""Conjugate gradients on any framework's arrays.

Measured side: standard library and numpy only, Python 3.9. An iteration never waits for the device: its
scalars stay there, and those of several iterations are read together.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Callable, Dict, List, Optional, Tuple

import numpy as np

from corewise.measured.workloads.kernels.cg.operators import Operator

# Iterations in one compiled function.
MAX_ITERATIONS_AT_ONCE = 10
# Iterations in one recording of GPU kernels; a longer recording costs nothing.
MAX_ITERATIONS_REPLAYED = 50
# Added to denominators to avoid 0 / 0 when the residual is zero; it changes no other number.
TINY = 1e-300


class SolverBreakdown(ArithmeticError):
    """The matrix is not positive definite, or values exceed the range of float64."""


@dataclasses.dataclass(frozen=True)
class SolverState:
    """The complete state of a solve in host memory, sufficient to resume it.

    `residuals` holds r'r before the first iteration and after each one.
    """

    iteration: int
    x: Any
    r: Any
    p: Any
    residuals: Any


Save = Callable[[SolverState], None]


def choose_iterations_at_once(num_iterations: int, every: int, most: int = MAX_ITERATIONS_AT_ONCE) -> int:
    """Choose how many iterations to compile together, so that they end where a checkpoint is due."""
    whole = every or num_iterations
    fitting = [count for count in range(1, most + 1) if whole % count == 0]
    return fitting[-1] if every or fitting[-1] > 1 else min(most, max(1, num_iterations))


class Solver:
    """The solver's vectors on the device, and the iteration."""

    def __init__(self, arrays: Any, operator: Operator, rhs: Any, at_once: int) -> None:
        self._arrays, self._operator, self._at_once = arrays, operator, at_once
        self._rhs = arrays.from_host(rhs)
        self.set_divided(arrays.device != "cpu")
        self._first_rr, self._rr = (arrays.compute_dot(self._rhs, self._rhs), arrays.create_zeros((), "float64"))
        self.iteration = 0
        # Ranks that solve together stop together.
        self.agree: Callable[[bool], bool] = bool
        # Values of r'r that were read so far, and the scalars of iterations that are still on the device.
        self._read = np.zeros(0)
        self._unread: List[Tuple[int, Any]] = []

    def set_divided(self, divided: bool) -> None:
        """Choose whether the direction is stored divided by r'r, which needs no kernels for scalars.

        If it is divided and arrays are written in place, -x and r are rows of one array, and so are the
        direction and its product. One kernel then updates both rows.
        """
        self.divided = divided
        self._compiled: Dict[int, Callable[..., Any]] = {}
        length = self._operator.length
        self._pairs: Tuple[Any, ...] = ()
        if divided and self._arrays.writes_in_place:
            self._pairs = tuple(self._arrays.create_zeros((2, length), "float64") for _ in range(2))
            vectors = [pair[row] for pair in self._pairs for row in range(2)]
        else:
            vectors = [self._arrays.create_zeros((length,), "float64") for _ in range(4)]
        self._x, self.r, self.p, self._q = vectors

    @property
    def x(self) -> Any:
        """The current solution, as a device array."""
        return self._arrays.scale(-1.0, self._x) if self._pairs else self._x

    def start(self) -> None:
        """Start at x = 0."""
        arrays = self._arrays
        self._x = arrays.scale(0.0, self._rhs, out=self._x)
        self.r = arrays.copy(self._rhs, out=self.r)
        if self.divided:
            self.p = arrays.scale(1 / self._first_rr, self._rhs, out=self.p)
        else:
            self.p = arrays.copy(self._rhs, out=self.p)
        self._rr = arrays.copy(self._first_rr, out=self._rr)
        self._set_progress(0, None)

    def resume(self, state: SolverState) -> None:
        """Continue from the state of another solve of this system."""
        arrays = self._arrays
        x = -state.x if self._pairs else state.x
        self._x, self.r, self.p = (
            arrays.copy(arrays.from_host(source), out=target)
            for source, target in ((x, self._x), (state.r, self.r), (state.p, self.p))
        )
        self._rr = arrays.copy(arrays.from_host(np.array(state.residuals[-1])), out=self._rr)
        self._set_progress(state.iteration, np.array(state.residuals))

    def _set_progress(self, iteration: int, residuals: Optional[Any]) -> None:
        self.iteration, self._unread = iteration, []
        self._read = np.zeros(0) if residuals is None else residuals

    def run(self, num_iterations: int, every: int = 0, save: Optional[Save] = None, tolerance: float = 0.0) -> None:
        """Run until `num_iterations` are done or the relative residual reaches `tolerance`.

        `save` receives the state every `every` iterations. Raises SolverBreakdown, at the latest at the end.
        """
        while self.iteration < num_iterations:
            self._run_iterations(min(self._at_once, num_iterations - self.iteration))
            if tolerance and self.agree(self.read_residuals()[-1] <= tolerance**2 * self.read_residuals()[0]):
                break
            if save and every and self.iteration % every == 0:
                save(self.capture_state())
        self._arrays.finish(self._x, self.r)
        self.read_residuals()

    def read_residuals(self) -> Any:
        """Wait for the device and return r'r at the start and after each iteration; raise SolverBreakdown."""
        if not len(self._read):
            self._read = np.array([float(self._arrays.to_host(self._first_rr))])
        fetched, self._unread = self._fetch_unread(), []
        for start, numbers in fetched:
            residuals, curvatures = np.split(numbers, 2)
            around = np.append(self._read[-1], residuals)
            if self.divided:
                with np.errstate(all="ignore"):
                    curvatures = curvatures * around[:-1] ** 2
            num_sound, reason = _count_sound_iterations(start, around, curvatures)
            self._read = np.concatenate([self._read, residuals[:num_sound]])
            if reason:
                raise SolverBreakdown(reason)
        return self._read

    def _fetch_unread(self) -> List[Tuple[int, Any]]:
        """Copy the scalars of all unread iterations to the host, with the iteration before each group."""
        if not self._unread:
            return []
        starts, scalars = zip(*self._unread)
        joined = scalars[0] if len(scalars) == 1 else self._arrays.concatenate(list(scalars), axis=0)
        ends = np.cumsum([2 * count for count in np.diff([*starts, self.iteration])])
        return list(zip(starts, np.split(self._arrays.to_host(joined), ends[:-1])))

    def get_known_residuals(self) -> Any:
        """Return the values of r'r that were read so far, also after a breakdown."""
        return self._read

    def capture_state(self) -> SolverState:
        """Copy the state to the host."""
        residuals = self.read_residuals()
        x, r, p = (self._arrays.to_host(each) for each in (self.x, self.r, self.p))
        return SolverState(self.iteration, x, r, p, residuals)

    def _run_iterations(self, count: int) -> None:
        if count not in self._compiled:
            iterations = self._build_iterations(count)
            self._compiled[count] = self._arrays.compile(iterations) if self._operator.is_compilable else iterations
        self._x, self.r, self.p, self._q, self._rr, numbers = self._compiled[count](
            self._operator.data, self._x, self.r, self.p, self._q, self._rr
        )
        # The next replay overwrites its output, so the scalars are copied.
        self._unread.append((self.iteration, self._arrays.copy(numbers)))
        self.iteration += count

    def _build_iterations(self, count: int) -> Callable[..., Any]:
        """Build a function of `count` iterations; it also returns r'r of each, then the curvature of each."""
        one = self._iterate_divided if self.divided else self._iterate

        def run(data: Any, x: Any, r: Any, p: Any, q: Any, rr: Any) -> Any:
            rr_buffer, residuals, curvatures = rr, [], []
            for _ in range(count):
                x, r, p, q, rr, curvature = one(data, x, r, p, q, rr)
                residuals.append(rr)
                curvatures.append(curvature)
            last_rr = rr_buffer if self.divided else self._arrays.copy(rr, out=rr_buffer)
            return x, r, p, q, last_rr, self._arrays.stack(residuals + curvatures)

        return run

    def _iterate(self, data: Any, x: Any, r: Any, p: Any, q: Any, rr: Any) -> Tuple[Any, ...]:
        q, curvature = self._operator.compute_product(data, p, q)
        step = rr / (curvature + TINY)
        r, rr_next = self._update_residual(r, step, q)
        x, p = self._update_direction(x, step, p, r, rr_next / (rr + TINY))
        return x, r, p, q, rr_next, curvature

    def _iterate_divided(self, data: Any, x: Any, r: Any, d: Any, q: Any, _: Any) -> Tuple[Any, ...]:
        """Run the iteration with d = p / r'r: the step is 1 / d'Ad and the next d is d + r / r'r."""
        arrays = self._arrays
        q, curvature = self._operator.compute_product(data, d, q)
        if self._pairs:
            of_steps, of_directions = self._pairs
            arrays.add_quotient(of_steps, of_directions, curvature, sign=-1.0, out=of_steps)
        else:
            r = arrays.add_quotient(r, q, curvature, sign=-1.0, out=r)
            x = arrays.add_quotient(x, d, curvature, out=x)
        rr = arrays.compute_dot(r, r)
        return x, r, arrays.add_quotient(d, r, rr, out=d), q, rr, curvature

    def _update_residual(self, r: Any, step: Any, q: Any) -> Tuple[Any, Any]:
        """Return r - step·q and its squared norm."""
        arrays, blocks = self._arrays, self._operator.blocks
        if len(blocks) == 1:
            r = arrays.subtract_scaled(r, step, q, out=r)
            return r, arrays.compute_dot(r, r)
        total: Any = None
        for block in blocks:
            part = arrays.subtract_scaled(r[block], step, q[block], out=r[block])
            square = arrays.compute_dot(part, part)
            total = square if total is None else total + square
        return r, total

    def _update_direction(self, x: Any, step: Any, p: Any, r: Any, share: Any) -> Tuple[Any, Any]:
        """Return x + step·p and the next direction r + share·p."""
        arrays, blocks = self._arrays, self._operator.blocks
        if len(blocks) == 1:
            x = arrays.add_scaled(x, step, p, out=x)
            return x, arrays.add_scaled(r, share, p, out=p)
        # Block by block, p is still in the cache when it is read again.
        for block in blocks:
            arrays.add_scaled(x[block], step, p[block], out=x[block])
            arrays.add_scaled(r[block], share, p[block], out=p[block])
        return x, p


def _count_sound_iterations(start: int, residuals: Any, curvatures: Any) -> Tuple[int, str]:
    """Return how many iterations are valid and why the next is not.

    `residuals` starts with the value before the first of these iterations.
    """
    for number, (before, curvature, after) in enumerate(zip(residuals, curvatures, residuals[1:])):
        iteration = start + number + 1
        if before < TINY and not curvature > 0:
            # The system is solved: the iteration changed nothing.
            if math.isfinite(after):
                continue
            return (number, f"the residual is zero after {iteration - 1} iterations: request no more iterations")
        broke_down = f"conjugate gradients broke down in iteration {iteration}: p'Ap = {curvature:.6g}"
        if not curvature > 0 and math.isfinite(curvature):
            return number, f"{broke_down}, so the matrix is not positive definite"
        if not (math.isfinite(curvature) and math.isfinite(after)):
            return number, f"{broke_down}, r'r = {after:.6g}: values exceed the range of float64"
    return len(curvatures), ""
