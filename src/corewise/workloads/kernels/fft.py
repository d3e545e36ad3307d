"""FFT: the discrete Fourier transform of one long complex signal.

Measured side: standard library only, Python 3.9; numpy when it is built.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Dict, List, Mapping, Optional, Tuple

from corewise.runtimes.base import Infeasible
from corewise.workloads.base import Work
from corewise.workloads.kernels.base import DTYPE_BYTES, RUNTIMES, KernelRun, Setup
from corewise.workloads.kernels.framework_pieces import pieces_of
from corewise.workloads.kernels.parameters import one_of, whole_number, with_defaults

METHODS = ("direct", "tiles")
PLACES = ("device", "host", "file")
DEFAULT_PIECE_BYTES = 2**26
COPIES_ON_DEVICE = 4  # of a piece: as it came, gathered, transformed, and the library's own work
LARGEST_SIZE = 2**40
ARRAYS_HELD = {"direct": 3, "tiles": 2}  # signal and transform; libraries work beside them
MEMORY_FACTORS = {
    "direct": {"numpy": 1.4, "torch": 1.4, "jax": 1.4, "tensorflow": 1.4},
    "tiles": {"numpy": 1.4, "torch": 1.5, "jax": 2.2, "tensorflow": 2.5},
    "pieces": {"numpy": 1.4, "torch": 1.5, "jax": 3.2, "tensorflow": 2.5},
}
TILES_BESIDE_BYTES = 2**26
MOST_DIVISORS_TOLD = 12


@dataclasses.dataclass(frozen=True)
class Fft:
    """X[k] = Σ x[n]·e^(-2πi·n·k/size)."""

    name: str = "fft"
    summary: str = (
        "Fourier transform in one dimension, direct or by interleaved tiles (args.size, args.method)"
    )
    modes: Tuple[str, ...] = ("infer",)
    runtimes: Tuple[str, ...] = RUNTIMES
    concurrent: bool = False

    @property
    def parameters(self) -> Mapping[str, Any]:
        return {"size": 2**22, "method": "direct", "num_tiles": 16, "signal": "device", "memory_bytes": 0}

    def dtypes(self, args: Mapping[str, Any]) -> Tuple[str, ...]:
        return ("complex128", "complex64")

    def work(self, mode: str, args: Mapping[str, Any], dtype: Optional[str] = None) -> Work:
        """5·N·log2 N operations by convention; the signal read once, the transform written once."""
        size = int(self._point(args)["size"])
        return Work(
            flops_per_sample=5.0 * size * math.log2(size),
            bytes_per_sample=2.0 * size * DTYPE_BYTES[dtype or "complex128"],
            num_parameters=0,
        )

    def needed_bytes(self, args: Mapping[str, Any], dtype: str) -> int:
        """The device's memory; a signal that stays on the host takes only what the pieces take."""
        point = self._point(args)
        if point["signal"] != "device":
            whole_bytes = int(point["size"]) * DTYPE_BYTES[dtype]
            by_default = 3 * COPIES_ON_DEVICE * min(DEFAULT_PIECE_BYTES, whole_bytes)
            return int(point["memory_bytes"]) or by_default
        beside = TILES_BESIDE_BYTES if point["method"] == "tiles" else 0
        return ARRAYS_HELD[str(point["method"])] * int(point["size"]) * DTYPE_BYTES[dtype] + beside

    def memory_factors(self, args: Mapping[str, Any], dtype: str) -> Mapping[str, float]:
        """As measured on CPUs; numpy transforms and checks complex64 with copies in complex128."""
        point = self._point(args)
        method = str(point["method"]) if point["signal"] == "device" else "pieces"
        widened = {"numpy": 2.8} if method == "direct" and dtype == "complex64" else {}
        return {**MEMORY_FACTORS[method], **widened}

    def largest_that_fits(self, args: Mapping[str, Any], dtype: str, free_bytes: int) -> Dict[str, Any]:
        """A power of two stays one, others whole numbers of tiles; a signal elsewhere gets smaller pieces."""
        point = self._point(args)
        if point["signal"] != "device":
            return {**args, "memory_bytes": free_bytes}
        size, tiles = int(point["size"]), int(point["num_tiles"]) if point["method"] == "tiles" else 1
        beside = self.needed_bytes({**args, "size": 2 * tiles}, dtype) if point["method"] == "tiles" else 0
        most = (free_bytes - beside) // (ARRAYS_HELD[str(point["method"])] * DTYPE_BYTES[dtype])
        if most < 2 * tiles:
            return dict(args)
        fitting = 2 ** int(math.log2(most)) if size & (size - 1) == 0 else most // tiles * tiles
        return {**args, "size": min(size, fitting)}

    def build(self, setup: Setup) -> KernelRun:
        from corewise.workloads.kernels.fft_merge import Cut  # they bring numpy: not for a list of workloads
        from corewise.workloads.kernels.fft_streamed import StreamedTiles
        from corewise.workloads.kernels.fft_tiles import DirectTransform, TilesInPlace, TilesWhole

        point = self._point(setup.args)
        cut = Cut(int(point["size"]), int(point["num_tiles"]))
        if point["method"] == "direct":
            return DirectTransform(setup, cut.size)
        if point["signal"] == "device":
            return TilesInPlace(setup, cut) if setup.arrays.writes_in_place else TilesWhole(setup, cut)
        piece_bytes = _piece_bytes(setup.arrays, int(point["memory_bytes"]))
        return StreamedTiles(
            setup,
            cut,
            in_files=point["signal"] == "file",
            piece_bytes=piece_bytes,
            pieces_bytes=_on_host_bytes(setup, min(piece_bytes, cut.size * DTYPE_BYTES[setup.dtype])),
        )

    def _point(self, args: Mapping[str, Any]) -> Dict[str, Any]:
        """All parameters; ValueError where they make no sense together."""
        filled = with_defaults(self.name, self.parameters, args)
        size = whole_number(self.name, filled, "size", 2)
        if size > LARGEST_SIZE:
            raise ValueError(f"fft: size {size} is beyond 2^40")
        method = one_of(self.name, filled, "method", METHODS)
        place = one_of(self.name, filled, "signal", PLACES)
        whole_number(self.name, filled, "memory_bytes", 0)
        num_tiles = whole_number(self.name, filled, "num_tiles")
        if method == "direct" and place != "device":
            raise ValueError(f"fft: signal {place} is transformed in pieces; that is method tiles")
        if method == "tiles" and size % num_tiles:
            raise ValueError(f"fft: {num_tiles} tiles do not divide the size {size}; {_say_divisors(size)}")
        return filled


def _piece_bytes(arrays: Any, memory_bytes: int) -> int:
    """The largest piece when all that are on their way share the device's memory allowed."""
    if memory_bytes == 0:
        return DEFAULT_PIECE_BYTES
    piece_bytes = memory_bytes // (COPIES_ON_DEVICE * int(pieces_of(arrays).num_streams))
    if piece_bytes < 1:
        raise Infeasible(f"fft: memory_bytes {memory_bytes} holds no piece of the signal")
    return piece_bytes


def _on_host_bytes(setup: Setup, piece_bytes: int) -> int:
    """What pieces take of the host's memory: where the device is the host, all of it."""
    if setup.arrays.device != "cpu":
        return int(pieces_of(setup.arrays).num_streams) * piece_bytes
    return int(MEMORY_FACTORS["pieces"][setup.arrays.runtime] * COPIES_ON_DEVICE * piece_bytes)


def _say_divisors(size: int) -> str:
    """Which numbers of tiles there are, the small ones named."""
    found: List[int] = []
    for candidate in range(2, min(size - 1, 2**16) + 1):
        if size % candidate == 0:
            found.append(candidate)
            if len(found) > MOST_DIVISORS_TOLD:
                break
    if not found:
        return "it has no divisor up to 65536: take method direct"
    told = ", ".join(map(str, found[:MOST_DIVISORS_TOLD]))
    return f"its divisors are {told}{', ...' if len(found) > MOST_DIVISORS_TOLD else ''}"


FFT = Fft()
