"""Freivalds' check of a tiled product, computed tile by tile from the files.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, Optional, Tuple

import numpy as np

from corewise.measured.runtimes.base import Check
from corewise.measured.workloads.kernels.tiled_product.factor_sources import Progress
from corewise.measured.workloads.kernels.tiled_product.pipeline import Factors
from corewise.measured.workloads.kernels.tiled_product.tile_files import TileSource
from corewise.measured.workloads.primitives.freivalds_check import draw_check_vector
from corewise.measured.workloads.primitives.matmul import compute_product_tolerance

UNIT_ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24}
# Bytes of a tile that are converted to float64 at a time.
CHUNK_BYTES = 2**24


class NonFiniteFactor(ValueError):
    """A factor contains infinities or NaN, so its product cannot be checked."""


def check_product(factors: Factors, buffer: Any, report: Progress) -> Check:
    """Compare C·x with A·(B·x) in float64 for a random x; reading verifies all checksums."""
    x = draw_check_vector(factors.b.grid.num_columns)
    bx, bx_squared = _compute_products(factors.b, x, x * x, buffer, report, "B")
    expected, size_squared = _compute_products(factors.a, bx, bx_squared, buffer, report, "A")
    actual, _ = _compute_products(factors.c, x, None, buffer, report, "C")
    error = _find_largest_error(actual, expected, np.sqrt(size_squared))
    roundoff = UNIT_ROUNDOFF[factors.c.dtype]
    tolerance = compute_product_tolerance(factors.a.grid.num_columns, roundoff, roundoff)
    return Check(error, tolerance, "the product with a random vector in float64, from the files")


def _find_largest_error(actual: Any, expected: Any, scale: Any) -> float:
    """Return the largest error relative to the size of the sum; a zero sum must be exact."""
    difference = np.abs(actual - expected)
    exact = np.where(difference == 0, 0.0, np.inf)
    by_scale = np.divide(difference, scale, out=exact, where=scale != 0)
    return float(np.max(by_scale))


def _compute_products(
    matrix: TileSource, x: Any, x_squared: Optional[Any], buffer: Any, report: Progress, name: str
) -> Tuple[Any, Any]:
    """Multiply the matrix with x, and its squared elements with x_squared."""
    grid = matrix.grid
    product, squares = np.zeros(grid.num_rows), np.zeros(grid.num_rows)
    tiles = list(grid.iterate_tiles())
    for number, tile in enumerate(tiles):
        report(f"verifying, reading {name}", number, len(tiles))
        array = matrix.read(tile, buffer)
        columns = slice(tile[1] * grid.tile, tile[1] * grid.tile + array.shape[1])
        num_rows = max(1, CHUNK_BYTES // (8 * array.shape[1]))
        for start in range(0, array.shape[0], num_rows):
            chunk = array[start : start + num_rows].astype(np.float64)
            rows = slice(tile[0] * grid.tile + start, tile[0] * grid.tile + start + len(chunk))
            # Non-finite factors are reported below. A non-finite product fails the check.
            with np.errstate(invalid="ignore", over="ignore"):
                product[rows] += chunk @ x[columns]
            if x_squared is not None:
                if not np.isfinite(product[rows]).all():
                    _require_finite(chunk, matrix.name_file(tile), rows.start, columns.start)
                chunk *= chunk
                squares[rows] += chunk @ x_squared[columns]
    return product, squares


def _require_finite(chunk: Any, place: str, row: int, column: int) -> None:
    """Raise NonFiniteFactor with the first element of a factor that is not finite."""
    positions = np.argwhere(~np.isfinite(chunk))
    if len(positions):
        value = chunk[tuple(positions[0])]
        raise NonFiniteFactor(
            f"{place} is not finite: row {row + positions[0][0]}, column {column + positions[0][1]} "
            f"of the matrix is {value}. The product cannot be checked: correct the matrix, or skip the check"
        )
