"""Fourier transforms of a signal in device memory, direct or by interleaved tiles.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

import abc
import time
from collections import deque
from typing import Any, Deque, Dict, Mapping

from corewise.measured.runtimes.base import Check
from corewise.measured.workloads.kernels.fft.merge import (
    BlockMerger,
    TileSplit,
    build_dft_matrix,
    choose_block_elements,
    compute_twiddles,
)
from corewise.measured.workloads.kernels.fft.reference import check_transform, summarize_phases
from corewise.measured.workloads.kernels.framework_pieces import load_pieces
from corewise.measured.workloads.kernels.kernel import KernelRun, KernelSetup

# Elements transformed together per thread, which limits the copies that a framework makes.
GROUP_ELEMENTS = {"cpu": 2**20, "cuda": 2**27}
# Tiles gathered from the signal together. Fewer would load every cache line several times.
MIN_GATHERED = 8
NUM_TIMES_KEPT = 101


class PhaseTimes:
    """Durations of the phases in the last steps, in seconds."""

    def __init__(self) -> None:
        names = ("sub_transforms", "merge")
        self.seconds: Dict[str, Deque[float]] = {name: deque(maxlen=NUM_TIMES_KEPT) for name in names}

    def add(self, began: float, between: float, ended: float) -> None:
        self.seconds["sub_transforms"].append(between - began)
        self.seconds["merge"].append(ended - between)


class DeviceTransform(KernelRun):
    """The common part of transforms of a signal in device memory."""

    def __init__(self, setup: KernelSetup, size: int) -> None:
        self._arrays, self._dtype, self._size = setup.arrays, setup.dtype, size
        self._x = setup.arrays.draw_normal((size,), setup.dtype, setup.seed)
        self._out: Any = None

    @abc.abstractmethod
    def step(self) -> None:
        """Run one transform; the device has finished when it returns."""

    def read_facts(self) -> Mapping[str, Any]:
        return {}

    def check(self) -> Check:
        self.step()
        out = self._arrays.reshape(self._out, (self._size,))
        arrays = self._arrays
        return check_transform(self._x, out, self._size, self._dtype, arrays.to_host, arrays.device)

    def close(self) -> None:
        self._x = self._out = None


class DirectTransform(DeviceTransform):
    """The framework's transform; the previous result is released first."""

    def step(self) -> None:
        self._out = None
        self._out = self._arrays.compute_fft(self._x)
        self._arrays.finish(self._out)


class TilesInPlace(DeviceTransform):
    """Gathers, transforms and merges tiles in one array besides the signal."""

    def __init__(self, setup: KernelSetup, cut: TileSplit) -> None:
        super().__init__(setup, cut.size)
        arrays = setup.arrays
        self._pieces, self._cut, self._phases = load_pieces(arrays), cut, PhaseTimes()
        self._rows = self._x.reshape(cut.tile_size, cut.num_tiles)
        self._out = arrays.create_zeros((cut.num_tiles, cut.tile_size), setup.dtype)
        num_threads = setup.num_threads if arrays.device == "cpu" else 1
        self._at_once = max(1, num_threads * GROUP_ELEMENTS[arrays.device] // cut.tile_size)
        self._width = cut.choose_width(choose_block_elements(arrays.device, cut.num_tiles, num_threads))
        self._merge = BlockMerger(arrays, self._pieces, setup.dtype, cut, self._width)
        self._scratch = self._merge.allocate_scratch()

    def step(self) -> None:
        began = time.perf_counter()
        at_once, gathered = self._at_once, max(MIN_GATHERED, self._at_once)
        for first in range(0, self._cut.num_tiles, gathered):
            last = min(self._cut.num_tiles, first + gathered)
            self._arrays.copy(self._rows[:, first:last].T, out=self._out[first:last])
            for tile in range(first, last, at_once):
                group = self._out[tile : min(last, tile + at_once)]
                self._pieces.compute_fft(group, 1, out=group)
        self._arrays.finish(self._out)
        between = time.perf_counter()
        for start, stop in self._cut.iterate_blocks(self._width):
            self._merge.merge_block(self._out[:, start:stop], start, self._scratch)
        self._arrays.finish(self._out)
        self._phases.add(began, between, time.perf_counter())

    def read_facts(self) -> Mapping[str, Any]:
        return summarize_phases(self._phases.seconds)

    def close(self) -> None:
        super().close()
        self._rows = self._scratch = None


class TilesWhole(DeviceTransform):
    """The same for frameworks with immutable arrays: every operation is on the whole signal."""

    def __init__(self, setup: KernelSetup, cut: TileSplit) -> None:
        super().__init__(setup, cut.size)
        arrays = setup.arrays
        self._phases = PhaseTimes()
        factors = arrays.from_host(compute_twiddles(cut, 0, cut.tile_size).astype(setup.dtype))
        matrix = arrays.from_host(build_dft_matrix(cut.num_tiles).astype(setup.dtype))
        shape = (cut.tile_size, cut.num_tiles)
        self._sub_transforms = arrays.compile(lambda x: arrays.compute_fft(arrays.transpose(arrays.reshape(x, shape))))
        self._merge = arrays.compile(lambda y, twisting, across: arrays.matmul(across, arrays.multiply(y, twisting)))
        self._tables = (factors, matrix)

    def step(self) -> None:
        began = time.perf_counter()
        self._out = None
        sub_transforms = self._sub_transforms(self._x)
        self._arrays.finish(sub_transforms)
        between = time.perf_counter()
        self._out = self._merge(sub_transforms, *self._tables)
        self._arrays.finish(self._out)
        self._phases.add(began, between, time.perf_counter())

    def read_facts(self) -> Mapping[str, Any]:
        return summarize_phases(self._phases.seconds)
