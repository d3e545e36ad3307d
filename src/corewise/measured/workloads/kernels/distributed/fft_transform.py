"""The Fourier transform of a signal that is spread over ranks, by the four-step algorithm.

Measured side: standard library and numpy only, Python 3.9. `fft_grid` explains the algorithm and the orders.
"""

from __future__ import annotations

from typing import Any, Callable, Iterator, Mapping, Tuple

import numpy as np

from corewise.measured.runtimes.base import Check
from corewise.measured.workloads.kernels.distributed.fft_check import (
    SpreadValues,
    check_spread_transform,
    draw_checked_numbers,
)
from corewise.measured.workloads.kernels.distributed.fft_exchange import Transposition
from corewise.measured.workloads.kernels.distributed.fft_grid import SignalGrid
from corewise.measured.workloads.kernels.distributed.first_rank import broadcast_from_first, sum_over_ranks
from corewise.measured.workloads.kernels.distributed.message_times import StepTimes, TimedCommunicator
from corewise.measured.workloads.kernels.fft.merge import BLOCK_ELEMENTS, MAX_BLOCK_ELEMENTS
from corewise.measured.workloads.kernels.fft.roots_of_unity import compute_roots_of_unity
from corewise.measured.workloads.kernels.framework_pieces import load_pieces
from corewise.measured.workloads.kernels.kernel import KernelRun, KernelSetup
from corewise.measured.workloads.registry import load_attribute

FILL = "corewise.measured.runtimes.arrays.random_fill:fill_normal"
# Rows that are packed together at least: a cache line holds four complex128 numbers.
MIN_BLOCK_ROWS = 8


class SpreadTransform(KernelRun):
    """This rank's share of a signal and of its transform; a step transforms the whole signal."""

    def __init__(self, setup: KernelSetup, grid: SignalGrid, *, is_natural: bool) -> None:
        self._arrays, self._pieces, self._dtype = setup.arrays, load_pieces(setup.arrays), setup.dtype
        self._grid, self._is_natural = grid, is_natural
        self._messages, self._times = TimedCommunicator(setup.communicator), StepTimes()
        num_threads = setup.num_threads if setup.arrays.device == "cpu" else 1
        device = setup.arrays.device
        self._block_elements = min(MAX_BLOCK_ELEMENTS[device], num_threads * BLOCK_ELEMENTS[device])
        self._x = self._draw_signal(setup.seed)
        sent, received = (setup.arrays.create_zeros((grid.share,), setup.dtype) for _ in range(2))
        rows, columns = grid.num_rows, grid.num_columns

        def transpose(num_rows: int, num_columns: int) -> Transposition:
            return Transposition(setup.arrays, self._messages, num_rows, num_columns, sent, received)

        # From rows to columns and back: rows of the signal's matrix, columns, rows of the transform's.
        self._to_columns, self._to_rows = transpose(rows, columns), transpose(columns, rows)
        # After the last exchange nothing is sent, so the transform takes that memory.
        shape = (columns, rows) if is_natural else (rows, columns)
        self._out = sent.reshape(shape[0] // grid.num_ranks, shape[1])
        self._prepare_twiddles()
        self._buffers = {
            length: setup.arrays.create_zeros((self._count_block_rows(length), length), setup.dtype)
            for length in (rows, columns)
        }

    def step(self) -> None:
        with self._times.measure(self._messages):
            self._transform()

    def _transform(self) -> None:
        if self._is_natural:
            for first, stop in self._iterate_blocks(self._to_columns.num_rows, self._grid.num_columns):
                self._to_columns.pack(self._x[first:stop], first)
            self._to_columns.exchange()
        for number, (first, stop) in enumerate(self._iterate_blocks(self._to_rows.num_rows, self._grid.num_rows)):
            if self._is_natural:
                columns = self._to_columns.unpack(first, self._buffers[self._grid.num_rows][: stop - first])
            else:
                columns = self._x[first:stop]
            self._to_rows.pack(self._twist(self._transform_columns(columns), number), first)
        self._to_rows.exchange()
        self._finish_rows()
        self._arrays.finish(self._out)

    def _transform_columns(self, columns: Any) -> Any:
        """Transform columns without changing the signal."""
        buffer = self._buffers[self._grid.num_rows][: len(columns)]
        return self._pieces.compute_fft(columns, 1, out=buffer)

    def _twist(self, columns: Any, number: int) -> Any:
        """Multiply a block of transformed columns by its twiddle factors."""
        columns = self._arrays.multiply(columns, self._factors[: len(columns)], out=columns)
        return self._arrays.multiply(columns, self._offsets[number], out=columns)

    def _finish_rows(self) -> None:
        """Transform the rows, and in natural order exchange them once more."""
        grid = self._grid
        for first, stop in self._iterate_blocks(self._to_rows.num_result_rows, grid.num_columns):
            rows = self._to_rows.unpack(first, self._buffers[grid.num_columns][: stop - first])
            if self._is_natural:
                self._to_columns.pack(self._pieces.compute_fft(rows, 1, out=rows), first)
            else:
                self._pieces.compute_fft(rows, 1, out=self._out[first:stop])
        if self._is_natural:
            self._to_columns.exchange()
            for first, stop in self._iterate_blocks(self._to_columns.num_result_rows, grid.num_rows):
                self._to_columns.unpack(first, self._out[first:stop])

    def _prepare_twiddles(self) -> None:
        """Prepare the factors of the first block, and for each block the factor from there to its first column.

        A product of both is a twiddle factor: e^(-2πi·b·p/N) with b = first column + column in the block.
        """
        grid, dtype = self._grid, self._dtype
        height, own = self._count_block_rows(grid.num_rows), grid.num_columns // grid.num_ranks
        p = np.arange(grid.num_rows)
        factors = compute_roots_of_unity(np.arange(min(height, own))[:, None] * p[None, :], grid.size)
        starts = self._messages.rank * own + np.arange(0, own, height)
        offsets = compute_roots_of_unity(starts[:, None] * p[None, :], grid.size)
        self._factors, self._offsets = (
            self._arrays.from_host(np.ascontiguousarray(each.astype(dtype, copy=False))) for each in (factors, offsets)
        )

    def _draw_signal(self, seed: int) -> Any:
        """Draw this rank's samples, row by row, so that the signal does not depend on the number of ranks."""
        grid = self._grid
        num_rows, length = grid.num_columns, grid.num_rows
        if self._is_natural:
            num_rows, length = length, num_rows
        own = num_rows // grid.num_ranks
        first = self._messages.rank * own
        x = self._arrays.create_zeros((own, length), self._dtype)
        fill = load_attribute(FILL)
        row = np.empty(length, self._dtype)
        for number in range(own):
            fill(row, seed * 2**40 + first + number)
            self._arrays.copy(self._arrays.from_host(row), out=x[number])
        return x

    def _count_block_rows(self, length: int) -> int:
        return max(MIN_BLOCK_ROWS, self._block_elements // length)

    def _iterate_blocks(self, num_rows: int, length: int) -> Iterator[Tuple[int, int]]:
        height = self._count_block_rows(length)
        for first in range(0, num_rows, height):
            yield first, min(num_rows, first + height)

    def check(self) -> Check:
        """Check against sums by the definition; every rank contributes those of its values."""
        self.step()
        size = self._grid.size
        drawn = broadcast_from_first(self._messages, self._arrays, draw_checked_numbers(size)).astype(np.int64)
        chosen = tuple(np.split(drawn, 2))
        return check_spread_transform(
            self._describe_values(self._x, self._grid.num_columns),
            self._describe_values(self._out, self._grid.num_rows),
            size,
            self._dtype,
            (chosen[0], chosen[1]),
            self._sum_over_ranks,
        )

    def _sum_over_ranks(self, values: Any) -> Any:
        return sum_over_ranks(self._messages, self._arrays, values)

    def _describe_values(self, rows: Any, stride: int) -> SpreadValues:
        """Return this rank's rows with the number of each element in the whole signal or transform."""
        num_rows, length = int(rows.shape[0]), int(rows.shape[1])
        starts = self._messages.rank * num_rows + np.arange(num_rows)
        to_host: Callable[[Any], Any] = self._arrays.to_host
        if self._is_natural:
            return SpreadValues(rows, starts * length, 1, to_host)
        return SpreadValues(rows, starts, stride, to_host)

    def collect_metrics(self) -> Mapping[str, float]:
        return self._times.compute_medians()

    def read_facts(self) -> Mapping[str, Any]:
        return {
            "signal_matrix": [self._grid.num_rows, self._grid.num_columns],
            "num_exchanges": 3 if self._is_natural else 1,
        }

    def close(self) -> None:
        self._x = self._out = None
        self._buffers = {}
