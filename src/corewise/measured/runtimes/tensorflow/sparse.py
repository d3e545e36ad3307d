"""Sparse matrices on tensorflow: gather, multiply and sum by segments.

Measured side: standard library, numpy and tensorflow only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, Tuple

import numpy as np
import tensorflow as tf  # type: ignore[import-untyped]

# Row starts, row numbers, columns and values. A tuple can be an argument of a compiled function.
CsrMatrix = Tuple[Any, Any, Any, Any]


def build_csr(starts: Any, columns: Any, values: Any) -> CsrMatrix:
    """Build the matrix with the row of each entry; raise ValueError for an empty last row."""
    if starts[-1] == starts[-2]:
        raise ValueError("a CSR matrix for tensorflow needs an entry in its last row")
    rows = np.repeat(np.arange(len(starts) - 1, dtype=np.int32), np.diff(starts))
    return tf.constant(starts), tf.constant(rows), tf.constant(columns), tf.constant(values)


def multiply_csr(matrix: CsrMatrix, x: Any) -> Any:
    """Multiply the matrix by a vector."""
    starts, rows, columns, values = matrix
    sums = tf.math.segment_sum(values * tf.gather(x, columns), rows)
    # A graph cannot infer the number of rows.
    return tf.ensure_shape(sums, (starts.shape[0] - 1,))
