"""The GEMM workload: the product of two matrices, which reaches the highest flop rates of a machine.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
import threading
from typing import Any, Callable, Dict, Mapping, Optional, Tuple

import numpy as np

from corewise.measured.runtimes.base import Check
from corewise.measured.workloads.base import Work
from corewise.measured.workloads.kernels.host_blocks import map_blocks
from corewise.measured.workloads.kernels.kernel import DTYPE_BYTES, RUNTIMES, Kernel, KernelRun, KernelSetup
from corewise.measured.workloads.kernels.kernel_parameters import fill_defaults, read_whole_number
from corewise.measured.workloads.primitives.freivalds_check import draw_check_vector
from corewise.measured.workloads.primitives.matmul import compute_product_tolerance

UNIT_ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "bfloat16": 2.0**-8, "int8": 0.0}
SHORT_ROUNDOFF = {"tf32": 2.0**-11, "bf16": 2.0**-8}
# Output formats that differ from the input format.
OUTPUT_DTYPE = {"int8": "int32"}
DEFAULT_SIZE = 2048
# Bytes of a matrix that the check reads back at a time.
BLOCK_BYTES = 2**24
# Rows of C that are checked element by element.
NUM_ROWS_CHECKED = 16


@dataclasses.dataclass(frozen=True)
class Gemm(Kernel):
    """C = A·B with A of m×k and B of k×n."""

    name: str = "gemm"
    summary: str = "product of matrices, m×k by k×n (args.size, or args.m, args.n, args.k)"
    modes: Tuple[str, ...] = ("infer",)
    runtimes: Tuple[str, ...] = RUNTIMES
    concurrent: bool = False

    @property
    def parameters(self) -> Mapping[str, Any]:
        return {"size": DEFAULT_SIZE, "m": None, "n": None, "k": None}

    def list_dtypes(self, args: Mapping[str, Any]) -> Tuple[str, ...]:
        return tuple(UNIT_ROUNDOFF)

    def count_work(self, mode: str, args: Mapping[str, Any], dtype: Optional[str] = None) -> Work:
        """Count 2·m·n·k flops; both factors are read once and the product is written once."""
        m, n, k = self._read_shape(args)
        return Work(
            flops_per_sample=2.0 * m * n * k,
            bytes_per_sample=float(_count_stored_bytes(m, n, k, dtype or "float32")),
            num_parameters=0,
        )

    def estimate_memory_bytes(self, args: Mapping[str, Any], dtype: str) -> int:
        return _count_stored_bytes(*self._read_shape(args), dtype)

    def estimate_memory_factors(self, args: Mapping[str, Any], dtype: str) -> Mapping[str, float]:
        """Return factors: jax copies random numbers (bfloat16 from float32), tensorflow allocates a new C."""
        return {"jax": 2.0 if dtype == "bfloat16" else 4 / 3, "tensorflow": 5 / 3}

    def fit_to_memory(self, args: Mapping[str, Any], dtype: str, free_bytes: int) -> Dict[str, Any]:
        """Reduce `size`; if that is not enough, or m, n and k are set, shrink them in proportion."""
        given = {name: int(args[name]) for name in "mnk" if args.get(name) is not None}
        filled = fill_defaults(self.name, self.parameters, args)
        if len(given) < 3:
            size = self._find_largest(lambda n: {**args, "size": n}, int(filled["size"]), dtype, free_bytes)
            if size:
                return {**args, "size": size}
        most = max(given.values(), default=1)

        def shrink(largest: int) -> Dict[str, Any]:
            return {**args, **{name: max(1, each * largest // most) for name, each in given.items()}}

        largest = self._find_largest(shrink, most, dtype, free_bytes)
        return shrink(largest) if largest else dict(args)

    def _find_largest(
        self, build_args: Callable[[int], Mapping[str, Any]], most: int, dtype: str, free_bytes: int
    ) -> int:
        """Return the largest number up to `most` whose parameters fit; 0 if none does."""
        fits, too_large = 0, most + 1
        while too_large - fits > 1:
            middle = (fits + too_large) // 2
            if self.estimate_memory_bytes(build_args(middle), dtype) <= free_bytes:
                fits = middle
            else:
                too_large = middle
        return fits

    def build(self, setup: KernelSetup) -> KernelRun:
        return GemmRun(setup, *self._read_shape(setup.args))

    def _read_shape(self, args: Mapping[str, Any]) -> Tuple[int, int, int]:
        filled = fill_defaults(self.name, self.parameters, args)
        size = read_whole_number(self.name, filled, "size")
        m, n, k = (size if filled[each] is None else read_whole_number(self.name, filled, each) for each in "mnk")
        return m, n, k


class GemmRun(KernelRun):
    """The matrices of one product; every step reuses the memory of the output."""

    def __init__(self, setup: KernelSetup, m: int, n: int, k: int) -> None:
        self._arrays, self._setup = setup.arrays, setup
        self._a = setup.arrays.draw_normal((m, k), setup.dtype, 2 * setup.seed)
        self._b = setup.arrays.prepare_right_factor(setup.arrays.draw_normal((k, n), setup.dtype, 2 * setup.seed + 1))
        self._c = setup.arrays.create_zeros((m, n), OUTPUT_DTYPE.get(setup.dtype, setup.dtype))
        self._compute = setup.arrays.compile(lambda a, b, out: setup.arrays.matmul(a, b, out=out))

    def step(self) -> None:
        self._c = self._compute(self._a, self._b, self._c)
        self._arrays.finish(self._c)

    def check(self) -> Check:
        """Compare C·x with A·(B·x) for a random vector (Freivalds), and some rows, in float64.

        The vector detects an error anywhere unless the rounding of a long row hides it.
        """
        self.step()
        random, x = np.random.default_rng(), draw_check_vector(self._b.shape[1])
        num_rows = self._a.shape[0]
        rows = {0, num_rows - 1, *random.integers(0, num_rows, NUM_ROWS_CHECKED - 2).tolist()}
        a_rows, c_rows = (
            np.concatenate([self._read(matrix, row, row + 1) for row in sorted(rows)]) for matrix in (self._a, self._c)
        )
        bx, bx_squared, *row_products = self._compute_products(self._b, x, x * x, a_rows)
        expected, size_squared, *_ = self._compute_products(self._a, bx, bx_squared)
        actual, *_ = self._compute_products(self._c, x, x * x)
        error = max(
            _find_worst_error(actual - expected, size_squared),
            _find_worst_error(c_rows - row_products[0], row_products[1]),
        )
        return Check(error, self._compute_tolerance(), "the product with a random vector, and some rows, in float64")

    def _compute_tolerance(self) -> float:
        length, dtype = self._a.shape[1], self._setup.dtype
        if dtype == "int8":
            # Integer sums are exact.
            return compute_product_tolerance(length, 0.0, UNIT_ROUNDOFF["float64"])
        stored = UNIT_ROUNDOFF[dtype]
        summed = min(stored, UNIT_ROUNDOFF["float32"])
        stored = max(stored, SHORT_ROUNDOFF.get(self._setup.float32_precision, 0.0))
        return compute_product_tolerance(length, stored, summed)

    def _compute_products(self, matrix: Any, x: Any, x_squared: Any, left: Optional[Any] = None) -> Tuple[Any, ...]:
        """Multiply the matrix with x in float64, and their squares, a block of rows at a time.

        If `left` is given, also multiply it with the matrix, and their squares.
        """
        step = max(1, BLOCK_BYTES // (8 * matrix.shape[1]))
        left_products = [] if left is None else [np.zeros((len(left), matrix.shape[1])) for _ in range(2)]
        adding = threading.Lock()

        def process_block(start: int) -> Tuple[Any, Any]:
            block = self._read(matrix, start, start + step)
            product = block @ x
            parts = [] if left is None else [left[:, start : start + step] @ block]
            # `to_host` returned a copy, so it may be overwritten.
            block *= block
            if left is not None:
                parts.append(left[:, start : start + step] ** 2 @ block)
            with adding:
                for total, part in zip(left_products, parts):
                    total += part
            return product, block @ x_squared

        starts = range(0, matrix.shape[0], step)
        products, squares = zip(*map_blocks(process_block, starts, self._arrays.device))
        return np.concatenate(products), np.concatenate(squares), *left_products

    def _read(self, matrix: Any, start: int, stop: int) -> Any:
        return self._arrays.to_host(matrix[start:stop]).astype(np.float64, copy=False)

    def read_facts(self) -> Mapping[str, Any]:
        return {"output_dtype": OUTPUT_DTYPE.get(self._setup.dtype, self._setup.dtype)}

    def close(self) -> None:
        self._a = self._b = self._c = self._compute = None


def _find_worst_error(differences: Any, sizes_squared: Any) -> float:
    """Return the largest difference relative to the size of the sum; a zero sum must be exact."""
    with np.errstate(divide="ignore", invalid="ignore"):
        errors = np.where(differences == 0, 0.0, np.abs(differences) / np.sqrt(sizes_squared))
    return float(np.max(errors))


def _count_stored_bytes(m: int, n: int, k: int, dtype: str) -> int:
    return (m * k + k * n) * DTYPE_BYTES[dtype] + m * n * DTYPE_BYTES[OUTPUT_DTYPE.get(dtype, dtype)]


GEMM = Gemm()
