"""NumPy's arrays in pieces.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

import contextlib
from typing import Any, ContextManager, Tuple

import numpy as np

PRODUCT_BYTES = 2**24  # of the rows multiplied at a time: NumPy adds no product to what is there


class NumpyPieces:
    """NumPy in host memory."""

    num_streams = 1
    is_host = True
    writes_in_place = True
    num_spare = 0

    def __init__(self, arrays: Any) -> None:
        self._rows = np.empty(0)

    def host_buffer(self, shape: Tuple[int, ...], dtype: str) -> Any:
        return np.empty(shape, dtype)

    def upload(self, host: Any, out: Any = None) -> Any:
        return host

    def view(self, array: Any) -> Any:
        return array

    def download(self, array: Any, host: Any) -> None:
        np.copyto(host, array)

    def stream(self) -> ContextManager[Any]:
        return contextlib.nullcontext()

    def wait(self, *results: Any) -> None:
        """NumPy has finished when it returns."""

    def fft(self, x: Any, axis: int, out: Any = None) -> Any:
        out = np.empty_like(x) if out is None else out
        np.copyto(out, np.fft.fft(x, axis=axis), casting="same_kind")  # NumPy 1 computes in complex128
        return out

    def multiply_add(self, c: Any, a: Any, b: Any) -> Any:
        num_rows = max(1, min(len(c), PRODUCT_BYTES // max(1, c.shape[1] * c.itemsize)))
        if self._rows.dtype != c.dtype or self._rows.size < num_rows * c.shape[1]:
            self._rows = np.empty(num_rows * c.shape[1], c.dtype)
        for start in range(0, len(c), num_rows):
            here = c[start : start + num_rows]
            product = self._rows[: here.size].reshape(here.shape)
            here += np.matmul(a[start : start + num_rows], b, out=product)
        return c
