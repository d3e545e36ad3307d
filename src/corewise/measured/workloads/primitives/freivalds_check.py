"""Freivalds' check of matrix products, with little memory.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Iterator, List, Tuple

import numpy as np

# Imported here, so that the warm parent loads it once for all ranks.
from numpy.random import default_rng

# Rows that are converted to float64 at a time.
ROWS_AT_A_TIME = 256


def _to_float64(rows: Any) -> Any:
    return rows.astype(np.float64)


def compute_product_error(a: Any, b: Any, c: Any, as_float64: Callable[[Any], Any] = _to_float64) -> float:
    """Return the largest error of C·x against A·(B·x) over all matrices of a batch; NaN if any is NaN.

    It is relative to the root of A²·B²·x², squared elementwise. `x` is a random vector, so an error anywhere
    in C is detected. A few rows of any framework's arrays are converted to numpy's float64 at a time.
    """
    batch_shape = np.broadcast_shapes(tuple(a.shape[:-2]), tuple(b.shape[:-2]))
    if tuple(c.shape) != (*batch_shape, a.shape[-2], b.shape[-1]):
        return math.inf
    x = draw_check_vector(b.shape[-1])
    errors: List[float] = []
    for index in np.ndindex(*batch_shape):
        one_a, one_b, one_c = (_select_matrix(batch, index) for batch in (a, b, c))
        times_x = [(rows @ x, (rows * rows) @ (x * x)) for rows in map(as_float64, _split_rows(one_b))]
        b_x, squares = (np.concatenate(pieces) for pieces in zip(*times_x))
        for rows, made in zip(map(as_float64, _split_rows(one_a)), map(as_float64, _split_rows(one_c))):
            errors.append(np.max(np.abs(made @ x - rows @ b_x) / np.sqrt((rows * rows) @ squares)))
    return float(np.max(errors))


def draw_check_vector(length: int) -> Any:
    """Draw numbers from 0.5 to 1 with random signs, so that none is small enough to hide a column."""
    random = default_rng()
    return random.uniform(0.5, 1.0, length) * random.choice((-1.0, 1.0), length)


def _select_matrix(batch: Any, index: Tuple[int, ...]) -> Any:
    """Return the matrix of a batch at this index; dimensions of size 1 are broadcast."""
    return batch[tuple(i if size > 1 else 0 for i, size in zip(index, batch.shape[:-2]))]


def _split_rows(matrix: Any) -> Iterator[Any]:
    for start in range(0, len(matrix), ROWS_AT_A_TIME):
        yield matrix[start : start + ROWS_AT_A_TIME]
