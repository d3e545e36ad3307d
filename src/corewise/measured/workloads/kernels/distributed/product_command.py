"""The work of `tiled_product --distributed`: one rank of several that multiply the matrices in one folder.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Dict, Mapping, Optional, TextIO

import numpy as np

from corewise.measured.runtimes.base import Infeasible
from corewise.measured.workloads.kernels.distributed.first_rank import sum_over_ranks
from corewise.measured.workloads.kernels.distributed.product_run import RankProduct, SharedFolder
from corewise.measured.workloads.kernels.distributed.product_workload import NUM_FURTHER_TILES, count_rank_tiles
from corewise.measured.workloads.kernels.kernel import DTYPE_BYTES
from corewise.measured.workloads.kernels.tiled_product.factor_sources import Progress
from corewise.measured.workloads.kernels.tiled_product.folder_lock import claim_folder
from corewise.measured.workloads.kernels.tiled_product.pipeline import Factors
from corewise.measured.workloads.kernels.tiled_product.run import count_tiles_within
from corewise.measured.workloads.registry import load_attribute

CONNECT = "corewise.measured.runtimes.torch.communication.launched_ranks:connect_launched_ranks"


def multiply_on_ranks(
    folder: Path,
    factors: Factors,
    product: Mapping[str, Any],
    arrays: Any,
    *,
    memory_bytes: Optional[int],
    seed: int,
    verifies: bool,
    report: Progress,
    prepare_folder: Callable[[], Any],
) -> Optional[Dict[str, Any]]:
    """Compute what is missing of the product together with the other ranks; return the result on rank 0.

    Args:
        memory_bytes: memory limit of each process; None: its share of a tenth of the matrices.
        prepare_folder: called on rank 0 when the folder is reserved.
    """
    if arrays.device != "cpu":
        raise Infeasible("--distributed multiplies in host memory: leave --device cpu")
    messages = load_attribute(CONNECT)()
    try:
        num_tiles = _count_tiles(factors, messages.num_ranks, memory_bytes)

        def claim() -> TextIO:
            lock = claim_folder(folder, product)
            prepare_folder()
            return lock

        shared = SharedFolder(folder, messages, arrays, claim)
        try:
            rank = RankProduct(factors, arrays, messages, num_tiles, report)
            rank.make_factors(seed)
            done = rank.find_finished()
            multiplied = rank.multiply(done)
            checked = rank.check() if verifies else None
            num_read = sum_over_ranks(messages, arrays, np.array([float(multiplied.pipeline.num_tiles_read)]))
        finally:
            shared.close()
    finally:
        messages.close()
    if messages.rank > 0:
        return None
    rows, columns, _ = factors.shape
    c, depth = factors.c.grid, factors.a.grid.num_columns
    flops = 2.0 * c.num_rows * c.num_columns * depth - float(c.num_rows) * c.num_columns
    result = {
        **multiplied.to_facts(),
        "num_ranks": messages.num_ranks,
        "ranks_per_tile": rank.team_size,
        "num_tiles_kept": len(done),
        "num_tiles_read": int(num_read[0]),
        "num_tiles_written": rows * columns - len(done),
        "gflop_per_s": flops * (1 - len(done) / (rows * columns)) / multiplied.wall_s / 1e9,
    }
    if checked is not None:
        result.update(check_error=checked.error, check_tolerance=checked.tolerance, check_passed=checked.passed)
    return result


def _count_tiles(factors: Factors, num_ranks: int, memory_bytes: Optional[int]) -> int:
    grid, dtype = factors.c.grid, factors.c.dtype
    if memory_bytes is None:
        return count_rank_tiles(max(grid.num_rows, grid.num_columns), grid.tile, num_ranks)
    tile_bytes = grid.tile**2 * DTYPE_BYTES[dtype]
    return count_tiles_within(memory_bytes, tile_bytes, True, NUM_FURTHER_TILES) + NUM_FURTHER_TILES
