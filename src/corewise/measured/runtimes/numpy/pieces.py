"""NumPy arrays in pieces.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

import contextlib
from typing import Any, ContextManager, Tuple

import numpy as np

# Size of the temporary rows of a product: NumPy cannot add a product to an existing array.
PRODUCT_BYTES = 2**24


class NumpyPieces:
    """NumPy in host memory."""

    num_streams = 1
    is_host = True
    writes_in_place = True
    num_spare = 0

    def __init__(self, arrays: Any) -> None:
        self._rows = np.empty(0)

    def allocate_host_buffer(self, shape: Tuple[int, ...], dtype: str) -> Any:
        return np.empty(shape, dtype)

    def move_to_device(self, host: Any, out: Any = None) -> Any:
        return host

    def as_numpy(self, array: Any) -> Any:
        return array

    def copy_to_host(self, array: Any, host: Any) -> None:
        np.copyto(host, array)

    def use_stream(self) -> ContextManager[Any]:
        return contextlib.nullcontext()

    def wait(self, *results: Any) -> None:
        """Do nothing: NumPy is synchronous."""

    def compute_fft(self, x: Any, axis: int, out: Any = None) -> Any:
        out = np.empty_like(x) if out is None else out
        # NumPy 1 computes in complex128.
        np.copyto(out, np.fft.fft(x, axis=axis), casting="same_kind")
        return out

    def add_product(self, c: Any, a: Any, b: Any) -> Any:
        num_rows = max(1, min(len(c), PRODUCT_BYTES // max(1, c.shape[1] * c.itemsize)))
        if self._rows.dtype != c.dtype or self._rows.size < num_rows * c.shape[1]:
            self._rows = np.empty(num_rows * c.shape[1], c.dtype)
        for start in range(0, len(c), num_rows):
            block = c[start : start + num_rows]
            product = self._rows[: block.size].reshape(block.shape)
            block += np.matmul(a[start : start + num_rows], b, out=product)
        return c
