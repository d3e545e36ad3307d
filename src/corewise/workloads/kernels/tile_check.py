"""Freivalds' check of a product in tiles, computed tile by tile from the files.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, Optional, Tuple

import numpy as np

from corewise.runtimes.base import Check
from corewise.workloads.kernels.tile_engine import Factors, Told
from corewise.workloads.kernels.tile_store import Source
from corewise.workloads.primitives.matmul import product_tolerance
from corewise.workloads.primitives.product_check import checking_vector

UNIT_ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24}
CHUNK_BYTES = 2**24  # of a tile in float64


class NotFinite(ValueError):
    """A factor holds infinities or no numbers at all: no product of it can be checked."""


def check_product(factors: Factors, buffer: Any, told: Told) -> Check:
    """C·x against A·(B·x) in float64 for a random vector; every file's checksum is checked on the way."""
    x = checking_vector(factors.b.grid.num_columns)
    bx, bx_squared = _times(factors.b, x, x * x, buffer, told, "B")
    wanted, size_squared = _times(factors.a, bx, bx_squared, buffer, told, "A")
    found, _ = _times(factors.c, x, None, buffer, told, "C")
    error = _largest_error(found, wanted, np.sqrt(size_squared))
    roundoff = UNIT_ROUNDOFF[factors.c.dtype]
    tolerance = product_tolerance(factors.a.grid.num_columns, roundoff, roundoff)
    return Check(error, tolerance, "the product with a random vector in float64, from the files")


def _largest_error(found: Any, wanted: Any, scale: Any) -> float:
    """The largest error by the size of what was summed; where that is nothing only exact is right."""
    difference = np.abs(found - wanted)
    exact = np.where(difference == 0, 0.0, np.inf)
    by_scale = np.divide(difference, scale, out=exact, where=scale != 0)
    return float(np.max(by_scale))


def _times(
    matrix: Source, x: Any, x_squared: Optional[Any], buffer: Any, told: Told, name: str
) -> Tuple[Any, Any]:
    """The matrix times x, and its squared elements times x_squared."""
    grid = matrix.grid
    product, squares = np.zeros(grid.num_rows), np.zeros(grid.num_rows)
    tiles = list(grid.tiles())
    for number, tile in enumerate(tiles):
        told(f"verifying, reading {name}", number, len(tiles))
        array = matrix.read(tile, buffer)
        columns = slice(tile[1] * grid.tile, tile[1] * grid.tile + array.shape[1])
        num_rows = max(1, CHUNK_BYTES // (8 * array.shape[1]))
        for start in range(0, array.shape[0], num_rows):
            chunk = array[start : start + num_rows].astype(np.float64)
            rows = slice(tile[0] * grid.tile + start, tile[0] * grid.tile + start + len(chunk))
            with np.errstate(invalid="ignore", over="ignore"):  # told below, or wrong in the end
                product[rows] += chunk @ x[columns]
            if x_squared is not None:
                if not np.isfinite(product[rows]).all():
                    _require_finite(chunk, matrix.place(tile), rows.start, columns.start)
                chunk *= chunk
                squares[rows] += chunk @ x_squared[columns]
    return product, squares


def _require_finite(chunk: Any, place: str, row: int, column: int) -> None:
    """Raises where numbers of a factor are not finite, with the first of them."""
    wrong = np.argwhere(~np.isfinite(chunk))
    if len(wrong):
        value = chunk[tuple(wrong[0])]
        raise NotFinite(
            f"{place} is not finite: row {row + wrong[0][0]}, column {column + wrong[0][1]} of the matrix "
            f"is {value}. The product has its like and cannot be checked; mend it, or leave the check out"
        )
