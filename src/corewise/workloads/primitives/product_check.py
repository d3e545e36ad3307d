"""Freivalds' check of products of matrices, in little memory.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Iterator, List, Tuple

import numpy as np
from numpy.random import default_rng  # now: no rank has to load it

ROWS_AT_A_TIME = 256  # made float64


def _as_float64(rows: Any) -> Any:
    return rows.astype(np.float64)


def product_error(a: Any, b: Any, c: Any, as_float64: Callable[[Any], Any] = _as_float64) -> float:
    """The largest error of C·x against A·(B·x), over every matrix of a batch; NaN where any is none.

    It is relative to the root of A²·B²·x², squared element by element; `x` is a random vector, so that an
    error anywhere in C shows. Few rows at a time of any framework's arrays are made numpy's in float64.
    """
    batch_shape = np.broadcast_shapes(tuple(a.shape[:-2]), tuple(b.shape[:-2]))
    if tuple(c.shape) != (*batch_shape, a.shape[-2], b.shape[-1]):
        return math.inf
    x = checking_vector(b.shape[-1])
    errors: List[float] = []
    for index in np.ndindex(*batch_shape):
        one_a, one_b, one_c = (_matrix_of(batch, index) for batch in (a, b, c))
        times_x = [(rows @ x, (rows * rows) @ (x * x)) for rows in map(as_float64, _pieces(one_b))]
        b_x, squares = (np.concatenate(pieces) for pieces in zip(*times_x))
        for rows, made in zip(map(as_float64, _pieces(one_a)), map(as_float64, _pieces(one_c))):
            errors.append(np.max(np.abs(made @ x - rows @ b_x) / np.sqrt((rows * rows) @ squares)))
    return float(np.max(errors))


def checking_vector(length: int) -> Any:
    """Random numbers of 0.5 to 1 with random signs: none is so small that it hides a column."""
    random = default_rng()
    return random.uniform(0.5, 1.0, length) * random.choice((-1.0, 1.0), length)


def _matrix_of(batch: Any, index: Tuple[int, ...]) -> Any:
    """The matrix of a batch at this index; a size of 1 stands for every index."""
    return batch[tuple(i if size > 1 else 0 for i, size in zip(index, batch.shape[:-2]))]


def _pieces(matrix: Any) -> Iterator[Any]:
    for start in range(0, len(matrix), ROWS_AT_A_TIME):
        yield matrix[start : start + ROWS_AT_A_TIME]
