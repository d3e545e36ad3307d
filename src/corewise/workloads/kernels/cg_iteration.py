"""Conjugate gradients on any framework's arrays.

Measured side: standard library and numpy only, Python 3.9. Nothing in an iteration waits for the device: its
numbers stay there, and those of several iterations are read together.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Callable, Dict, List, Optional, Tuple

import numpy as np

from corewise.workloads.kernels.cg_operators import Operator

MOST_AT_ONCE = 10  # iterations in one compiled function
MOST_REPLAYED = 50  # where it is a recording of kernels, which costs nothing to make longer
TINY = 1e-300  # keeps 0 / 0 from being asked once the residual is nothing; changes no other number


class Breakdown(ArithmeticError):
    """The matrix is not positive definite, or numbers have left the range of float64."""


@dataclasses.dataclass(frozen=True)
class State:
    """Where a solve stands after so many iterations, in host memory: enough to go on as if never stopped."""

    iteration: int
    x: Any
    r: Any
    p: Any
    residuals: Any  # r'r before the first iteration and after each


Save = Callable[[State], None]


def iterations_at_once(num_iterations: int, every: int, most: int = MOST_AT_ONCE) -> int:
    """How many iterations are compiled together: they end wherever a checkpoint is due."""
    whole = every or num_iterations
    fitting = [count for count in range(1, most + 1) if whole % count == 0]
    return fitting[-1] if every or fitting[-1] > 1 else min(most, max(1, num_iterations))


class Solver:
    """A system on the device, with the vectors of its solution."""

    def __init__(self, arrays: Any, operator: Operator, rhs: Any, at_once: int) -> None:
        self._arrays, self._operator, self._at_once = arrays, operator, at_once
        self._rhs = arrays.from_host(rhs)
        self.divide(arrays.device != "cpu")
        self._first_rr, self._rr = arrays.dot(self._rhs, self._rhs), arrays.zeros((), "float64")
        self.iteration = 0
        self._read = np.zeros(0)  # r'r so far
        self._unread: List[Tuple[int, Any]] = []  # numbers of iterations that still lie on the device

    def divide(self, divided: bool) -> None:
        """Keep the direction divided by r'r or not: divided, numbers by themselves take no kernels.

        Divided and in place, -x and r are rows of one array, as are the direction and its product: both take
        their step in one kernel.
        """
        self.divided = divided
        self._compiled: Dict[int, Callable[..., Any]] = {}
        length = self._operator.length
        self._pairs: Tuple[Any, ...] = ()
        if divided and self._arrays.writes_in_place:
            self._pairs = tuple(self._arrays.zeros((2, length), "float64") for _ in range(2))
            vectors = [pair[row] for pair in self._pairs for row in range(2)]
        else:
            vectors = [self._arrays.zeros((length,), "float64") for _ in range(4)]
        self._x, self.r, self.p, self._q = vectors

    @property
    def x(self) -> Any:
        """The solution so far, as an array of the device."""
        return self._arrays.scale(-1.0, self._x) if self._pairs else self._x

    def start(self) -> None:
        """Begin at x = 0."""
        arrays = self._arrays
        self._x = arrays.scale(0.0, self._rhs, out=self._x)
        self.r = arrays.copy(self._rhs, out=self.r)
        if self.divided:
            self.p = arrays.scale(1 / self._first_rr, self._rhs, out=self.p)
        else:
            self.p = arrays.copy(self._rhs, out=self.p)
        self._rr = arrays.copy(self._first_rr, out=self._rr)
        self._begin(0, None)

    def resume(self, state: State) -> None:
        """Begin where another solve of this system stood."""
        arrays = self._arrays
        x = -state.x if self._pairs else state.x
        self._x, self.r, self.p = (
            arrays.copy(arrays.from_host(there), out=here)
            for there, here in ((x, self._x), (state.r, self.r), (state.p, self.p))
        )
        self._rr = arrays.copy(arrays.from_host(np.array(state.residuals[-1])), out=self._rr)
        self._begin(state.iteration, np.array(state.residuals))

    def _begin(self, iteration: int, residuals: Optional[Any]) -> None:
        self.iteration, self._unread = iteration, []
        self._read = np.zeros(0) if residuals is None else residuals

    def run(
        self, num_iterations: int, every: int = 0, save: Optional[Save] = None, tolerance: float = 0.0
    ) -> None:
        """Iterate until so many iterations are done or, with a tolerance, the residual is that small a part.

        Every `every` iterations `save` gets the state. Raises Breakdown, at the latest when all is done.
        """
        while self.iteration < num_iterations:
            self._advance(min(self._at_once, num_iterations - self.iteration))
            if tolerance and self.residuals()[-1] <= tolerance**2 * self.residuals()[0]:
                break
            if save and every and self.iteration % every == 0:
                save(self.state())
        self._arrays.finish(self._x, self.r)
        self.residuals()

    def residuals(self) -> Any:
        """r'r before the first iteration and after each; reading it waits for them. Raises Breakdown."""
        if not len(self._read):
            self._read = np.array([float(self._arrays.to_host(self._first_rr))])
        fetched, self._unread = self._fetched(), []
        for start, numbers in fetched:
            residuals, curvatures = np.split(numbers, 2)
            around = np.append(self._read[-1], residuals)
            if self.divided:
                with np.errstate(all="ignore"):
                    curvatures = curvatures * around[:-1] ** 2
            num_sound, reason = _sound(start, around, curvatures)
            self._read = np.concatenate([self._read, residuals[:num_sound]])
            if reason:
                raise Breakdown(reason)
        return self._read

    def _fetched(self) -> List[Tuple[int, Any]]:
        """The numbers of unread iterations with the iteration before them, brought to the host together."""
        if not self._unread:
            return []
        starts, there = zip(*self._unread)
        joined = there[0] if len(there) == 1 else self._arrays.concatenate(list(there), axis=0)
        ends = np.cumsum([2 * count for count in np.diff([*starts, self.iteration])])
        return list(zip(starts, np.split(self._arrays.to_host(joined), ends[:-1])))

    def known_residuals(self) -> Any:
        """What has been read of `residuals` so far, also after a breakdown."""
        return self._read

    def state(self) -> State:
        residuals = self.residuals()
        x, r, p = (self._arrays.to_host(each) for each in (self.x, self.r, self.p))
        return State(self.iteration, x, r, p, residuals)

    def _advance(self, count: int) -> None:
        if count not in self._compiled:
            self._compiled[count] = self._arrays.compiled(self._iterations(count))
        self._x, self.r, self.p, self._q, self._rr, numbers = self._compiled[count](
            self._operator.data, self._x, self.r, self.p, self._q, self._rr
        )
        self._unread.append((self.iteration, self._arrays.copy(numbers)))  # a replay overwrites its own
        self.iteration += count

    def _iterations(self, count: int) -> Callable[..., Any]:
        """A function of so many iterations; it also returns r'r of each, then the curvature of each."""
        one = self._divided_iteration if self.divided else self._iteration

        def run(data: Any, x: Any, r: Any, p: Any, q: Any, rr: Any) -> Any:
            given, residuals, curvatures = rr, [], []
            for _ in range(count):
                x, r, p, q, rr, curvature = one(data, x, r, p, q, rr)
                residuals.append(rr)
                curvatures.append(curvature)
            kept = given if self.divided else self._arrays.copy(rr, out=given)
            return x, r, p, q, kept, self._arrays.stack(residuals + curvatures)

        return run

    def _iteration(self, data: Any, x: Any, r: Any, p: Any, q: Any, rr: Any) -> Tuple[Any, ...]:
        q, curvature = self._operator.product(data, p, q)
        step = rr / (curvature + TINY)
        r, rr_next = self._shorten(r, step, q)
        x, p = self._turn(x, step, p, r, rr_next / (rr + TINY))
        return x, r, p, q, rr_next, curvature

    def _divided_iteration(self, data: Any, x: Any, r: Any, d: Any, q: Any, _: Any) -> Tuple[Any, ...]:
        """The same iteration with d = p / r'r: then the step is 1 / d'Ad and the next d is d + r / r'r."""
        arrays = self._arrays
        q, curvature = self._operator.product(data, d, q)
        if self._pairs:
            of_steps, of_directions = self._pairs
            arrays.add_quotient(of_steps, of_directions, curvature, sign=-1.0, out=of_steps)
        else:
            r = arrays.add_quotient(r, q, curvature, sign=-1.0, out=r)
            x = arrays.add_quotient(x, d, curvature, out=x)
        rr = arrays.dot(r, r)
        return x, r, arrays.add_quotient(d, r, rr, out=d), q, rr, curvature

    def _shorten(self, r: Any, step: Any, q: Any) -> Tuple[Any, Any]:
        """r - step·q and its square."""
        arrays, blocks = self._arrays, self._operator.blocks
        if len(blocks) == 1:
            r = arrays.subtract_scaled(r, step, q, out=r)
            return r, arrays.dot(r, r)
        total: Any = None
        for block in blocks:
            part = arrays.subtract_scaled(r[block], step, q[block], out=r[block])
            square = arrays.dot(part, part)
            total = square if total is None else total + square
        return r, total

    def _turn(self, x: Any, step: Any, p: Any, r: Any, share: Any) -> Tuple[Any, Any]:
        """x + step·p, and the next direction r + share·p."""
        arrays, blocks = self._arrays, self._operator.blocks
        if len(blocks) == 1:
            x = arrays.add_scaled(x, step, p, out=x)
            return x, arrays.add_scaled(r, share, p, out=p)
        for block in blocks:  # p is still in the cache when it is read again
            arrays.add_scaled(x[block], step, p[block], out=x[block])
            arrays.add_scaled(r[block], share, p[block], out=p[block])
        return x, p


def _sound(start: int, residuals: Any, curvatures: Any) -> Tuple[int, str]:
    """How many iterations went well and why the next did not; `residuals` begins with that of before."""
    for number, (before, curvature, after) in enumerate(zip(residuals, curvatures, residuals[1:])):
        iteration = start + number + 1
        if before < TINY and not curvature > 0:
            if math.isfinite(after):
                continue  # solved: nothing is left to do, and nothing was done
            return number, f"the residual is zero after {iteration - 1} iterations: ask for no more of them"
        broke_down = f"conjugate gradients broke down in iteration {iteration}: p'Ap = {curvature:.6g}"
        if not curvature > 0 and math.isfinite(curvature):
            return number, f"{broke_down}, so the matrix is not positive definite"
        if not (math.isfinite(curvature) and math.isfinite(after)):
            return number, f"{broke_down}, r'r = {after:.6g}: numbers have left the range of float64"
    return len(curvatures), ""
