"""Sparse matrices on jax: gather, multiply and sum by segments, which XLA compiles for any device.

Measured side: standard library, numpy and jax only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, Tuple

import jax
import numpy as np

# Row starts, row numbers, columns and values. A tuple can be an argument of a compiled function.
CsrMatrix = Tuple[Any, Any, Any, Any]


def build_csr(starts: Any, columns: Any, values: Any, device: Any) -> CsrMatrix:
    """Build the matrix on the device from numpy arrays, with the row of each entry."""
    rows = np.repeat(np.arange(len(starts) - 1, dtype=np.int32), np.diff(starts))
    starts, rows, columns, values = (jax.device_put(each, device) for each in (starts, rows, columns, values))
    return starts, rows, columns, values


def multiply_csr(matrix: CsrMatrix, x: Any) -> Any:
    """Multiply the matrix by a vector."""
    starts, rows, columns, values = matrix
    products = values * x.at[columns].get(mode="promise_in_bounds")
    return jax.ops.segment_sum(
        products, rows, num_segments=starts.shape[0] - 1, indices_are_sorted=True, mode="promise_in_bounds"
    )
