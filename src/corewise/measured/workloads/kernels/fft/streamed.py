"""The Fourier transform of a signal larger than the device's memory.

Measured side: standard library and numpy only, Python 3.9. The signal and its transform are in host memory or
in files. Groups of tiles, then blocks of columns, are copied to the device, processed and copied back.
Several pieces are processed concurrently, each with its thread and its stream.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Iterable, List, Mapping, Optional, Tuple

import numpy as np

from corewise.measured.runtimes.base import Check, Infeasible, NotNow
from corewise.measured.workloads.kernels.fft.merge import MIN_WIDTH, BlockMerger, TileSplit
from corewise.measured.workloads.kernels.fft.reference import check_transform, summarize_phases
from corewise.measured.workloads.kernels.fft.tiles import PhaseTimes
from corewise.measured.workloads.kernels.framework_pieces import load_pieces
from corewise.measured.workloads.kernels.kernel import DTYPE_BYTES, KernelRun, KernelSetup
from corewise.measured.workloads.registry import load_attribute

FILL = "corewise.measured.runtimes.arrays.random_fill:fill_normal"
FREE_BYTES = "corewise.measured.runtimes.devices.host_memory:read_free_host_bytes"
REFUSAL = "corewise.measured.runtimes.memory_room:build_memory_refusal"
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

Piece = Tuple[int, int]
PieceWork = Callable[["PieceSlot", int, int], None]


class PieceSlot:
    """The buffers of one piece in flight."""

    def __init__(self, buffer: Any, scratch: Any) -> None:
        self.buffer, self.scratch = buffer, scratch


class StreamedTiles(KernelRun):
    """Runs both phases over pieces of at most `piece_bytes`."""

    def __init__(
        self, setup: KernelSetup, cut: TileSplit, *, in_files: bool, piece_bytes: int, pieces_bytes: int
    ) -> None:
        self._arrays, self._dtype, self._cut = setup.arrays, setup.dtype, cut
        self._pieces = load_pieces(setup.arrays)
        self._phases = PhaseTimes()
        self._piece_elements = piece_bytes // DTYPE_BYTES[setup.dtype]
        require_pieces(cut, self._piece_elements, setup.dtype)
        self._folder = setup.folder if in_files else None
        require_room(self._folder, cut, DTYPE_BYTES[setup.dtype], setup.num_ranks, pieces_bytes)
        self._seed = setup.seed
        self._files: List[str] = []
        try:
            self._x = self._allocate_host_array("signal")
            self._out = self._allocate_host_array("transform").reshape(cut.num_tiles, cut.tile_size)
        except BaseException:
            self._remove_files()
            raise
        load_attribute(FILL)(self._x, setup.seed)
        self._width = min(cut.choose_width(self._piece_elements), self._piece_elements // cut.num_tiles)
        self._group = max(1, min(cut.num_tiles, self._piece_elements // cut.tile_size))
        self._merge = BlockMerger(setup.arrays, self._pieces, setup.dtype, cut, self._width)
        self._transpose_and_transform = setup.arrays.compile(
            lambda rows: setup.arrays.compute_fft(setup.arrays.transpose(rows))
        )
        largest = max(self._group * cut.tile_size, self._width * cut.num_tiles)
        self._slots = [
            PieceSlot(self._pieces.allocate_host_buffer((largest,), setup.dtype), self._merge.allocate_scratch())
            for _ in range(self._pieces.num_streams)
        ]

    def _allocate_host_array(self, name: str) -> Any:
        if self._folder is None:
            return np.empty(self._cut.size, self._dtype)
        # The ranks of a trial share the folder, so the seed makes the name unique.
        path = os.path.join(self._folder, f"{name}-{self._seed}.fft")
        self._files.append(path)
        reserve_file(path, self._cut.size * DTYPE_BYTES[self._dtype])
        return np.memmap(path, self._dtype, "r+", shape=(self._cut.size,))

    def step(self) -> None:
        began = time.perf_counter()
        tiles = range(0, self._cut.num_tiles, self._group)
        groups = [(first, min(self._cut.num_tiles, first + self._group)) for first in tiles]
        self._process_pieces(groups, self._transform_group)
        between = time.perf_counter()
        self._process_pieces(self._cut.iterate_blocks(self._width), self._merge_block)
        self._phases.add(began, between, time.perf_counter())

    def _process_pieces(self, pieces: Iterable[Piece], work: PieceWork) -> None:
        """Process every piece; each thread takes the next one as soon as it is free."""
        remaining, lock = iter(list(pieces)), threading.Lock()

        def take_all(slot: PieceSlot) -> None:
            with self._pieces.use_stream():
                while True:
                    with lock:
                        piece = next(remaining, None)
                    if piece is None:
                        return
                    work(slot, *piece)

        if len(self._slots) == 1:
            take_all(self._slots[0])
            return
        with ThreadPoolExecutor(len(self._slots)) as threads:
            for done in [threads.submit(take_all, slot) for slot in self._slots]:
                done.result()

    def _transform_group(self, slot: PieceSlot, first: int, last: int) -> None:
        """Transform some tiles; they are copied interleaved and transposed on the device."""
        shape = (self._cut.tile_size, last - first)
        buffer = slot.buffer[: shape[0] * shape[1]].reshape(shape)
        np.copyto(buffer, self._x.reshape(self._cut.tile_size, self._cut.num_tiles)[:, first:last])
        if self._pieces.writes_in_place:
            transposed = self._arrays.create_empty((shape[1], shape[0]), self._dtype)
            transposed = self._arrays.copy(self._pieces.move_to_device(buffer).T, out=transposed)
            transform = self._arrays.compute_fft(transposed)
        else:
            transform = self._transpose_and_transform(self._pieces.move_to_device(buffer))
        self._write_back(transform, slot, self._out[first:last])

    def _merge_block(self, slot: PieceSlot, start: int, stop: int) -> None:
        shape = (self._cut.num_tiles, stop - start)
        buffer = slot.buffer[: shape[0] * shape[1]].reshape(shape)
        np.copyto(buffer, self._out[:, start:stop])
        merged = self._merge.merge_block(self._pieces.move_to_device(buffer), start, slot.scratch)
        self._write_back(merged, slot, self._out[:, start:stop])

    def _write_back(self, array: Any, slot: PieceSlot, place: Any) -> None:
        if self._pieces.is_host:
            self._pieces.copy_to_host(array, place)
            return
        buffer = slot.buffer[: place.size].reshape(place.shape)
        self._pieces.copy_to_host(array, buffer)
        np.copyto(place, buffer)

    def check(self) -> Check:
        self.step()
        out = self._out.reshape(-1)
        return check_transform(self._x, out, self._cut.size, self._dtype, np.asarray)

    def read_facts(self) -> Mapping[str, Any]:
        return {
            **summarize_phases(self._phases.seconds),
            "num_streams": self._pieces.num_streams,
            "piece_bytes": self._slots[0].buffer.nbytes,
            "num_pieces": -(-self._cut.num_tiles // self._group) - (-self._cut.tile_size // self._width),
        }

    def close(self) -> None:
        self._x = self._out = None
        self._slots = []
        self._remove_files()

    def _remove_files(self) -> None:
        for path in self._files:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


def require_pieces(cut: TileSplit, piece_elements: int, dtype: str) -> None:
    """Raise Infeasible if a tile, or the narrowest block, is larger than a piece."""
    if cut.tile_size > piece_elements:
        most = piece_elements * DTYPE_BYTES[dtype]
        raise Infeasible(
            f"fft: a tile has {cut.tile_size * DTYPE_BYTES[dtype]} bytes, but a piece may have {most}; "
            f"use {_suggest_tiles(cut.size, piece_elements)}more memory_bytes"
        )
    if cut.num_tiles * min(MIN_WIDTH, cut.tile_size) > piece_elements:
        raise Infeasible(
            f"fft: {cut.num_tiles} tiles are too many for pieces of {piece_elements} values: "
            "use fewer tiles, or more memory_bytes"
        )


def _suggest_tiles(size: int, piece_elements: int) -> str:
    """Return the smallest number of tiles that fits, as the start of a remedy; empty if none fits."""
    for num_tiles in range(-(-size // max(1, piece_elements)), piece_elements // MIN_WIDTH + 1):
        if size % num_tiles == 0:
            return f"at least {num_tiles} tiles, or "
    return ""


def require_room(folder: Optional[str], cut: TileSplit, value_bytes: int, num_sharing: int, pieces_bytes: int) -> None:
    """Raise NotNow or Infeasible if the disk, or this rank's share of host memory, is too small.

    Host memory must also hold the pieces in flight.
    """
    needed_bytes = 2 * cut.size * value_bytes
    if folder is not None:
        free_bytes = shutil.disk_usage(folder).free
        if needed_bytes > free_bytes:
            fits = _suggest_size(cut, free_bytes // (2 * value_bytes))
            raise NotNow(
                f"fft: signal and transform need {needed_bytes} bytes, {folder} has {free_bytes} free; "
                f"{fits}; or free some disk space"
            )
        return
    free_bytes = int(load_attribute(FREE_BYTES)()) // num_sharing
    if needed_bytes + pieces_bytes > free_bytes:
        shared = f" for each of {num_sharing} processes" if num_sharing > 1 else ""
        reason = (
            f"fft: signal and transform need {needed_bytes} bytes and their pieces {pieces_bytes}, "
            f"host memory has {free_bytes} free{shared}; "
            f"{_suggest_size(cut, (free_bytes - pieces_bytes) // (2 * value_bytes))}; or use signal file"
        )
        raise load_attribute(REFUSAL)(reason, needed_bytes + pieces_bytes, num_ranks=num_sharing)


def _suggest_size(cut: TileSplit, most: int) -> str:
    """Return the largest size that fits: a power of two if the size is one, else a multiple of the tiles."""
    most, is_power = max(0, most), cut.size & (cut.size - 1) == 0
    largest = 1 << max(0, most.bit_length() - 1) if is_power else most // cut.num_tiles * cut.num_tiles
    if largest < 2 * cut.num_tiles or most < largest:
        return f"no size with {cut.num_tiles} tiles fits"
    return f"the largest size that fits is {largest}"


def reserve_file(path: str, num_bytes: int) -> None:
    """Create a fully allocated file; a sparse mapped file would kill the process on a full disk."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        os.posix_fallocate(descriptor, 0, num_bytes)
    except OSError as problem:
        if problem.errno not in NO_ROOM:
            raise
        raise NotNow(
            f"fft: no space for the {num_bytes} bytes of {path}: {problem.strerror}; "
            "free some disk space, or use a smaller size"
        ) from problem
    finally:
        os.close(descriptor)
