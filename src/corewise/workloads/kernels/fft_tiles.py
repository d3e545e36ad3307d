"""The Fourier transform by interleaved tiles, of a signal in the device's memory.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

import abc
import time
from collections import deque
from typing import Any, Deque, Dict, Mapping

from corewise.runtimes.base import Check
from corewise.workloads.kernels.base import Setup
from corewise.workloads.kernels.fft_check import check_transform, facts_of_phases
from corewise.workloads.kernels.fft_merge import Cut, Merge, block_elements, dft_matrix, twiddles
from corewise.workloads.kernels.framework_pieces import pieces_of

GROUP_ELEMENTS = {"cpu": 2**20, "cuda": 2**27}  # of a thread: the copies a framework makes stay small
LEAST_GATHERED = 8  # tiles taken from the signal at once: fewer would fetch every cache line several times
NUM_TIMES_KEPT = 101


class Phases:
    """Seconds of the last steps' phases."""

    def __init__(self) -> None:
        names = ("sub_transforms", "merge")
        self.seconds: Dict[str, Deque[float]] = {name: deque(maxlen=NUM_TIMES_KEPT) for name in names}

    def add(self, began: float, between: float, ended: float) -> None:
        self.seconds["sub_transforms"].append(between - began)
        self.seconds["merge"].append(ended - between)


class DeviceTransform(abc.ABC):
    """What transforms of a signal in the device's memory share."""

    def __init__(self, setup: Setup, size: int) -> None:
        self._arrays, self._dtype, self._size = setup.arrays, setup.dtype, size
        self._x = setup.arrays.normal((size,), setup.dtype, setup.seed)
        self._out: Any = None

    @abc.abstractmethod
    def step(self) -> None:
        """One transform, finished on the device when it returns."""

    def facts(self) -> Mapping[str, Any]:
        return {}

    def check(self) -> Check:
        self.step()
        out = reshaped(self._arrays, self._out, (self._size,))
        arrays = self._arrays
        return check_transform(self._x, out, self._size, self._dtype, arrays.to_host, arrays.device)

    def close(self) -> None:
        self._x = self._out = None


class DirectTransform(DeviceTransform):
    """The framework's own transform; what it made before is given back first."""

    def step(self) -> None:
        self._out = None
        self._out = self._arrays.fft(self._x)
        self._arrays.finish(self._out)


class TilesInPlace(DeviceTransform):
    """Tiles gathered, transformed and merged in one array beside the signal."""

    def __init__(self, setup: Setup, cut: Cut) -> None:
        super().__init__(setup, cut.size)
        arrays = setup.arrays
        self._pieces, self._cut, self._phases = pieces_of(arrays), cut, Phases()
        self._rows = self._x.reshape(cut.tile_size, cut.num_tiles)
        self._out = arrays.zeros((cut.num_tiles, cut.tile_size), setup.dtype)
        num_threads = setup.num_threads if arrays.device == "cpu" else 1
        self._at_once = max(1, num_threads * GROUP_ELEMENTS[arrays.device] // cut.tile_size)
        self._width = cut.width(block_elements(arrays.device, cut.num_tiles, num_threads))
        self._merge = Merge(arrays, self._pieces, setup.dtype, cut, self._width)
        self._scratch = self._merge.scratch()

    def step(self) -> None:
        began = time.perf_counter()
        at_once, gathered = self._at_once, max(LEAST_GATHERED, self._at_once)
        for first in range(0, self._cut.num_tiles, gathered):
            last = min(self._cut.num_tiles, first + gathered)
            self._arrays.copy(self._rows[:, first:last].T, out=self._out[first:last])
            for tile in range(first, last, at_once):
                group = self._out[tile : min(last, tile + at_once)]
                self._pieces.fft(group, 1, out=group)
        self._arrays.finish(self._out)
        between = time.perf_counter()
        for start, stop in self._cut.blocks(self._width):
            self._merge.block(self._out[:, start:stop], start, self._scratch)
        self._arrays.finish(self._out)
        self._phases.add(began, between, time.perf_counter())

    def facts(self) -> Mapping[str, Any]:
        return facts_of_phases(self._phases.seconds)

    def close(self) -> None:
        super().close()
        self._rows = self._scratch = None


class TilesWhole(DeviceTransform):
    """The same for frameworks that never write an array: every operation is on the whole signal."""

    def __init__(self, setup: Setup, cut: Cut) -> None:
        super().__init__(setup, cut.size)
        arrays = setup.arrays
        self._phases = Phases()
        factors = arrays.from_host(twiddles(cut, 0, cut.tile_size).astype(setup.dtype))
        matrix = arrays.from_host(dft_matrix(cut.num_tiles).astype(setup.dtype))
        shape = (cut.tile_size, cut.num_tiles)
        self._sub_transforms = arrays.compiled(
            lambda x: arrays.fft(transposed(arrays, reshaped(arrays, x, shape)))
        )
        self._merge = arrays.compiled(
            lambda y, twisting, across: arrays.matmul(across, arrays.multiply(y, twisting))
        )
        self._tables = (factors, matrix)

    def step(self) -> None:
        began = time.perf_counter()
        self._out = None
        between_them = self._sub_transforms(self._x)
        self._arrays.finish(between_them)
        between = time.perf_counter()
        self._out = self._merge(between_them, *self._tables)
        self._arrays.finish(self._out)
        self._phases.add(began, between, time.perf_counter())

    def facts(self) -> Mapping[str, Any]:
        return facts_of_phases(self._phases.seconds)


def reshaped(arrays: Any, array: Any, shape: Any) -> Any:
    """The array in another shape, sharing its memory where it can."""
    own = getattr(arrays, "reshape", None)
    return array.reshape(shape) if own is None else own(array, shape)


def transposed(arrays: Any, matrix: Any) -> Any:
    own = getattr(arrays, "transpose", None)
    return matrix.T if own is None else own(matrix)
