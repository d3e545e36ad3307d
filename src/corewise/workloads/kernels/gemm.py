"""GEMM: the product of two matrices, what a machine computes at its best.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Dict, Mapping, Optional, Tuple

import numpy as np

from corewise.runtimes.base import Check
from corewise.workloads.base import Work
from corewise.workloads.kernels.base import DTYPE_BYTES, RUNTIMES, KernelRun, Setup
from corewise.workloads.kernels.parameters import whole_number, with_defaults
from corewise.workloads.primitives.matmul import product_tolerance

UNIT_ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "bfloat16": 2.0**-8, "int8": 0.0}
SHORT_ROUNDOFF = {"tf32": 2.0**-11, "bf16": 2.0**-8}
OUTPUT = {"int8": "int32"}  # others come in their own format
DEFAULT_SIZE = 2048
BLOCK_BYTES = 2**27  # of a matrix that is read back for the check


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

    def largest_that_fits(self, args: Mapping[str, Any], dtype: str, free_bytes: int) -> Dict[str, Any]:
        """The same proportions, smaller."""
        m, n, k = self._shape(args)
        shrink = math.sqrt(free_bytes / _stored_bytes(m, n, k, dtype))
        m, n, k = (int(shrink * each) for each in (m, n, k))
        if min(m, n, k) < 1:
            return dict(args)
        named = {name: value for name, value in zip("mnk", (m, n, k)) if args.get(name) is not None}
        return {**args, **named} if len(named) == 3 else {**args, **named, "size": max(m, n, k)}

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
        self._b = setup.arrays.normal((k, n), setup.dtype, 2 * setup.seed + 1)
        self._c = setup.arrays.zeros((m, n), OUTPUT.get(setup.dtype, setup.dtype))
        self._compute = setup.arrays.compiled(lambda a, b, out: setup.arrays.matmul(a, b, out=out))

    def step(self) -> None:
        self._c = self._compute(self._a, self._b, self._c)
        self._arrays.finish(self._c)

    def check(self) -> Check:
        """Freivalds' check: C·x against A·(B·x) in float64, for a random vector."""
        self.step()
        x = np.random.default_rng().uniform(-1, 1, self._b.shape[1])
        bx, bx_squared = self._times(self._b, x)
        wanted, size_squared = self._times(self._a, bx, bx_squared)
        found, _ = self._times(self._c, x)
        errors = np.abs(found - wanted) / np.sqrt(size_squared)
        stored = UNIT_ROUNDOFF[self._setup.dtype]
        summed = min(stored, UNIT_ROUNDOFF["float32"])
        stored = max(stored, SHORT_ROUNDOFF.get(self._setup.float32_precision, 0.0))
        tolerance = product_tolerance(self._a.shape[1], stored, summed)
        if self._setup.dtype == "int8":
            tolerance = product_tolerance(self._a.shape[1], 0.0, UNIT_ROUNDOFF["float64"])  # sums are exact
        return Check(float(np.max(errors)), tolerance, "the product with a random vector in float64")

    def _times(self, matrix: Any, x: Any, x_squared: Optional[Any] = None) -> Tuple[Any, Any]:
        """The matrix times x in float64, and the squares of both multiplied; a block of rows at a time."""
        x_squared = x * x if x_squared is None else x_squared
        rows = max(1, BLOCK_BYTES // (8 * matrix.shape[1]))
        products, squares = [], []
        for start in range(0, matrix.shape[0], rows):
            block = self._arrays.to_host(matrix[start : start + rows]).astype(np.float64)
            products.append(block @ x)
            block *= block
            squares.append(block @ x_squared)
        return np.concatenate(products), np.concatenate(squares)

    def facts(self) -> Mapping[str, Any]:
        return {"output_dtype": OUTPUT.get(self._setup.dtype, self._setup.dtype)}

    def close(self) -> None:
        self._a = self._b = self._c = self._compute = None


def _stored_bytes(m: int, n: int, k: int, dtype: str) -> int:
    return (m * k + k * n) * DTYPE_BYTES[dtype] + m * n * DTYPE_BYTES[OUTPUT.get(dtype, dtype)]


GEMM = Gemm()
