"""Allocate host memory that JAX and TensorFlow use without a copy: it starts at a cache line.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, Tuple

import numpy as np

ALIGNMENT_BYTES = 64


def allocate_aligned(shape: Tuple[int, ...], dtype: str) -> Any:
    """Allocate a numpy array that starts at a cache line."""
    num_bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    whole = np.empty(num_bytes + ALIGNMENT_BYTES, np.uint8)
    first = -whole.ctypes.data % ALIGNMENT_BYTES
    return whole[first : first + num_bytes].view(dtype).reshape(shape)


def is_aligned(array: Any) -> bool:
    """Return whether the array starts at a cache line and is contiguous."""
    return bool(array.flags.c_contiguous) and array.ctypes.data % ALIGNMENT_BYTES == 0
