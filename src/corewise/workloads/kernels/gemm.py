"""GEMM: the product of two matrices, what a machine computes at its best.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
import threading
from typing import Any, Callable, Dict, Mapping, Optional, Tuple

import numpy as np

from corewise.runtimes.base import Check
from corewise.workloads.base import Work
from corewise.workloads.kernels.base import DTYPE_BYTES, RUNTIMES, KernelRun, Setup
from corewise.workloads.kernels.host_blocks import over_blocks
from corewise.workloads.kernels.parameters import whole_number, with_defaults
from corewise.workloads.primitives.matmul import product_tolerance
from corewise.workloads.primitives.product_check import checking_vector

UNIT_ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "bfloat16": 2.0**-8, "int8": 0.0}
SHORT_ROUNDOFF = {"tf32": 2.0**-11, "bf16": 2.0**-8}
OUTPUT = {"int8": "int32"}  # others come in their own format
DEFAULT_SIZE = 2048
BLOCK_BYTES = 2**24  # of a matrix that is read back for the check
NUM_ROWS_CHECKED = 16  # of C, each element by itself


@dataclasses.dataclass(frozen=True)
class Gemm:
    """C = A·B with A of m×k and B of k×n."""

    name: str = "gemm"
    summary: str = "product of matrices, m×k by k×n (args.size, or args.m, args.n, args.k)"
    modes: Tuple[str, ...] = ("infer",)
    runtimes: Tuple[str, ...] = RUNTIMES
    concurrent: bool = False

    @property
    def parameters(self) -> Mapping[str, Any]:
        return {"size": DEFAULT_SIZE, "m": None, "n": None, "k": None}

    def dtypes(self, args: Mapping[str, Any]) -> Tuple[str, ...]:
        return tuple(UNIT_ROUNDOFF)

    def work(self, mode: str, args: Mapping[str, Any], dtype: Optional[str] = None) -> Work:
        """2·m·n·k operations; both factors read once, the product written once."""
        m, n, k = self._shape(args)
        return Work(
            flops_per_sample=2.0 * m * n * k,
            bytes_per_sample=float(_stored_bytes(m, n, k, dtype or "float32")),
            num_parameters=0,
        )

    def needed_bytes(self, args: Mapping[str, Any], dtype: str) -> int:
        return _stored_bytes(*self._shape(args), dtype)

    def memory_factors(self, args: Mapping[str, Any], dtype: str) -> Mapping[str, float]:
        """What is drawn is copied for jax, of bfloat16 from float32; tensorflow makes a new C every time."""
        return {"jax": 2.0 if dtype == "bfloat16" else 4 / 3, "tensorflow": 5 / 3}

    def largest_that_fits(self, args: Mapping[str, Any], dtype: str, free_bytes: int) -> Dict[str, Any]:
        """A smaller size beside those of m, n, k that are given; where none fits, or all are given, they
        shrink in proportion."""
        given = {name: int(args[name]) for name in "mnk" if args.get(name) is not None}
        filled = with_defaults(self.name, self.parameters, args)
        if len(given) < 3:
            size = self._largest(lambda n: {**args, "size": n}, int(filled["size"]), dtype, free_bytes)
            if size:
                return {**args, "size": size}
        most = max(given.values(), default=1)

        def shrunk(largest: int) -> Dict[str, Any]:
            return {**args, **{name: max(1, each * largest // most) for name, each in given.items()}}

        largest = self._largest(shrunk, most, dtype, free_bytes)
        return shrunk(largest) if largest else dict(args)

    def _largest(
        self, made: Callable[[int], Mapping[str, Any]], most: int, dtype: str, free_bytes: int
    ) -> int:
        """The largest number up to `most` of which parameters are made that fit; 0 where none is."""
        fits, too_large = 0, most + 1
        while too_large - fits > 1:
            middle = (fits + too_large) // 2
            if self.needed_bytes(made(middle), dtype) <= free_bytes:
                fits = middle
            else:
                too_large = middle
        return fits

    def build(self, setup: Setup) -> KernelRun:
        return GemmRun(setup, *self._shape(setup.args))

    def _shape(self, args: Mapping[str, Any]) -> Tuple[int, int, int]:
        filled = with_defaults(self.name, self.parameters, args)
        size = whole_number(self.name, filled, "size")
        m, n, k = (size if filled[each] is None else whole_number(self.name, filled, each) for each in "mnk")
        return m, n, k


class GemmRun:
    """The matrices of one product; the output's memory is used again in every step."""

    def __init__(self, setup: Setup, m: int, n: int, k: int) -> None:
        self._arrays, self._setup = setup.arrays, setup
        self._a = setup.arrays.normal((m, k), setup.dtype, 2 * setup.seed)
        self._b = setup.arrays.right_factor(setup.arrays.normal((k, n), setup.dtype, 2 * setup.seed + 1))
        self._c = setup.arrays.zeros((m, n), OUTPUT.get(setup.dtype, setup.dtype))
        self._compute = setup.arrays.compiled(lambda a, b, out: setup.arrays.matmul(a, b, out=out))

    def step(self) -> None:
        self._c = self._compute(self._a, self._b, self._c)
        self._arrays.finish(self._c)

    def check(self) -> Check:
        """Freivalds' check, C·x against A·(B·x) for a random vector, and some rows element by element; both
        in float64. The vector meets an error anywhere, unless it drowns in the rounding of a long row."""
        self.step()
        random, x = np.random.default_rng(), checking_vector(self._b.shape[1])
        num_rows = self._a.shape[0]
        rows = {0, num_rows - 1, *random.integers(0, num_rows, NUM_ROWS_CHECKED - 2).tolist()}
        a_rows, c_rows = (
            np.concatenate([self._read(matrix, row, row + 1) for row in sorted(rows)])
            for matrix in (self._a, self._c)
        )
        bx, bx_squared, *of_rows = self._times(self._b, x, x * x, a_rows)
        wanted, size_squared, *_ = self._times(self._a, bx, bx_squared)
        found, *_ = self._times(self._c, x, x * x)
        error = max(_worst(found - wanted, size_squared), _worst(c_rows - of_rows[0], of_rows[1]))
        return Check(error, self._tolerance(), "the product with a random vector, and some rows, in float64")

    def _tolerance(self) -> float:
        length, dtype = self._a.shape[1], self._setup.dtype
        if dtype == "int8":
            return product_tolerance(length, 0.0, UNIT_ROUNDOFF["float64"])  # sums are exact
        stored = UNIT_ROUNDOFF[dtype]
        summed = min(stored, UNIT_ROUNDOFF["float32"])
        stored = max(stored, SHORT_ROUNDOFF.get(self._setup.float32_precision, 0.0))
        return product_tolerance(length, stored, summed)

    def _times(self, matrix: Any, x: Any, x_squared: Any, left: Optional[Any] = None) -> Tuple[Any, ...]:
        """The matrix times x in float64 and the squares of both multiplied, a block of rows at a time; with
        rows at its left, these times the matrix and their squares times its squares too."""
        step = max(1, BLOCK_BYTES // (8 * matrix.shape[1]))
        of_left = [] if left is None else [np.zeros((len(left), matrix.shape[1])) for _ in range(2)]
        adding = threading.Lock()

        def multiplied(start: int) -> Tuple[Any, Any]:
            block = self._read(matrix, start, start + step)
            product = block @ x
            parts = [] if left is None else [left[:, start : start + step] @ block]
            block *= block  # ours: `to_host` has made it
            if left is not None:
                parts.append(left[:, start : start + step] ** 2 @ block)
            with adding:
                for total, part in zip(of_left, parts):
                    total += part
            return product, block @ x_squared

        starts = range(0, matrix.shape[0], step)
        products, squares = zip(*over_blocks(multiplied, starts, self._arrays.device))
        return np.concatenate(products), np.concatenate(squares), *of_left

    def _read(self, matrix: Any, start: int, stop: int) -> Any:
        return self._arrays.to_host(matrix[start:stop]).astype(np.float64, copy=False)

    def facts(self) -> Mapping[str, Any]:
        return {"output_dtype": OUTPUT.get(self._setup.dtype, self._setup.dtype)}

    def close(self) -> None:
        self._a = self._b = self._c = self._compute = None


def _worst(differences: Any, sizes_squared: Any) -> float:
    """The largest difference over the size of what was added up; where that is nothing, none is allowed."""
    with np.errstate(divide="ignore", invalid="ignore"):
        errors = np.where(differences == 0, 0.0, np.abs(differences) / np.sqrt(sizes_squared))
    return float(np.max(errors))


def _stored_bytes(m: int, n: int, k: int, dtype: str) -> int:
    return (m * k + k * n) * DTYPE_BYTES[dtype] + m * n * DTYPE_BYTES[OUTPUT.get(dtype, dtype)]


GEMM = Gemm()
