"""The tiled product on several ranks: workers load, multiply and push tiles, reducers add them up and write them.

Measured side: standard library only, Python 3.9; numpy when it is built.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Dict, Mapping, Optional, Tuple

from corewise.measured.parameters import Device, TrialParameters
from corewise.measured.workloads.base import Work
from corewise.measured.workloads.kernels.distributed.distributed_kernel import DistributedKernel
from corewise.measured.workloads.kernels.kernel import DTYPE_BYTES, KernelRun, KernelSetup
from corewise.measured.workloads.kernels.tiled_product.workload import MEMORY_DIVISOR, TILED_PRODUCT

# Two factors, two that are read ahead, two sums, and two tiles for what other ranks push.
MIN_DEFAULT_TILES = 8
# Tiles that a rank holds besides the three that `count_tiles_within` demands.
NUM_FURTHER_TILES = 3


@dataclasses.dataclass(frozen=True)
class DistributedProduct(DistributedKernel):
    """C = A·B, square, float32 or float64, with the tiles in a folder that all ranks share."""

    name: str = "distributed_product"
    summary: str = "product of matrices in tile files on several ranks: load, multiply, push, reduce (args.size)"

    @property
    def parameters(self) -> Mapping[str, Any]:
        return TILED_PRODUCT.parameters

    def list_dtypes(self, args: Mapping[str, Any]) -> Tuple[str, ...]:
        return TILED_PRODUCT.list_dtypes(args)

    def count_work(self, mode: str, args: Mapping[str, Any], dtype: Optional[str] = None) -> Work:
        self._read_parameters(args)
        return TILED_PRODUCT.count_work(mode, args, dtype)

    def estimate_memory_bytes(self, args: Mapping[str, Any], dtype: str) -> int:
        """Return the memory limit of a rank, or its share of a tenth of the matrices."""
        size, tile, memory_bytes = self._read_parameters(args)
        return memory_bytes or count_rank_tiles(size, tile, self.num_ranks) * tile**2 * DTYPE_BYTES[dtype]

    def fit_to_memory(self, args: Mapping[str, Any], dtype: str, free_bytes: int) -> Dict[str, Any]:
        """Reduce the memory limit if there is one, otherwise the size."""
        _, tile, memory_bytes = self._read_parameters(args)
        if memory_bytes:
            return {**args, "memory_bytes": free_bytes}
        num_tiles = free_bytes // (tile**2 * DTYPE_BYTES[dtype])
        if num_tiles < MIN_DEFAULT_TILES:
            return dict(args)
        across = max(1, math.isqrt(num_tiles * self.num_ranks * MEMORY_DIVISOR // 3))
        while count_rank_tiles(across * tile, tile, self.num_ranks) > num_tiles:
            across -= 1
        return {**args, "size": across * tile}

    def explain_refusal(self, params: TrialParameters) -> Optional[str]:
        if params.device != Device.CPU:
            return f"{self.name} multiplies in host memory: use device cpu"
        return super().explain_refusal(params)

    def explain_ranks(self, args: Mapping[str, Any], num_ranks: int) -> Optional[str]:
        size, tile, _ = self._read_parameters(args)
        across = -(-size // tile)
        if num_ranks <= across**3:
            return None
        return (
            f"{self.name}: {num_ranks} processes cannot share {across**3} products of tiles; "
            "use fewer processes or smaller tiles"
        )

    def build(self, setup: KernelSetup) -> KernelRun:
        from corewise.measured.workloads.kernels.distributed.product_run import DistributedProductRun
        from corewise.measured.workloads.kernels.tiled_product.run import count_tiles_within

        size, tile, memory_bytes = self._read_parameters(setup.args)
        num_tiles = count_rank_tiles(size, tile, setup.communicator.num_ranks)
        if memory_bytes:
            tile_bytes = tile**2 * DTYPE_BYTES[setup.dtype]
            least_free = count_tiles_within(memory_bytes, tile_bytes, True, NUM_FURTHER_TILES, self.name)
            num_tiles = least_free + NUM_FURTHER_TILES
        return DistributedProductRun(setup, size, tile, num_tiles)

    def _read_parameters(self, args: Mapping[str, Any]) -> Tuple[int, int, int]:
        return TILED_PRODUCT.read_parameters(args, self.name)


def count_rank_tiles(size: int, tile: int, num_ranks: int) -> int:
    """Return the tiles of one rank: its share of a tenth of the matrices, but at least those that it needs."""
    across = -(-size // tile)
    return max(MIN_DEFAULT_TILES, 3 * across**2 // MEMORY_DIVISOR // num_ranks)


DISTRIBUTED_PRODUCT = DistributedProduct()
