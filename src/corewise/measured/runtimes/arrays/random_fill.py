"""Fill host memory with random numbers, in pieces and with one thread per CPU.

Measured side: standard library and numpy only, Python 3.9. The numbers depend only on the seed, not on the
number of threads.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

PIECE_ELEMENTS = 2**20
MAX_INT8 = 127
DRAWABLE_DTYPES = {"float64", "float32", "int8", "complex128", "complex64"}


def fill_normal(array: Any, seed: int) -> None:
    """Fill a contiguous numpy array with normal numbers, or int8 with integers from -127 to 127."""
    flat = array.reshape(-1)
    # Real and imaginary parts have a variance of one each.
    if flat.dtype.kind == "c":
        flat = flat.view(np.float64 if flat.dtype == np.complex128 else np.float32)
    starts = range(0, flat.size, PIECE_ELEMENTS)
    if len(starts) < 2:
        _fill_piece(flat, seed, 0)
        return
    with ThreadPoolExecutor(min(len(starts), len(os.sched_getaffinity(0)))) as threads:
        for done in [threads.submit(_fill_piece, flat, seed, start) for start in starts]:
            done.result()


def _fill_piece(flat: Any, seed: int, start: int) -> None:
    random = np.random.Generator(np.random.SFC64([seed, start // PIECE_ELEMENTS]))
    piece = flat[start : start + PIECE_ELEMENTS]
    if piece.dtype == np.int8:
        piece[:] = random.integers(-MAX_INT8, MAX_INT8 + 1, piece.size, dtype=np.int8)
    else:
        random.standard_normal(dtype=piece.dtype.type, out=piece)
