"""The product of matrices larger than memory, in tiles kept in files.

Measured side: standard library only, Python 3.9; numpy when it is built. In a study one step is one whole
product. Outside of one, `python -m corewise.workloads.kernels.tiled_product --help` multiplies in any memory,
goes on after a kill, and takes a user's own matrices.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from typing import Any, Dict, Mapping, Optional, Tuple

from corewise.workloads.base import Work
from corewise.workloads.kernels.base import DTYPE_BYTES, KernelRun, Setup
from corewise.workloads.kernels.framework_pieces import PIECES, pieces_of
from corewise.workloads.kernels.parameters import whole_number, with_defaults

MATRICES_HELD = 10  # by default a tenth of the three matrices fits into memory
LEAST_TILES_BY_DEFAULT = 4
MEMORY_FACTORS = {"numpy": 1.0, "torch": 1.0, "jax": 1.25, "tensorflow": 1.5}  # one or two tiles beside four


@dataclasses.dataclass(frozen=True)
class TiledProduct:
    """C = A·B, square, float32 or float64."""

    name: str = "tiled_product"
    summary: str = (
        "product of matrices larger than memory, tiles in files (args.size, args.tile, args.memory_bytes)"
    )
    modes: Tuple[str, ...] = ("infer",)
    runtimes: Tuple[str, ...] = tuple(PIECES)
    concurrent: bool = False

    @property
    def parameters(self) -> Mapping[str, Any]:
        return {"size": 4096, "tile": 1024, "memory_bytes": 0, "folder": ""}

    def dtypes(self, args: Mapping[str, Any]) -> Tuple[str, ...]:
        return ("float32", "float64")

    def work(self, mode: str, args: Mapping[str, Any], dtype: Optional[str] = None) -> Work:
        """2·N³ - N² operations; every matrix read or written once."""
        size, _, _ = self._point(args)
        return Work(
            flops_per_sample=2.0 * size**3 - float(size) ** 2,
            bytes_per_sample=3.0 * size**2 * DTYPE_BYTES[dtype or "float32"],
            num_parameters=0,
        )

    def needed_bytes(self, args: Mapping[str, Any], dtype: str) -> int:
        """The memory given, or a tenth of the matrices."""
        size, tile, memory_bytes = self._point(args)
        return memory_bytes or tiles_by_default(size, tile) * tile**2 * DTYPE_BYTES[dtype]

    def memory_factors(self, args: Mapping[str, Any], dtype: str) -> Mapping[str, float]:
        """A limit is kept; a tenth of the matrices has the tiles besides that frameworks need to multiply."""
        return dict.fromkeys(PIECES, 1.0) if self._point(args)[2] else MEMORY_FACTORS

    def largest_that_fits(self, args: Mapping[str, Any], dtype: str, free_bytes: int) -> Dict[str, Any]:
        """Less memory where it was given; else a size of which a tenth fits."""
        _, tile, memory_bytes = self._point(args)
        if memory_bytes:
            return {**args, "memory_bytes": free_bytes}
        num_tiles = free_bytes // (tile**2 * DTYPE_BYTES[dtype])
        if num_tiles < LEAST_TILES_BY_DEFAULT:
            return dict(args)
        across = max(1, math.isqrt(num_tiles * MATRICES_HELD // 3))
        while tiles_by_default(across * tile, tile) > num_tiles:
            across -= 1
        return {**args, "size": across * tile}

    def build(self, setup: Setup) -> KernelRun:
        from corewise.workloads.kernels import tiled_product_run as running  # brings numpy

        size, tile, memory_bytes = self._point(setup.args)
        tile_bytes = tile**2 * DTYPE_BYTES[setup.dtype]
        num_tiles = tiles_by_default(size, tile)
        if memory_bytes:
            pieces = pieces_of(setup.arrays)
            running.start_within_limit(setup.arrays, pieces, setup.dtype, tile_bytes)
            num_tiles = running.tiles_within(memory_bytes, tile_bytes, pieces.is_host, pieces.num_spare)
        return running.TiledProductRun(setup, size, tile, num_tiles)

    def _point(self, args: Mapping[str, Any]) -> Tuple[int, int, int]:
        filled = with_defaults(self.name, self.parameters, args)
        size, tile = (whole_number(self.name, filled, name) for name in ("size", "tile"))
        if not isinstance(filled["folder"], str):
            raise ValueError(f"tiled_product: folder must be a path, not {filled['folder']!r}")
        return size, min(tile, size), whole_number(self.name, filled, "memory_bytes", 0)


def tiles_by_default(size: int, tile: int) -> int:
    """How many tiles a tenth of the three matrices is, and no fewer than four."""
    across = -(-size // tile)
    return max(LEAST_TILES_BY_DEFAULT, 3 * across**2 // MATRICES_HELD)


TILED_PRODUCT = TiledProduct()

if __name__ == "__main__":
    from corewise.workloads.kernels.tiled_product_command import main

    sys.exit(main())
