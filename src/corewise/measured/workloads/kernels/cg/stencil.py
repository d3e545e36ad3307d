"""The 27-point stencil on a cube of points: rows of a CSR matrix, a plain product, and its eigenvalues.

Measured side: standard library and numpy only, Python 3.9. The diagonal is 26 plus a shift, and each of
up to 26 neighbours is -1, with nothing outside the cube: 27·I - B⊗B⊗B with B the tridiagonal matrix of ones.
"""

from __future__ import annotations

import math
from typing import Any, Tuple

import numpy as np

DIAGONAL = 26.0
NEIGHBOUR = -1.0


def count_nonzeros(edge: int) -> int:
    """Count the entries of the matrix: a point has up to three neighbours, itself included, per direction."""
    return (3 * edge - 2) ** 3


def build_stencil_rows(edge: int, first: int, last: int, shift: float) -> Tuple[Any, Any, Any]:
    """Return rows `first` to `last` as CSR: row starts, columns and values, with 32-bit indices."""
    rows = np.arange(first, last, dtype=np.int64)
    place = (rows // (edge * edge), rows // edge % edge, rows % edge)
    columns = np.empty((last - first, 27), np.int32)
    inside = np.empty((last - first, 27), bool)
    steps = [(z, y, x) for z in (-1, 0, 1) for y in (-1, 0, 1) for x in (-1, 0, 1)]
    # The steps are in the order of their columns.
    for number, step in enumerate(steps):
        columns[:, number] = rows + (step[0] * edge + step[1]) * edge + step[2]
        inside[:, number] = np.logical_and.reduce(
            [(at + move >= 0) & (at + move < edge) for at, move in zip(place, step)]
        )
    starts = np.zeros(last - first + 1, np.int32)
    np.cumsum(inside.sum(axis=1), out=starts[1:])
    values = np.full(starts[-1], NEIGHBOUR)
    values[starts[:-1] + inside[:, :13].sum(axis=1)] = DIAGONAL + shift
    return starts, columns[inside], values


def compute_stencil_product(x: Any, edge: int, shift: float) -> Any:
    """Multiply the matrix with a vector in numpy, neighbour by neighbour; a simple reference for checks."""
    cube = x.reshape(edge, edge, edge)
    padded = np.zeros((edge + 2,) * 3)
    padded[1:-1, 1:-1, 1:-1] = cube
    product = (DIAGONAL + shift - NEIGHBOUR) * cube
    for z in range(3):
        for y in range(3):
            for x_ in range(3):
                product += NEIGHBOUR * padded[z : z + edge, y : y + edge, x_ : x_ + edge]
    return product.reshape(-1)


def compute_stencil_eigenvalues(edge: int, shift: float) -> Tuple[float, float]:
    """Return the exact smallest and largest eigenvalue."""
    sums = [1 + 2 * math.cos(k * math.pi / (edge + 1)) for k in (1, edge)]
    greatest_product = max(sums[0] ** 3, sums[0] * sums[1] ** 2)
    least_product = min(sums[0] ** 2 * sums[1], sums[1] ** 3, sums[0] ** 3)
    return 27 + shift - greatest_product, 27 + shift - least_product
