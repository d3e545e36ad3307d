"""One rank of a tiled product: loads and multiplies tiles, pushes sums to their reducers, adds up and writes its own.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any, List, Mapping, Tuple

import numpy as np

from corewise.measured.runtimes.communication.communicator import Communicator
from corewise.measured.workloads.kernels.distributed.product_plan import ProductShare, Stage
from corewise.measured.workloads.kernels.tiled_product.factor_sources import Progress
from corewise.measured.workloads.kernels.tiled_product.pipeline import (
    Factors,
    MultiplicationReport,
    TiledMultiplication,
    TileMemory,
)
from corewise.measured.workloads.kernels.tiled_product.tile_files import Tile
from corewise.measured.workloads.kernels.tiled_product.tile_order import TileBlock, TileProduct

# One sum is computed while another is pushed.
NUM_SUMS = 2
# What other ranks have pushed so far, and the part that arrives.
NUM_RECEIVED = 2
# Tiles that a rank needs at least: two factors as well.
MIN_RANK_TILES = 2 + NUM_SUMS + NUM_RECEIVED


@dataclasses.dataclass(frozen=True)
class TeamReport:
    """The durations of a product on one rank; `sum_wait_s` is the part of waiting that pushes caused."""

    pipeline: MultiplicationReport
    push_s: float
    sum_wait_s: float
    barrier_s: float
    num_tiles_written: int

    @property
    def wall_s(self) -> float:
        """The seconds until every rank had finished."""
        return self.pipeline.wall_s + self.barrier_s

    def split_step(self) -> Mapping[str, float]:
        """Return the parts of the step: nothing else is multiplied in the last two."""
        pipeline = self.pipeline
        return {
            "compute": pipeline.multiply_s,
            "communication": self.sum_wait_s + pipeline.last_writes_s + self.barrier_s,
            "input": pipeline.wait_s - self.sum_wait_s,
        }

    def to_facts(self) -> Mapping[str, Any]:
        """Return the report as facts; `overlap` is the hidden fraction of reading, pushing and writing."""
        pipeline = self.pipeline
        moved_s = pipeline.read_s + pipeline.write_s + self.push_s
        exposed_s = min(moved_s, pipeline.wait_s + pipeline.last_writes_s)
        overlap = round(1 - exposed_s / moved_s, 4) if moved_s else 1.0
        return {
            **dataclasses.asdict(pipeline),
            "wall_s": self.wall_s,
            "push_s": self.push_s,
            "num_tiles_written": self.num_tiles_written,
            "overlap": overlap,
        }


class TeamMemory(TileMemory):
    """All buffers of a rank."""

    def __init__(self, arrays: Any, pieces: Any, num_tiles: int, tile: int, dtype: str) -> None:
        self.block = TileBlock(1, NUM_SUMS, num_tiles - NUM_SUMS - NUM_RECEIVED)
        super().__init__(arrays, pieces, self.block, tile, dtype)
        self.received: List[Any] = [pieces.allocate_host_buffer((tile * tile,), dtype) for _ in range(NUM_RECEIVED)]


class TeamMultiplication(TiledMultiplication):
    """One product; the thread that writes also pushes and receives."""

    def __init__(
        self,
        factors: Factors,
        arrays: Any,
        pieces: Any,
        memory: TeamMemory,
        report: Progress,
        messages: Communicator,
        plan: ProductShare,
    ) -> None:
        super().__init__(factors, arrays, pieces, memory, report)
        self._messages, self._plan, self._received = messages, plan, memory.received
        self._push_s = self._sum_wait_s = 0.0
        # Whether the first buffer of what was received holds parts of the own tile.
        self._has_parts = False

    def run_with_team(self, products: List[TileProduct]) -> TeamReport:
        """Run the products of this rank and wait for the other ranks."""
        pipeline = self.run(products)
        ended = time.perf_counter()
        self._messages.barrier()
        num_written = sum(stage.tile is not None and stage.pushed_to is None for stage in self._plan.stages)
        return TeamReport(pipeline, self._push_s, self._sum_wait_s, time.perf_counter() - ended, num_written)

    def _allocate_sum(self, place: Tile) -> Tuple[Any, Any]:
        began = time.perf_counter()
        allocated = super()._allocate_sum(place)
        self._sum_wait_s += time.perf_counter() - began
        return allocated

    def _write_all(self, thread: int) -> None:
        """Push, receive and write in the order of the plan, which all ranks follow."""
        for stage in self._plan.stages:
            if stage.tile is None:
                self._exchange(stage, None)
                continue
            finished = self._handoff.take(self._finished)
            if finished is None:
                return
            place, array, buffer = finished
            values = self._pieces.as_numpy(array)
            if stage.pushed_to is None:
                self._write_own(place, values)
            else:
                self._exchange(stage, values)
            del finished, array
            self._handoff.give(self._memory.sums, buffer)

    def _exchange(self, stage: Stage, values: Any) -> None:
        """Push a part to its reducer, and receive a part of the own tile."""
        began = time.perf_counter()
        if stage.own is None or stage.received_from is None:
            if stage.pushed_to is not None:
                self._messages.send(values, stage.pushed_to)
        else:
            part = self._shape_received(1 if self._has_parts else 0, stage.own)
            if stage.pushed_to is None:
                self._messages.receive(part, stage.received_from)
            else:
                self._messages.exchange(values, stage.pushed_to, part, stage.received_from)
            if self._has_parts:
                parts = self._shape_received(0, stage.own)
                np.add(parts, part, out=parts)
            self._has_parts = True
        self._push_s += time.perf_counter() - began

    def _shape_received(self, number: int, own: Tile) -> Any:
        rows, columns = self._factors.c.grid.compute_tile_shape(*own)
        return self._received[number][: rows * columns].reshape(rows, columns)

    def _write_own(self, place: Tile, values: Any) -> None:
        began = time.perf_counter()
        if self._has_parts:
            np.add(values, self._shape_received(0, place), out=values)
            self._has_parts = False
        self._factors.c.write(place, values)
        self._seconds["write"] += time.perf_counter() - began
