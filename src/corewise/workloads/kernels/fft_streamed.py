"""The Fourier transform of a signal larger than the device's memory.

Measured side: standard library and numpy only, Python 3.9. The signal and its transform lie in host memory or
in files; groups of tiles, then blocks of columns, come to the device, are worked on and go back. Several
pieces are on their way at once, each in a thread and a stream of its own.
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

from corewise.runtimes.base import Check, Infeasible, NotNow
from corewise.workloads.kernels.base import DTYPE_BYTES, Setup
from corewise.workloads.kernels.fft_check import check_transform, facts_of_phases
from corewise.workloads.kernels.fft_merge import LEAST_WIDTH, Cut, Merge
from corewise.workloads.kernels.fft_tiles import Phases, transposed
from corewise.workloads.kernels.framework_pieces import pieces_of
from corewise.workloads.registry import load_attribute

FILL = "corewise.runtimes.filling:fill_normal"
FREE_BYTES = "corewise.runtimes.host_memory:free_host_bytes"
REFUSAL = "corewise.runtimes.room:no_room"
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

Piece = Tuple[int, int]
Work = Callable[["Slot", int, int], None]


class Slot:
    """What one piece needs while it is on its way."""

    def __init__(self, buffer: Any, scratch: Any) -> None:
        self.buffer, self.scratch = buffer, scratch


class StreamedTiles:
    """Both phases over pieces of at most so many bytes."""

    def __init__(
        self, setup: Setup, cut: Cut, *, in_files: bool, piece_bytes: int, pieces_bytes: int
    ) -> None:
        self._arrays, self._dtype, self._cut = setup.arrays, setup.dtype, cut
        self._pieces = pieces_of(setup.arrays)
        self._phases = Phases()
        self._piece_elements = piece_bytes // DTYPE_BYTES[setup.dtype]
        require_pieces(cut, self._piece_elements, setup.dtype)
        self._folder = setup.folder if in_files else None
        require_room(self._folder, cut, DTYPE_BYTES[setup.dtype], setup.num_ranks, pieces_bytes)
        self._seed = setup.seed
        self._files: List[str] = []
        try:
            self._x = self._on_host("signal")
            self._out = self._on_host("transform").reshape(cut.num_tiles, cut.tile_size)
        except BaseException:
            self._remove_files()
            raise
        load_attribute(FILL)(self._x, setup.seed)
        self._width = min(cut.width(self._piece_elements), self._piece_elements // cut.num_tiles)
        self._group = max(1, min(cut.num_tiles, self._piece_elements // cut.tile_size))
        self._merge = Merge(setup.arrays, self._pieces, setup.dtype, cut, self._width)
        self._turned_and_transformed = setup.arrays.compiled(
            lambda rows: setup.arrays.fft(transposed(setup.arrays, rows))
        )
        largest = max(self._group * cut.tile_size, self._width * cut.num_tiles)
        self._slots = [
            Slot(self._pieces.host_buffer((largest,), setup.dtype), self._merge.scratch())
            for _ in range(self._pieces.num_streams)
        ]

    def _on_host(self, name: str) -> Any:
        if self._folder is None:
            return np.empty(self._cut.size, self._dtype)
        path = os.path.join(self._folder, f"{name}-{self._seed}.fft")  # the ranks of a trial share the folder
        self._files.append(path)
        reserve_file(path, self._cut.size * DTYPE_BYTES[self._dtype])
        return np.memmap(path, self._dtype, "r+", shape=(self._cut.size,))

    def step(self) -> None:
        began = time.perf_counter()
        tiles = range(0, self._cut.num_tiles, self._group)
        groups = [(first, min(self._cut.num_tiles, first + self._group)) for first in tiles]
        self._over(groups, self._transform_group)
        between = time.perf_counter()
        self._over(self._cut.blocks(self._width), self._merge_block)
        self._phases.add(began, between, time.perf_counter())

    def _over(self, pieces: Iterable[Piece], work: Work) -> None:
        """Does the work for every piece; a thread takes the next one as soon as it is free."""
        waiting, lock = iter(list(pieces)), threading.Lock()

        def take_all(slot: Slot) -> None:
            with self._pieces.stream():
                while True:
                    with lock:
                        piece = next(waiting, None)
                    if piece is None:
                        return
                    work(slot, *piece)

        if len(self._slots) == 1:
            take_all(self._slots[0])
            return
        with ThreadPoolExecutor(len(self._slots)) as threads:
            for done in [threads.submit(take_all, slot) for slot in self._slots]:
                done.result()

    def _transform_group(self, slot: Slot, first: int, last: int) -> None:
        """Sub-transforms of some tiles: taken as they lie side by side, turned on the device."""
        shape = (self._cut.tile_size, last - first)
        buffer = slot.buffer[: shape[0] * shape[1]].reshape(shape)
        np.copyto(buffer, self._x.reshape(self._cut.tile_size, self._cut.num_tiles)[:, first:last])
        if self._pieces.writes_in_place:
            turned = self._arrays.empty((shape[1], shape[0]), self._dtype)
            turned = self._arrays.copy(self._pieces.upload(buffer).T, out=turned)
            transform = self._arrays.fft(turned)
        else:
            transform = self._turned_and_transformed(self._pieces.upload(buffer))
        self._give_back(transform, slot, self._out[first:last])

    def _merge_block(self, slot: Slot, start: int, stop: int) -> None:
        shape = (self._cut.num_tiles, stop - start)
        buffer = slot.buffer[: shape[0] * shape[1]].reshape(shape)
        np.copyto(buffer, self._out[:, start:stop])
        merged = self._merge.block(self._pieces.upload(buffer), start, slot.scratch)
        self._give_back(merged, slot, self._out[:, start:stop])

    def _give_back(self, array: Any, slot: Slot, place: Any) -> None:
        if self._pieces.is_host:
            self._pieces.download(array, place)
            return
        buffer = slot.buffer[: place.size].reshape(place.shape)
        self._pieces.download(array, buffer)
        np.copyto(place, buffer)

    def check(self) -> Check:
        self.step()
        out = self._out.reshape(-1)
        return check_transform(self._x, out, self._cut.size, self._dtype, np.asarray)

    def facts(self) -> Mapping[str, Any]:
        return {
            **facts_of_phases(self._phases.seconds),
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


def require_pieces(cut: Cut, piece_elements: int, dtype: str) -> None:
    """Raises where a tile, or a block of the fewest columns, is larger than a piece may be."""
    if cut.tile_size > piece_elements:
        most = piece_elements * DTYPE_BYTES[dtype]
        raise Infeasible(
            f"fft: a tile has {cut.tile_size * DTYPE_BYTES[dtype]} bytes, a piece may have {most}; "
            f"take {_say_tiles(cut.size, piece_elements)}more memory_bytes"
        )
    if cut.num_tiles * min(LEAST_WIDTH, cut.tile_size) > piece_elements:
        raise Infeasible(
            f"fft: {cut.num_tiles} tiles are too many for pieces of {piece_elements} values: "
            "take fewer tiles, or more memory_bytes"
        )


def _say_tiles(size: int, piece_elements: int) -> str:
    """The fewest tiles that fit such pieces, as words before what else there is; none where none do."""
    for num_tiles in range(-(-size // max(1, piece_elements)), piece_elements // LEAST_WIDTH + 1):
        if size % num_tiles == 0:
            return f"at least {num_tiles} tiles, or "
    return ""


def require_room(
    folder: Optional[str], cut: Cut, value_bytes: int, num_sharing: int, pieces_bytes: int
) -> None:
    """Raises where this rank's share of the host's memory, or the folder's disk, is too small for both.

    Beside a signal in the host's memory lie the pieces that are on their way.
    """
    needed_bytes = 2 * cut.size * value_bytes
    if folder is not None:
        free_bytes = shutil.disk_usage(folder).free
        if needed_bytes > free_bytes:
            fits = _say_largest(cut, free_bytes // (2 * value_bytes))
            raise NotNow(
                f"fft: signal and transform need {needed_bytes} bytes, {folder} has {free_bytes} free; "
                f"{fits}; or free some space"
            )
        return
    free_bytes = int(load_attribute(FREE_BYTES)()) // num_sharing
    if needed_bytes + pieces_bytes > free_bytes:
        shared = f" for each of {num_sharing} processes" if num_sharing > 1 else ""
        reason = (
            f"fft: signal and transform need {needed_bytes} bytes and their pieces {pieces_bytes}, "
            f"host memory has {free_bytes} free{shared}; "
            f"{_say_largest(cut, (free_bytes - pieces_bytes) // (2 * value_bytes))}; or take signal file"
        )
        raise load_attribute(REFUSAL)(reason, needed_bytes + pieces_bytes, num_ranks=num_sharing)


def _say_largest(cut: Cut, most: int) -> str:
    """The largest size of at most so many values: a power of two stays one, others are whole tiles."""
    most, is_power = max(0, most), cut.size & (cut.size - 1) == 0
    largest = 1 << max(0, most.bit_length() - 1) if is_power else most // cut.num_tiles * cut.num_tiles
    if largest < 2 * cut.num_tiles or most < largest:
        return f"no size in {cut.num_tiles} tiles fits"
    return f"the largest size that fits is {largest}"


def reserve_file(path: str, num_bytes: int) -> None:
    """A file whose bytes are all on the disk: a sparse one ends the process when the disk is full."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        os.posix_fallocate(descriptor, 0, num_bytes)
    except OSError as problem:
        if problem.errno not in NO_ROOM:
            raise
        raise NotNow(
            f"fft: no room for the {num_bytes} bytes of {path}: {problem.strerror}; "
            "free some space, or take a smaller size"
        ) from problem
    finally:
        os.close(descriptor)
