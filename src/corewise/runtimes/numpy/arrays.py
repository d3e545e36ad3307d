"""NumPy's arrays for kernels.

Measured side: standard library and numpy only, Python 3.9. NumPy computes element by element in one thread;
products of matrices take the BLAS's threads.
"""

from __future__ import annotations

from typing import Any, Callable, Optional, Sequence, Tuple

import numpy as np

from corewise.runtimes.base import Infeasible
from corewise.runtimes.filling import fill_normal
from corewise.runtimes.host_memory import free_host_bytes
from corewise.runtimes.numpy.sparse import make_csr, multiply_csr

BLOCK_BYTES = 2**19  # of a pass: what lies between two operations stays in the second-level cache


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

    def empty(self, shape: Tuple[int, ...], dtype: str) -> Any:
        return np.empty(shape, self._known(dtype))

    def zeros(self, shape: Tuple[int, ...], dtype: str) -> Any:
        array = self.empty(shape, dtype)
        array.fill(0)  # np.zeros leaves the pages to be made in the first pass
        return array

    def normal(self, shape: Tuple[int, ...], dtype: str, seed: int) -> Any:
        array = self.zeros(shape, dtype)  # pages made by the thread that computes
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
        """a + factor * b, block by block, so that memory is passed over once."""
        result = np.empty_like(a) if out is None else out
        flats = [_flat(each) for each in (a, b, result)]
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

    def dot(self, a: Any, b: Any) -> Any:
        return np.dot(a, b)

    def matmul(self, a: Any, b: Any, out: Optional[Any] = None) -> Any:
        if a.dtype.kind not in "fc":
            raise Infeasible(f"numpy has no fast product of {a.dtype.name} matrices; use float32 or float64")
        return np.matmul(a, b, out=out)

    def right_factor(self, matrix: Any) -> Any:
        return matrix

    def subtract_scaled(self, a: Any, factor: Any, b: Any, out: Optional[Any] = None) -> Any:
        return self.add_scaled(a, -factor, b, out=out)

    def add_quotient(self, a: Any, b: Any, divisor: Any, sign: float = 1.0, out: Optional[Any] = None) -> Any:
        return self.add_scaled(a, sign / divisor, b, out=out)

    def transpose(self, a: Any) -> Any:
        return a.T

    def concatenate(self, arrays: Sequence[Any], axis: int = 0) -> Any:
        return np.concatenate(arrays, axis)

    def stack(self, numbers: Sequence[Any]) -> Any:
        return np.stack(numbers)

    def csr(self, starts: Any, columns: Any, values: Any, num_columns: int) -> Any:
        return make_csr(starts, columns, values)

    def csr_matvec(self, matrix: Any, x: Any, out: Optional[Any] = None) -> Any:
        return multiply_csr(matrix, x, out)

    def fft(self, x: Any) -> Any:
        return np.fft.fft(x)

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return function

    def finish(self, *arrays: Any) -> None:
        """NumPy has finished when it returns."""

    def free_bytes(self) -> int:
        return free_host_bytes()

    def _known(self, dtype: str) -> str:
        if dtype not in self.dtypes:
            raise Infeasible(f"numpy has no dtype {dtype}; it has {', '.join(self.dtypes)}")
        return dtype


def _flat(array: Any) -> Optional[Any]:
    """The array as one row that shares its memory, where it lies so."""
    return array.reshape(-1) if array.flags.c_contiguous else None
