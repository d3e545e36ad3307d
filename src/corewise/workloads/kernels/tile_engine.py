"""The product of matrices in tiles: threads read ahead and write behind while the framework multiplies.

Measured side: standard library and numpy only, Python 3.9. All memory is taken before the first tile is read.
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
import threading
import time
from collections import deque
from typing import Any, Callable, Deque, Dict, FrozenSet, List, Mapping, Optional, Sequence, Tuple

from corewise.workloads.kernels.tile_order import Block, Input, Product, count_reads
from corewise.workloads.kernels.tile_store import BadTile, Source, Tile, TileFolder

NUM_READERS = 2
THREAD_NAME = b"tile_io"  # one of those that serve and do not compute, for the proof of placement
PR_SET_NAME = 15
Told = Callable[[str, int, int], None]


@dataclasses.dataclass(frozen=True)
class Factors:
    """What is multiplied and where the product goes."""

    a: Source
    b: Source
    c: TileFolder

    @property
    def shape(self) -> Tuple[int, int, int]:
        """Counted in tiles: rows and columns of C, and the tiles each of its sums goes over."""
        (rows, depth), (_, columns) = self.a.grid.shape, self.b.grid.shape
        return rows, columns, depth


@dataclasses.dataclass(frozen=True)
class Report:
    """Where the time of a product went; reading and writing are summed over their threads."""

    wall_s: float
    multiply_s: float
    read_s: float
    write_s: float
    wait_s: float  # in which nothing was multiplied, because a tile or a buffer was not there
    last_writes_s: float  # after the last product
    num_tiles_read: int
    num_tiles_written: int

    def facts(self) -> Mapping[str, Any]:
        """The report as facts; `overlap` is the part of reading and writing that cost no time."""
        moved_s = self.read_s + self.write_s
        exposed_s = min(moved_s, self.wait_s + self.last_writes_s)
        return {**dataclasses.asdict(self), "overlap": round(1 - exposed_s / moved_s, 4) if moved_s else 1.0}


class Stopped(Exception):
    """Another thread has failed; the reason is there."""


class Waiting:
    """Things handed from thread to thread; whoever waits is woken when one of them fails."""

    def __init__(self) -> None:
        self.condition = threading.Condition()
        self.problem: Optional[BaseException] = None

    def take(self, things: Deque[Any]) -> Any:
        """The next of the things, as soon as there is one."""
        with self.condition:
            self.condition.wait_for(lambda: things or self.problem is not None)
            if self.problem is not None:
                raise Stopped
            return things.popleft()

    def give(self, things: Deque[Any], thing: Any) -> None:
        with self.condition:
            things.append(thing)
            self.condition.notify_all()

    def fail(self, problem: BaseException) -> None:
        with self.condition:
            if self.problem is None and not isinstance(problem, Stopped):
                self.problem = problem
            self.condition.notify_all()


class TileMemory:
    """All buffers of a product, on the device and, where that is another place, on the host.

    Where a framework makes every result anew, None stands for the room of one.
    """

    def __init__(self, arrays: Any, pieces: Any, block: Block, tile: int, dtype: str) -> None:
        length = tile * tile

        def buffers(count: int, are_results: bool) -> Deque[Any]:
            if pieces.is_host and (pieces.writes_in_place or not are_results):
                return deque(pieces.host_buffer((length,), dtype) for _ in range(count))
            return deque(
                arrays.empty((length,), dtype) if pieces.writes_in_place else None for _ in range(count)
            )

        self.inputs = buffers(block.num_buffers, are_results=False)
        self.sums = buffers(block.num_sums, are_results=True)
        num_threads = 0 if pieces.is_host else NUM_READERS + 1
        self.staging = [pieces.host_buffer((length,), dtype) for _ in range(num_threads)]


class TiledMultiplication:
    """One run over a plan of products."""

    def __init__(self, factors: Factors, arrays: Any, pieces: Any, memory: TileMemory, told: Told) -> None:
        self._factors, self._arrays, self._pieces, self._told = factors, arrays, pieces, told
        self._memory, self._waiting = memory, Waiting()
        self._cpus: FrozenSet[int] = frozenset(os.sched_getaffinity(0))
        self._sources: Dict[str, Source] = {"A": factors.a, "B": factors.b}

    def allow(self, cpus: FrozenSet[int]) -> None:
        """Lets the threads that read and write use these CPUs, wherever the one that multiplies is bound."""
        self._cpus = cpus

    def run(self, products: Sequence[Product]) -> Report:
        """Multiplies everything; raises what stopped the first thread that failed."""
        self._products = products
        self._reads = enumerate([tile for product in products for tile in product.reads])
        self._order = threading.Lock()
        self._arrived: Dict[int, Tuple[Any, Any]] = {}
        self._finished: Deque[Any] = deque()
        self._seconds = {"multiply": 0.0, "read": 0.0, "write": 0.0, "wait": 0.0}
        began = time.perf_counter()
        threads = [
            threading.Thread(target=self._guarded, args=(self._read_all, n)) for n in range(NUM_READERS)
        ]
        threads.append(threading.Thread(target=self._guarded, args=(self._write_all, NUM_READERS)))
        for thread in threads:
            thread.start()
        ended = began
        try:
            self._multiply_all()
            ended = time.perf_counter()
        except BaseException as problem:
            self._waiting.fail(problem)
            if not isinstance(problem, Stopped):
                raise
        finally:
            self._waiting.give(self._finished, None)
            for thread in threads:
                thread.join()
        if self._waiting.problem is not None:
            raise self._waiting.problem
        seconds = {f"{name}_s": value for name, value in self._seconds.items()}
        num_written = sum(product.last for product in products)
        now = time.perf_counter()
        return Report(
            wall_s=now - began,
            last_writes_s=now - ended,
            num_tiles_read=count_reads(products),
            num_tiles_written=num_written,
            **seconds,
        )

    def _guarded(self, work: Callable[[int], None], number: int) -> None:
        try:
            ctypes.CDLL(None).prctl(PR_SET_NAME, THREAD_NAME, 0, 0, 0)
            os.sched_setaffinity(0, self._cpus)
            with self._pieces.stream():
                work(number)
        except BaseException as problem:
            self._waiting.fail(problem)

    def _multiply_all(self) -> None:
        held: Dict[Input, Tuple[Any, Any]] = {}  # tile -> its array, and the buffer it lies in
        sums: Dict[Tile, Tuple[Any, Any]] = {}
        next_read = 0
        for number, product in enumerate(self._products):
            self._told("multiplying", number, len(self._products))
            began = time.perf_counter()
            for tile in product.reads:
                held[tile] = self._await_read(next_read)
                next_read += 1
            place = (product.row, product.column)
            if product.first:
                sums[place] = self._new_sum(place)
            ready = time.perf_counter()
            sums[place] = (self._multiplied(product, held, sums[place][0]), sums[place][1])
            self._seconds["wait"] += ready - began
            self._seconds["multiply"] += time.perf_counter() - ready
            for tile in product.forgets:
                self._waiting.give(self._memory.inputs, held.pop(tile)[1])
            if product.last:
                self._waiting.give(self._finished, (place, *sums.pop(place)))

    def _multiplied(self, product: Product, held: Mapping[Input, Tuple[Any, Any]], c: Any) -> Any:
        """The sum with this product in it, once it is there; no array lives on in a variable here."""
        a, b = held["A", product.row, product.k][0], held["B", product.k, product.column][0]
        c = self._arrays.matmul(a, b, out=c) if product.first else self._pieces.multiply_add(c, a, b)
        self._pieces.wait(c)
        return c

    def _new_sum(self, place: Tile) -> Tuple[Any, Any]:
        buffer = self._waiting.take(self._memory.sums)
        if buffer is None:
            return None, None
        return self._shaped(buffer, self._factors.c.grid.tile_shape(*place)), buffer

    def _shaped(self, buffer: Any, shape: Tuple[int, int]) -> Any:
        flat = self._pieces.upload(buffer) if self._pieces.is_host else buffer
        return flat[: shape[0] * shape[1]].reshape(shape)

    def _await_read(self, number: int) -> Tuple[Any, Any]:
        with self._waiting.condition:
            self._waiting.condition.wait_for(
                lambda: number in self._arrived or self._waiting.problem is not None
            )
            if self._waiting.problem is not None:
                raise Stopped
            return self._arrived.pop(number)

    def _read_all(self, thread: int) -> None:
        while True:
            with self._order:  # buffers go to reads in the order of use: a later one never starves an earlier
                number, tile = next(self._reads, (-1, None))
                if tile is None:
                    return
                buffer = self._waiting.take(self._memory.inputs)
            began = time.perf_counter()
            array = self._read(tile, buffer, thread)
            with self._waiting.condition:
                self._seconds["read"] += time.perf_counter() - began
                self._arrived[number] = (array, buffer)
                self._waiting.condition.notify_all()
            del array  # where it lies in no buffer of ours, its memory goes with the last who knows it

    def _read(self, tile: Input, buffer: Any, thread: int) -> Any:
        source, place = self._sources[tile[0]], (tile[1], tile[2])
        if self._pieces.is_host:
            return self._pieces.upload(source.read(place, buffer))
        host = source.read(place, self._memory.staging[thread])
        if buffer is None:
            return self._pieces.upload(host)
        return self._pieces.upload(host, out=self._shaped(buffer, host.shape))

    def _write_all(self, thread: int) -> None:
        while True:
            finished = self._waiting.take(self._finished)
            if finished is None:
                return
            place, array, buffer = finished
            began = time.perf_counter()
            self._factors.c.write(place, self._on_host(array, thread))
            self._seconds["write"] += time.perf_counter() - began
            del finished, array
            self._waiting.give(self._memory.sums, buffer)

    def _on_host(self, array: Any, thread: int) -> Any:
        if self._pieces.is_host:
            return self._pieces.view(array)
        shape = tuple(array.shape)
        host = self._memory.staging[thread][: shape[0] * shape[1]].reshape(shape)
        self._pieces.download(array, host)
        return host


def finished_tiles(c: TileFolder, buffer: Any, told: Told) -> Tuple[FrozenSet[Tile], List[str]]:
    """The tiles of C that are there and whole, and what is wrong with the others that are there."""
    whole, problems = set(), []
    found = [tile for tile in c.grid.tiles() if c.exists(tile)]
    for number, tile in enumerate(found):
        told("checking finished tiles", number, len(found))
        try:
            c.read(tile, buffer)
            whole.add(tile)
        except BadTile as problem:
            problems.append(str(problem))
    return frozenset(whole), problems
