"""The tiled multiplication: threads prefetch and write back tiles while the framework multiplies.

Measured side: standard library and numpy only, Python 3.9. All memory is allocated first.
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
import threading
import time
from collections import deque
from typing import Any, Callable, Deque, Dict, FrozenSet, List, Mapping, Optional, Sequence, Tuple

from corewise.measured.workloads.kernels.tiled_product.factor_sources import Progress
from corewise.measured.workloads.kernels.tiled_product.tile_files import BadTile, Tile, TileFolder, TileSource
from corewise.measured.workloads.kernels.tiled_product.tile_order import Input, TileBlock, TileProduct, count_reads

NUM_READERS = 2
# Marks I/O threads, which the verification of placement treats differently from compute threads.
THREAD_NAME = b"cw_io"
PR_SET_NAME = 15


@dataclasses.dataclass(frozen=True)
class Factors:
    """The factors and the folder of the product."""

    a: TileSource
    b: TileSource
    c: TileFolder

    @property
    def shape(self) -> Tuple[int, int, int]:
        """Tiles: rows of C, columns of C, and the inner dimension."""
        (rows, depth), (_, columns) = self.a.grid.shape, self.b.grid.shape
        return rows, columns, depth


@dataclasses.dataclass(frozen=True)
class MultiplicationReport:
    """The durations of a product; reading and writing are summed over their threads.

    `wait_s` is the time without multiplication because a tile or a buffer was missing. `last_writes_s` is the
    time after the last product.
    """

    wall_s: float
    multiply_s: float
    read_s: float
    write_s: float
    wait_s: float
    last_writes_s: float
    num_tiles_read: int
    num_tiles_written: int

    def to_facts(self) -> Mapping[str, Any]:
        """Return the report as facts; `overlap` is the hidden fraction of reading and writing."""
        moved_s = self.read_s + self.write_s
        exposed_s = min(moved_s, self.wait_s + self.last_writes_s)
        return {**dataclasses.asdict(self), "overlap": round(1 - exposed_s / moved_s, 4) if moved_s else 1.0}


class OtherThreadFailed(Exception):
    """Another thread has failed and holds the reason."""


class Handoff:
    """Passes items between threads and wakes all waiting threads if one fails."""

    def __init__(self) -> None:
        self.condition = threading.Condition()
        self.problem: Optional[BaseException] = None

    def take(self, items: Deque[Any]) -> Any:
        """Wait for the next item and return it."""
        with self.condition:
            self.condition.wait_for(lambda: items or self.problem is not None)
            if self.problem is not None:
                raise OtherThreadFailed
            return items.popleft()

    def give(self, items: Deque[Any], item: Any) -> None:
        with self.condition:
            items.append(item)
            self.condition.notify_all()

    def fail(self, problem: BaseException) -> None:
        with self.condition:
            if self.problem is None and not isinstance(problem, OtherThreadFailed):
                self.problem = problem
            self.condition.notify_all()


class TileMemory:
    """All buffers of a product, on the device and, for a GPU, on the host.

    If a framework allocates every result, None stands for the memory of one.
    """

    def __init__(self, arrays: Any, pieces: Any, block: TileBlock, tile: int, dtype: str) -> None:
        length = tile * tile

        def allocate(count: int, are_results: bool) -> Deque[Any]:
            if pieces.is_host and (pieces.writes_in_place or not are_results):
                return deque(pieces.allocate_host_buffer((length,), dtype) for _ in range(count))
            return deque(
                arrays.create_empty((length,), dtype) if pieces.writes_in_place else None for _ in range(count)
            )

        self.inputs = allocate(block.num_buffers, are_results=False)
        self.sums = allocate(block.num_sums, are_results=True)
        num_threads = 0 if pieces.is_host else NUM_READERS + 1
        self.staging = [pieces.allocate_host_buffer((length,), dtype) for _ in range(num_threads)]


class TiledMultiplication:
    """One execution of a plan of products."""

    def __init__(self, factors: Factors, arrays: Any, pieces: Any, memory: TileMemory, report: Progress) -> None:
        self._factors, self._arrays, self._pieces, self._report = factors, arrays, pieces, report
        self._memory, self._handoff = memory, Handoff()
        self._cpus: FrozenSet[int] = frozenset(os.sched_getaffinity(0))
        self._sources: Dict[str, TileSource] = {"A": factors.a, "B": factors.b}

    def allow(self, cpus: FrozenSet[int]) -> None:
        """Let the I/O threads use these CPUs, independent of the binding of the multiplying thread."""
        self._cpus = cpus

    def run(self, products: Sequence[TileProduct]) -> MultiplicationReport:
        """Run all products; raise the error of the first thread that failed."""
        self._products = products
        self._reads = enumerate([tile for product in products for tile in product.reads])
        self._order = threading.Lock()
        self._arrived: Dict[int, Tuple[Any, Any]] = {}
        self._finished: Deque[Any] = deque()
        self._seconds = {"multiply": 0.0, "read": 0.0, "write": 0.0, "wait": 0.0}
        began = time.perf_counter()
        threads = [threading.Thread(target=self._run_thread, args=(self._read_all, n)) for n in range(NUM_READERS)]
        threads.append(threading.Thread(target=self._run_thread, args=(self._write_all, NUM_READERS)))
        for thread in threads:
            thread.start()
        ended = began
        try:
            self._multiply_all()
            ended = time.perf_counter()
        except BaseException as problem:
            self._handoff.fail(problem)
            if not isinstance(problem, OtherThreadFailed):
                raise
        finally:
            self._handoff.give(self._finished, None)
            for thread in threads:
                thread.join()
        if self._handoff.problem is not None:
            raise self._handoff.problem
        seconds = {f"{name}_s": value for name, value in self._seconds.items()}
        num_written = sum(product.last for product in products)
        now = time.perf_counter()
        return MultiplicationReport(
            wall_s=now - began,
            last_writes_s=now - ended,
            num_tiles_read=count_reads(products),
            num_tiles_written=num_written,
            **seconds,
        )

    def _run_thread(self, work: Callable[[int], None], number: int) -> None:
        try:
            ctypes.CDLL(None).prctl(PR_SET_NAME, THREAD_NAME, 0, 0, 0)
            os.sched_setaffinity(0, self._cpus)
            with self._pieces.use_stream():
                work(number)
        except BaseException as problem:
            self._handoff.fail(problem)

    def _multiply_all(self) -> None:
        # By tile: its array, and the buffer that holds it.
        held: Dict[Input, Tuple[Any, Any]] = {}
        sums: Dict[Tile, Tuple[Any, Any]] = {}
        next_read = 0
        for number, product in enumerate(self._products):
            self._report("multiplying", number, len(self._products))
            began = time.perf_counter()
            for tile in product.reads:
                held[tile] = self._await_read(next_read)
                next_read += 1
            place = (product.row, product.column)
            if product.first:
                sums[place] = self._allocate_sum(place)
            ready = time.perf_counter()
            sums[place] = (self._add_product(product, held, sums[place][0]), sums[place][1])
            self._seconds["wait"] += ready - began
            self._seconds["multiply"] += time.perf_counter() - ready
            for tile in product.evictions:
                self._handoff.give(self._memory.inputs, held.pop(tile)[1])
            if product.last:
                self._handoff.give(self._finished, (place, *sums.pop(place)))

    def _add_product(self, product: TileProduct, held: Mapping[Input, Tuple[Any, Any]], c: Any) -> Any:
        """Add a product to its sum and wait for it; no local variable keeps an array alive."""
        a, b = held["A", product.row, product.k][0], held["B", product.k, product.column][0]
        c = self._arrays.matmul(a, b, out=c) if product.first else self._pieces.add_product(c, a, b)
        self._pieces.wait(c)
        return c

    def _allocate_sum(self, place: Tile) -> Tuple[Any, Any]:
        buffer = self._handoff.take(self._memory.sums)
        if buffer is None:
            return None, None
        return self._reshape_buffer(buffer, self._factors.c.grid.compute_tile_shape(*place)), buffer

    def _reshape_buffer(self, buffer: Any, shape: Tuple[int, int]) -> Any:
        flat = self._pieces.move_to_device(buffer) if self._pieces.is_host else buffer
        return flat[: shape[0] * shape[1]].reshape(shape)

    def _await_read(self, number: int) -> Tuple[Any, Any]:
        with self._handoff.condition:
            self._handoff.condition.wait_for(lambda: number in self._arrived or self._handoff.problem is not None)
            if self._handoff.problem is not None:
                raise OtherThreadFailed
            return self._arrived.pop(number)

    def _read_all(self, thread: int) -> None:
        while True:
            # Reads get buffers in the order of use, so that a later read never starves an earlier one.
            with self._order:
                number, tile = next(self._reads, (-1, None))
                if tile is None:
                    return
                buffer = self._handoff.take(self._memory.inputs)
            began = time.perf_counter()
            array = self._read(tile, buffer, thread)
            with self._handoff.condition:
                self._seconds["read"] += time.perf_counter() - began
                self._arrived[number] = (array, buffer)
                self._handoff.condition.notify_all()
            # Without a buffer, the memory of the array is freed with its last reference.
            del array

    def _read(self, tile: Input, buffer: Any, thread: int) -> Any:
        source, place = self._sources[tile[0]], (tile[1], tile[2])
        if self._pieces.is_host:
            return self._pieces.move_to_device(source.read(place, buffer))
        host = source.read(place, self._memory.staging[thread])
        if buffer is None:
            return self._pieces.move_to_device(host)
        return self._pieces.move_to_device(host, out=self._reshape_buffer(buffer, host.shape))

    def _write_all(self, thread: int) -> None:
        while True:
            finished = self._handoff.take(self._finished)
            if finished is None:
                return
            place, array, buffer = finished
            began = time.perf_counter()
            self._factors.c.write(place, self._copy_to_host(array, thread))
            self._seconds["write"] += time.perf_counter() - began
            del finished, array
            self._handoff.give(self._memory.sums, buffer)

    def _copy_to_host(self, array: Any, thread: int) -> Any:
        if self._pieces.is_host:
            return self._pieces.as_numpy(array)
        shape = tuple(array.shape)
        host = self._memory.staging[thread][: shape[0] * shape[1]].reshape(shape)
        self._pieces.copy_to_host(array, host)
        return host


def find_finished_tiles(c: TileFolder, buffer: Any, report: Progress) -> Tuple[FrozenSet[Tile], List[str]]:
    """Return the intact tiles of C, and a message for each damaged one."""
    intact, problems = set(), []
    existing = [tile for tile in c.grid.iterate_tiles() if c.has_tile(tile)]
    for number, tile in enumerate(existing):
        report("checking finished tiles", number, len(existing))
        try:
            c.read(tile, buffer)
            intact.add(tile)
        except BadTile as problem:
            problems.append(str(problem))
    return frozenset(intact), problems
