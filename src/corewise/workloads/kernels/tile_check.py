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

UNIT_ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24}
CHUNK_BYTES = 2**24  # of a tile in float64


def check_product(factors: Factors, buffer: Any, told: Told) -> Check:
    """C·x against A·(B·x) in float64 for a random vector; every file's checksum is checked on the way."""
    x = np.random.default_rng().uniform(-1, 1, factors.b.grid.num_columns)
    bx, bx_squared = _times(factors.b, x, x * x, buffer, told, "B")
    wanted, size_squared = _times(factors.a, bx, bx_squared, buffer, told, "A")
    found, _ = _times(factors.c, x, None, buffer, told, "C")
    error = float(np.max(np.abs(found - wanted) / np.sqrt(size_squared)))
    roundoff = UNIT_ROUNDOFF[factors.c.dtype]
    tolerance = product_tolerance(factors.a.grid.num_columns, roundoff, roundoff)
    return Check(error, tolerance, "the product with a random vector in float64, from the files")


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
            product[rows] += chunk @ x[columns]
            if x_squared is not None:
                chunk *= chunk
                squares[rows] += chunk @ x_squared[columns]
    return product, squares
