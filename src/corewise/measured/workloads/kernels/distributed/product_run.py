"""A tiled product on several ranks: its folder, its factors, its steps and its check.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path
from typing import Any, Callable, Collection, Mapping, Optional, TextIO

import numpy as np

from corewise.measured.runtimes.base import Check, Infeasible
from corewise.measured.runtimes.communication.communicator import Communicator
from corewise.measured.workloads.kernels.distributed.first_rank import broadcast_from_first, run_on_first_rank
from corewise.measured.workloads.kernels.distributed.message_times import StepTimes
from corewise.measured.workloads.kernels.distributed.product_plan import plan_rank
from corewise.measured.workloads.kernels.distributed.product_team import TeamMemory, TeamMultiplication, TeamReport
from corewise.measured.workloads.kernels.framework_pieces import load_pieces
from corewise.measured.workloads.kernels.kernel import DTYPE_BYTES, KernelRun, KernelSetup
from corewise.measured.workloads.kernels.tiled_product.factor_sources import Progress, make_tiles
from corewise.measured.workloads.kernels.tiled_product.folder_lock import claim_folder
from corewise.measured.workloads.kernels.tiled_product.pipeline import Factors, find_finished_tiles
from corewise.measured.workloads.kernels.tiled_product.product_check import check_product
from corewise.measured.workloads.kernels.tiled_product.run import build_random_factors, describe_product, require_disk
from corewise.measured.workloads.kernels.tiled_product.tile_files import Tile, TileFolder, remove_leftovers
from corewise.measured.workloads.kernels.tiled_product.tile_order import plan_products


def ignore_progress(activity: str, number: int, count: int) -> None:
    """Ignore progress: a step of a study does not show it."""


class SharedFolder:
    """A folder of tiles that rank 0 reserves for all ranks; every rank must see its files."""

    def __init__(self, folder: Path, messages: Communicator, arrays: Any, claim: Callable[[], TextIO]) -> None:
        self._lock: Optional[TextIO] = run_on_first_rank(messages, claim)
        try:
            self._require_shared(folder, messages, arrays)
        except BaseException:
            self.close()
            raise

    def _require_shared(self, folder: Path, messages: Communicator, arrays: Any) -> None:
        # A number below 2^53 is exact in float64.
        token = broadcast_from_first(messages, arrays, np.array([float(secrets.randbelow(2**53))]))
        mark = folder / f".shared-{int(token[0])}"
        run_on_first_rank(messages, mark.touch)
        is_seen = mark.exists()
        is_shared = messages.agree(is_seen)
        if messages.rank == 0:
            mark.unlink()
        if not is_shared:
            seen = (
                "" if is_seen else f" rank {messages.rank} on {os.uname().nodename} does not see the files of rank 0."
            )
            raise Infeasible(
                f"distributed_product: the folder {folder} is not shared by all ranks.{seen} "
                "Name a folder on a shared file system in args.folder"
            )

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None


class RankProduct:
    """The part of one rank in a product, whose tiles all ranks can read and write."""

    def __init__(
        self, factors: Factors, arrays: Any, messages: Communicator, num_tiles: int, report: Progress = ignore_progress
    ) -> None:
        self._factors, self._arrays, self._messages, self._report = factors, arrays, messages, report
        self._pieces = load_pieces(arrays)
        self.memory = TeamMemory(arrays, self._pieces, num_tiles, factors.c.grid.tile, factors.c.dtype)
        self._cpus = frozenset(os.sched_getaffinity(0))
        self.team_size = 0

    def make_factors(self, seed: int) -> None:
        """Write the missing tiles of random factors: each rank makes its share."""
        share = (self._messages.rank, self._messages.num_ranks)
        for matrix in (self._factors.a, self._factors.b):
            if isinstance(matrix, TileFolder):
                make_tiles(matrix, seed, self._borrow_buffer(), self._report, share)
        self._messages.barrier()

    def find_finished(self) -> Collection[Tile]:
        """Return the intact tiles of C, which rank 0 looks for, on every rank."""
        tiles = list(self._factors.c.grid.iterate_tiles())
        found = run_on_first_rank(
            self._messages, lambda: find_finished_tiles(self._factors.c, self._borrow_buffer(), self._report)
        )
        intact = np.zeros(len(tiles))
        if found is not None:
            intact = np.array([float(tile in found[0]) for tile in tiles])
        marks = broadcast_from_first(self._messages, self._arrays, intact)
        return frozenset(tile for tile, mark in zip(tiles, marks) if mark)

    def multiply(self, done: Collection[Tile] = ()) -> TeamReport:
        """Compute the tiles of C that are not done, together with all ranks."""
        ranks, rank, held = self._messages.num_ranks, self._messages.rank, self.memory.block.num_held
        plan = plan_rank(self._factors.shape, ranks, rank, held, done)
        self.team_size = plan.team_size
        multiplication = TeamMultiplication(
            self._factors, self._arrays, self._pieces, self.memory, self._report, self._messages, plan
        )
        multiplication.allow(self._cpus)
        return multiplication.run_with_team(plan_products(plan.steps, held))

    def check(self) -> Check:
        """Check the product from the files on rank 0; the others get its result."""
        checked = run_on_first_rank(
            self._messages, lambda: check_product(self._factors, self._borrow_buffer(), self._report)
        )
        figures = np.zeros(2) if checked is None else np.array([checked.error, checked.tolerance])
        error, tolerance = broadcast_from_first(self._messages, self._arrays, figures)
        reference = "rank 0's check" if checked is None else checked.reference
        return Check(float(error), float(tolerance), reference)

    def _borrow_buffer(self) -> Any:
        # No product runs meanwhile.
        return np.asarray(self.memory.inputs[0])


class DistributedProductRun(KernelRun):
    """The tile files of one product; in every step, all ranks together read A and B and write all of C."""

    def __init__(self, setup: KernelSetup, size: int, tile: int, num_tiles: int) -> None:
        given = str(setup.args.get("folder") or "")
        self._folder = Path(given or setup.folder) / f"tiles-{setup.seed}"
        self._is_temporary, self._times = not given, StepTimes()
        self._messages = setup.communicator
        sizes, value_bytes = (size, size, size), DTYPE_BYTES[setup.dtype]

        def claim() -> TextIO:
            lock = claim_folder(self._folder, describe_product(sizes, tile, setup.dtype, setup.seed))
            try:
                remove_leftovers(self._folder)
                require_disk(self._folder, 3 * size**2 * value_bytes, value_bytes)
            except BaseException:
                lock.close()
                raise
            return lock

        self._shared = SharedFolder(self._folder, self._messages, setup.arrays, claim)
        try:
            factors = build_random_factors(self._folder, sizes, tile, setup.dtype, setup.seed)
            self._product = RankProduct(factors, setup.arrays, self._messages, num_tiles)
            self._product.make_factors(setup.seed)
        except BaseException:
            self.close()
            raise
        self._tiles_bytes = num_tiles * tile**2 * value_bytes
        self._report: Optional[TeamReport] = None

    def step(self) -> None:
        self._report = self._product.multiply()
        self._times.add(**self._report.split_step())

    def check(self) -> Check:
        self.step()
        return self._product.check()

    def collect_metrics(self) -> Mapping[str, float]:
        return self._times.compute_medians()

    def read_facts(self) -> Mapping[str, Any]:
        durations = {} if self._report is None else self._report.to_facts()
        return {
            **durations,
            "tiles_bytes": self._tiles_bytes,
            "ranks_per_tile": self._product.team_size,
            "folder": str(self._folder),
        }

    def close(self) -> None:
        self._shared.close()
        if self._is_temporary and self._messages.rank == 0:
            shutil.rmtree(self._folder, ignore_errors=True)
