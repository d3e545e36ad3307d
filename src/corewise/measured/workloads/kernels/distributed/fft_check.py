"""The check of a transform whose values are spread over ranks, against sums by the definition.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Tuple

import numpy as np

from corewise.measured.runtimes.base import Check
from corewise.measured.workloads.kernels.fft.reference import (
    NUM_CHECKED,
    REFERENCE_ROUNDOFF,
    SAFETY,
    UNIT_ROUNDOFF,
    compute_multiples,
)
from corewise.measured.workloads.kernels.fft.roots_of_unity import compute_roots_of_unity

# Values copied to the host at a time. All ranks check at the same time and share its memory.
HOST_BLOCK = 2**20
# Adds float64 numbers over all ranks.
Sum = Callable[[Any], Any]


class SpreadValues:
    """This rank's values of a long vector: element (i, j) of a matrix has the number `starts[i]` + `stride`·j."""

    def __init__(self, rows: Any, starts: Any, stride: int, to_host: Callable[[Any], Any]) -> None:
        self._rows, self._starts, self._stride, self._to_host = rows, starts, stride, to_host

    def sum_by_definition(self, size: int, frequencies: Any) -> Any:
        """Return this rank's part of Σ x[n]·e^(-2πi·n·k/size) for each k, computed in complex128."""
        k = np.asarray(frequencies, np.int64) % size
        num_columns = int(self._rows.shape[1])
        columns = np.arange(num_columns)[:, None] * self._stride
        within = compute_roots_of_unity(compute_multiples(columns, k, size), size)
        total = np.zeros(len(k), np.clongdouble)
        for first, block in self._iterate_blocks():
            starts = np.asarray(self._starts[first : first + len(block)])[:, None]
            total += ((block @ within) * compute_roots_of_unity(compute_multiples(starts, k, size), size)).sum(axis=0)
        return total.astype(np.complex128)

    def sum_squares(self) -> float:
        """Return the sum of the squared magnitudes of this rank's values."""
        return float(sum(np.vdot(block, block).real for _, block in self._iterate_blocks()))

    def read_values(self, numbers: Any) -> Any:
        """Return the values of these numbers, with zeros for those of other ranks."""
        values = np.zeros(len(numbers), np.complex128)
        starts = {int(start): row for row, start in enumerate(self._starts)}
        for place, number in enumerate(numbers):
            for row, column in self._list_places(int(number), starts):
                values[place] = self._to_host(self._rows[row, column : column + 1])[0]
        return values

    def _list_places(self, number: int, starts: Any) -> Any:
        # Interleaved rows begin within one stride. Consecutive rows have a stride of one and their own length.
        num_columns = int(self._rows.shape[1])
        start = number % self._stride if self._stride > 1 else number // num_columns * num_columns
        column = (number - start) // self._stride
        return [(starts[start], column)] if start in starts and 0 <= column < num_columns else []

    def _iterate_blocks(self) -> Any:
        num_rows = max(1, HOST_BLOCK // int(self._rows.shape[1]))
        for first in range(0, int(self._rows.shape[0]), num_rows):
            yield first, self._to_host(self._rows[first : first + num_rows]).astype(np.complex128, copy=False)


def check_spread_transform(
    signal: SpreadValues, transform: SpreadValues, size: int, dtype: str, chosen: Tuple[Any, Any], sum_over_ranks: Sum
) -> Check:
    """Check some frequencies against the whole signal, some samples against the whole transform, and the energy.

    Args:
        chosen: the numbers of the checked frequencies and samples, the same on every rank.
    """

    def sum_complex(values: Any) -> Any:
        return sum_over_ranks(values.view(np.float64)).view(np.complex128)

    energies = sum_over_ranks(np.array([signal.sum_squares(), transform.sum_squares()]))
    scale = math.sqrt(energies[0] / size)
    # Parseval: the energy of the transform is that of the signal times its size.
    errors = [abs(energies[1] / size - energies[0]) / energies[0]]
    for source, target, sign, numbers in ((signal, transform, 1, chosen[0]), (transform, signal, -1, chosen[1])):
        divisor, unit = (1.0, scale * math.sqrt(size)) if sign == 1 else (float(size), scale)
        expected = sum_complex(source.sum_by_definition(size, sign * numbers)) / divisor
        errors.append(float(np.max(np.abs(sum_complex(target.read_values(numbers)) - expected)) / unit))
    transform_roundoff = UNIT_ROUNDOFF[dtype] * math.log2(max(2, size))
    tolerance = SAFETY * (transform_roundoff + REFERENCE_ROUNDOFF * size**0.25)
    return Check(float(np.max(errors)), tolerance, "direct sums for some frequencies and samples, and Parseval")


def draw_checked_numbers(size: int) -> Any:
    """Draw the numbers of checked frequencies and samples, as float64, which holds them exactly."""
    return np.random.default_rng().integers(0, size, 2 * NUM_CHECKED).astype(np.float64)
