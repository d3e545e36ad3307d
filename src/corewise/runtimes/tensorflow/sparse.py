"""Sparse matrices on tensorflow: gathered, multiplied and summed by segments.

Measured side: standard library, numpy and tensorflow only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, Tuple

import numpy as np
import tensorflow as tf  # type: ignore[import-untyped]

CsrMatrix = Tuple[Any, Any, Any, Any]  # a tuple: what is compiled takes it as an argument


def make_csr(starts: Any, columns: Any, values: Any) -> CsrMatrix:
    """The matrix of numpy arrays with the row of each entry; ValueError where the last row is empty."""
    if starts[-1] == starts[-2]:
        raise ValueError("a CSR matrix for tensorflow needs an entry in its last row")
    rows = np.repeat(np.arange(len(starts) - 1, dtype=np.int32), np.diff(starts))
    return tf.constant(starts), tf.constant(rows), tf.constant(columns), tf.constant(values)


def multiply_csr(matrix: CsrMatrix, x: Any) -> Any:
    """The matrix times a vector."""
    starts, rows, columns, values = matrix
    sums = tf.math.segment_sum(values * tf.gather(x, columns), rows)
    return tf.ensure_shape(sums, (starts.shape[0] - 1,))  # a graph cannot know the last row's number
