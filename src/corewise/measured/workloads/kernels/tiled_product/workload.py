"""The tiled product workload: matrices larger than memory, stored as tile files.

Measured side: standard library only, Python 3.9; numpy when it is built. In a study one step is one whole
product. The command `python -m corewise.measured.workloads.kernels.tiled_product --help` also resumes after a
kill and accepts a user's matrices.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Dict, Mapping, Optional, Tuple

from corewise.measured.workloads.base import Work
from corewise.measured.workloads.kernels.framework_pieces import PIECES, load_pieces
from corewise.measured.workloads.kernels.kernel import DTYPE_BYTES, Kernel, KernelRun, KernelSetup
from corewise.measured.workloads.kernels.kernel_parameters import fill_defaults, read_whole_number

# By default a tenth of the three matrices fits into memory.
MEMORY_DIVISOR = 10
MIN_DEFAULT_TILES = 4
# With four tiles, jax needs one more and tensorflow two.
MEMORY_FACTORS = {"numpy": 1.0, "torch": 1.0, "jax": 1.25, "tensorflow": 1.5}


@dataclasses.dataclass(frozen=True)
class TiledProduct(Kernel):
    """C = A·B, square, float32 or float64."""

    name: str = "tiled_product"
    summary: str = "product of matrices larger than memory, tiles in files (args.size, args.tile, args.memory_bytes)"
    modes: Tuple[str, ...] = ("infer",)
    runtimes: Tuple[str, ...] = tuple(PIECES)
    concurrent: bool = False

    @property
    def parameters(self) -> Mapping[str, Any]:
        return {"size": 4096, "tile": 1024, "memory_bytes": 0, "folder": ""}

    def list_dtypes(self, args: Mapping[str, Any]) -> Tuple[str, ...]:
        return ("float32", "float64")

    def count_work(self, mode: str, args: Mapping[str, Any], dtype: Optional[str] = None) -> Work:
        """Count 2·N³ - N² flops; every matrix is read or written once."""
        size, _, _ = self.read_parameters(args)
        return Work(
            flops_per_sample=2.0 * size**3 - float(size) ** 2,
            bytes_per_sample=3.0 * size**2 * DTYPE_BYTES[dtype or "float32"],
            num_parameters=0,
        )

    def estimate_memory_bytes(self, args: Mapping[str, Any], dtype: str) -> int:
        """Return the memory limit, or a tenth of the matrices."""
        size, tile, memory_bytes = self.read_parameters(args)
        return memory_bytes or count_default_tiles(size, tile) * tile**2 * DTYPE_BYTES[dtype]

    def estimate_memory_factors(self, args: Mapping[str, Any], dtype: str) -> Mapping[str, float]:
        """Return 1 for a memory limit; otherwise frameworks need more tiles to multiply."""
        return dict.fromkeys(PIECES, 1.0) if self.read_parameters(args)[2] else MEMORY_FACTORS

    def fit_to_memory(self, args: Mapping[str, Any], dtype: str, free_bytes: int) -> Dict[str, Any]:
        """Reduce the memory limit if there is one, otherwise the size."""
        _, tile, memory_bytes = self.read_parameters(args)
        if memory_bytes:
            return {**args, "memory_bytes": free_bytes}
        num_tiles = free_bytes // (tile**2 * DTYPE_BYTES[dtype])
        if num_tiles < MIN_DEFAULT_TILES:
            return dict(args)
        across = max(1, math.isqrt(num_tiles * MEMORY_DIVISOR // 3))
        while count_default_tiles(across * tile, tile) > num_tiles:
            across -= 1
        return {**args, "size": across * tile}

    def build(self, setup: KernelSetup) -> KernelRun:
        from corewise.measured.workloads.kernels.tiled_product import run as tiled_run

        size, tile, memory_bytes = self.read_parameters(setup.args)
        tile_bytes = tile**2 * DTYPE_BYTES[setup.dtype]
        num_tiles = count_default_tiles(size, tile)
        if memory_bytes:
            pieces = load_pieces(setup.arrays)
            tiled_run.start_within_limit(setup.arrays, pieces, setup.dtype, tile_bytes)
            num_tiles = tiled_run.count_tiles_within(memory_bytes, tile_bytes, pieces.is_host, pieces.num_spare)
        return tiled_run.TiledProductRun(setup, size, tile, num_tiles)

    def read_parameters(self, args: Mapping[str, Any], workload: str = "tiled_product") -> Tuple[int, int, int]:
        """Return size, tile and memory limit; raise ValueError, in the name of the workload, if they are invalid."""
        filled = fill_defaults(workload, self.parameters, args)
        size, tile = (read_whole_number(workload, filled, name) for name in ("size", "tile"))
        if not isinstance(filled["folder"], str):
            raise ValueError(f"{workload}: folder must be a path, not {filled['folder']!r}")
        return size, min(tile, size), read_whole_number(workload, filled, "memory_bytes", 0)


def count_default_tiles(size: int, tile: int) -> int:
    """Return the number of tiles in a tenth of the three matrices, but at least four."""
    across = -(-size // tile)
    return max(MIN_DEFAULT_TILES, 3 * across**2 // MEMORY_DIVISOR)


TILED_PRODUCT = TiledProduct()
