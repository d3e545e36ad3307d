"""NumPy arrays for kernels.

Measured side: standard library and numpy only, Python 3.9. Elementwise operations of NumPy use one thread;
matrix products use the threads of the BLAS.
"""

from __future__ import annotations

from typing import Any, Callable, Optional, Sequence, Tuple

import numpy as np

from corewise.measured.runtimes.arrays.random_fill import fill_normal
from corewise.measured.runtimes.base import Infeasible
from corewise.measured.runtimes.devices.host_memory import read_free_host_bytes
from corewise.measured.runtimes.numpy.sparse import build_csr, multiply_csr

# Size of a block in fused operations: intermediate results stay in the second-level cache.
BLOCK_BYTES = 2**19


class NumpyArrays:
    """NumPy in host memory."""

    runtime = "numpy"
    device = "cpu"
    writes_in_place = True
    memory_factor = 1.0
    threads_elementwise = False
    dtypes: Tuple[str, ...] = ("float64", "float32", "int8", "int32", "complex64", "complex128")

    def __init__(self) -> None:
        self._block = np.empty(0)

    def create_empty(self, shape: Tuple[int, ...], dtype: str) -> Any:
        return np.empty(shape, self._check_dtype(dtype))

    def create_zeros(self, shape: Tuple[int, ...], dtype: str) -> Any:
        array = self.create_empty(shape, dtype)
        # Write the zeros: np.zeros would defer page faults to the first timed pass.
        array.fill(0)
        return array

    def draw_normal(self, shape: Tuple[int, ...], dtype: str, seed: int) -> Any:
        # The thread that computes touches the pages first.
        array = self.create_zeros(shape, dtype)
        fill_normal(array, seed)
        return array

    def from_host(self, array: Any) -> Any:
        return np.array(array)

    def to_host(self, array: Any) -> Any:
        return np.array(array)

    def copy(self, a: Any, out: Optional[Any] = None) -> Any:
        if out is None:
            return a.copy()
        np.copyto(out, a)
        return out

    def scale(self, factor: Any, a: Any, out: Optional[Any] = None) -> Any:
        return np.multiply(a, a.dtype.type(factor), out=out)

    def add(self, a: Any, b: Any, out: Optional[Any] = None) -> Any:
        return np.add(a, b, out=out)

    def multiply(self, a: Any, b: Any, out: Optional[Any] = None) -> Any:
        return np.multiply(a, b, out=out)

    def add_scaled(self, a: Any, factor: Any, b: Any, out: Optional[Any] = None) -> Any:
        """Return a + factor * b, block by block in one pass over memory."""
        result = np.empty_like(a) if out is None else out
        flats = [_flatten(each) for each in (a, b, result)]
        if any(each is None for each in flats):
            return np.add(a, np.multiply(b, b.dtype.type(factor)), out=result)
        length, factor = max(1, BLOCK_BYTES // a.itemsize), a.dtype.type(factor)
        if self._block.dtype != a.dtype or self._block.size != length:
            self._block = np.empty(length, a.dtype)
        for start in range(0, a.size, length):
            left, right, to = (each[start : start + length] for each in flats)  # type: ignore[index]
            scaled = np.multiply(right, factor, out=self._block[: right.size])
            np.add(left, scaled, out=to)
        return result

    def compute_dot(self, a: Any, b: Any) -> Any:
        return np.dot(a, b)

    def matmul(self, a: Any, b: Any, out: Optional[Any] = None) -> Any:
        if a.dtype.kind not in "fc":
            raise Infeasible(f"numpy has no fast product of {a.dtype.name} matrices; use float32 or float64")
        return np.matmul(a, b, out=out)

    def prepare_right_factor(self, matrix: Any) -> Any:
        return matrix

    def subtract_scaled(self, a: Any, factor: Any, b: Any, out: Optional[Any] = None) -> Any:
        return self.add_scaled(a, -factor, b, out=out)

    def add_quotient(self, a: Any, b: Any, divisor: Any, sign: float = 1.0, out: Optional[Any] = None) -> Any:
        return self.add_scaled(a, sign / divisor, b, out=out)

    def transpose(self, a: Any) -> Any:
        return a.T

    def reshape(self, a: Any, shape: Tuple[int, ...]) -> Any:
        return a.reshape(shape)

    def concatenate(self, arrays: Sequence[Any], axis: int = 0) -> Any:
        return np.concatenate(arrays, axis)

    def stack(self, numbers: Sequence[Any]) -> Any:
        return np.stack(numbers)

    def build_csr(self, starts: Any, columns: Any, values: Any, num_columns: int) -> Any:
        return build_csr(starts, columns, values)

    def multiply_csr(self, matrix: Any, x: Any, out: Optional[Any] = None) -> Any:
        return multiply_csr(matrix, x, out)

    def compute_fft(self, x: Any) -> Any:
        return np.fft.fft(x)

    def compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return function

    def finish(self, *arrays: Any) -> None:
        """Do nothing: NumPy is synchronous."""

    def free_bytes(self) -> int:
        return read_free_host_bytes()

    def _check_dtype(self, dtype: str) -> str:
        if dtype not in self.dtypes:
            raise Infeasible(f"numpy has no dtype {dtype}; it has {', '.join(self.dtypes)}")
        return dtype


def _flatten(array: Any) -> Optional[Any]:
    """Return the array as a one-dimensional view, or None if it is not contiguous."""
    return array.reshape(-1) if array.flags.c_contiguous else None
