"""The FFT workload: the discrete Fourier transform of one long complex signal.

Measured side: standard library only, Python 3.9; numpy when it is built.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Dict, List, Mapping, Optional, Tuple

from corewise.measured.runtimes.base import Infeasible
from corewise.measured.workloads.base import Work
from corewise.measured.workloads.kernels.framework_pieces import load_pieces
from corewise.measured.workloads.kernels.kernel import DTYPE_BYTES, RUNTIMES, Kernel, KernelRun, KernelSetup
from corewise.measured.workloads.kernels.kernel_parameters import fill_defaults, read_choice, read_whole_number

METHODS = ("direct", "tiles")
PLACES = ("device", "host", "file")
DEFAULT_PIECE_BYTES = 2**26
# Copies of a piece on the device: uploaded, gathered, transformed, and the library's workspace.
COPIES_ON_DEVICE = 4
LARGEST_SIZE = 2**40
# Signal-sized arrays: signal and transform, and the library's workspace for a direct transform.
ARRAYS_HELD = {"direct": 3, "tiles": 2}
# Peak CPU memory relative to the estimate, as measured.
MEMORY_FACTORS = {
    "direct": {"numpy": 1.4, "torch": 1.4, "jax": 1.4, "tensorflow": 1.4},
    "tiles": {"numpy": 1.4, "torch": 1.5, "jax": 2.2, "tensorflow": 2.5},
    "pieces": {"numpy": 1.4, "torch": 1.5, "jax": 3.2, "tensorflow": 2.5},
}
TILES_OVERHEAD_BYTES = 2**26
MAX_DIVISORS_SHOWN = 12


@dataclasses.dataclass(frozen=True)
class Fft(Kernel):
    """X[k] = Σ x[n]·e^(-2πi·n·k/size)."""

    name: str = "fft"
    summary: str = "Fourier transform in one dimension, direct or by interleaved tiles (args.size, args.method)"
    modes: Tuple[str, ...] = ("infer",)
    runtimes: Tuple[str, ...] = RUNTIMES
    concurrent: bool = False

    @property
    def parameters(self) -> Mapping[str, Any]:
        return {"size": 2**22, "method": "direct", "num_tiles": 16, "signal": "device", "memory_bytes": 0}

    def list_dtypes(self, args: Mapping[str, Any]) -> Tuple[str, ...]:
        return ("complex128", "complex64")

    def count_work(self, mode: str, args: Mapping[str, Any], dtype: Optional[str] = None) -> Work:
        """Count 5·N·log2 N flops by convention; the signal is read once and the transform written once."""
        size = int(self._read_parameters(args)["size"])
        return Work(
            flops_per_sample=5.0 * size * math.log2(size),
            bytes_per_sample=2.0 * size * DTYPE_BYTES[dtype or "complex128"],
            num_parameters=0,
        )

    def estimate_memory_bytes(self, args: Mapping[str, Any], dtype: str) -> int:
        """Estimate the device memory; a signal on the host or in files needs only that of its pieces."""
        point = self._read_parameters(args)
        if point["signal"] != "device":
            whole_bytes = int(point["size"]) * DTYPE_BYTES[dtype]
            default_bytes = 3 * COPIES_ON_DEVICE * min(DEFAULT_PIECE_BYTES, whole_bytes)
            return int(point["memory_bytes"]) or default_bytes
        overhead_bytes = TILES_OVERHEAD_BYTES if point["method"] == "tiles" else 0
        return ARRAYS_HELD[str(point["method"])] * int(point["size"]) * DTYPE_BYTES[dtype] + overhead_bytes

    def estimate_memory_factors(self, args: Mapping[str, Any], dtype: str) -> Mapping[str, float]:
        """Return factors measured on CPUs; numpy transforms and checks complex64 in complex128."""
        point = self._read_parameters(args)
        method = str(point["method"]) if point["signal"] == "device" else "pieces"
        widened = {"numpy": 2.8} if method == "direct" and dtype == "complex64" else {}
        return {**MEMORY_FACTORS[method], **widened}

    def fit_to_memory(self, args: Mapping[str, Any], dtype: str, free_bytes: int) -> Dict[str, Any]:
        """Reduce the size to a power of two or a multiple of tiles, or the pieces of a host signal."""
        point = self._read_parameters(args)
        if point["signal"] != "device":
            return {**args, "memory_bytes": free_bytes}
        size, tiles = int(point["size"]), int(point["num_tiles"]) if point["method"] == "tiles" else 1
        overhead_bytes = (
            self.estimate_memory_bytes({**args, "size": 2 * tiles}, dtype) if point["method"] == "tiles" else 0
        )
        most = (free_bytes - overhead_bytes) // (ARRAYS_HELD[str(point["method"])] * DTYPE_BYTES[dtype])
        if most < 2 * tiles:
            return dict(args)
        fitting = 2 ** int(math.log2(most)) if size & (size - 1) == 0 else most // tiles * tiles
        return {**args, "size": min(size, fitting)}

    def build(self, setup: KernelSetup) -> KernelRun:
        # These modules import numpy, which listing workloads must not need.
        from corewise.measured.workloads.kernels.fft.merge import TileSplit
        from corewise.measured.workloads.kernels.fft.streamed import StreamedTiles
        from corewise.measured.workloads.kernels.fft.tiles import DirectTransform, TilesInPlace, TilesWhole

        point = self._read_parameters(setup.args)
        cut = TileSplit(int(point["size"]), int(point["num_tiles"]))
        if point["method"] == "direct":
            return DirectTransform(setup, cut.size)
        if point["signal"] == "device":
            return TilesInPlace(setup, cut) if setup.arrays.writes_in_place else TilesWhole(setup, cut)
        piece_bytes = _choose_piece_bytes(setup.arrays, int(point["memory_bytes"]))
        return StreamedTiles(
            setup,
            cut,
            in_files=point["signal"] == "file",
            piece_bytes=piece_bytes,
            pieces_bytes=_estimate_host_bytes(setup, min(piece_bytes, cut.size * DTYPE_BYTES[setup.dtype])),
        )

    def _read_parameters(self, args: Mapping[str, Any]) -> Dict[str, Any]:
        """Return all parameters; raise ValueError if they are invalid or contradict each other."""
        filled = fill_defaults(self.name, self.parameters, args)
        size = read_whole_number(self.name, filled, "size", 2)
        if size > LARGEST_SIZE:
            raise ValueError(f"fft: size {size} is larger than 2^40")
        method = read_choice(self.name, filled, "method", METHODS)
        place = read_choice(self.name, filled, "signal", PLACES)
        read_whole_number(self.name, filled, "memory_bytes", 0)
        num_tiles = read_whole_number(self.name, filled, "num_tiles")
        if method == "direct" and place != "device":
            raise ValueError(f"fft: signal {place} is transformed in pieces, which needs method tiles")
        if method == "tiles" and size % num_tiles:
            raise ValueError(f"fft: {num_tiles} tiles do not divide the size {size}; {_describe_divisors(size)}")
        return filled


def _choose_piece_bytes(arrays: Any, memory_bytes: int) -> int:
    """Choose the size of a piece, so that all pieces in flight share the allowed device memory."""
    if memory_bytes == 0:
        return DEFAULT_PIECE_BYTES
    piece_bytes = memory_bytes // (COPIES_ON_DEVICE * int(load_pieces(arrays).num_streams))
    if piece_bytes < 1:
        raise Infeasible(f"fft: memory_bytes {memory_bytes} is too small for any piece of the signal")
    return piece_bytes


def _estimate_host_bytes(setup: KernelSetup, piece_bytes: int) -> int:
    """Estimate the host memory of the pieces; on a CPU this is all of their memory."""
    if setup.arrays.device != "cpu":
        return int(load_pieces(setup.arrays).num_streams) * piece_bytes
    return int(MEMORY_FACTORS["pieces"][setup.arrays.runtime] * COPIES_ON_DEVICE * piece_bytes)


def _describe_divisors(size: int) -> str:
    """Return the possible numbers of tiles as text, with the smallest ones."""
    divisors: List[int] = []
    for candidate in range(2, min(size - 1, 2**16) + 1):
        if size % candidate == 0:
            divisors.append(candidate)
            if len(divisors) > MAX_DIVISORS_SHOWN:
                break
    if not divisors:
        return "it has no divisor up to 65536: use method direct"
    shown = ", ".join(map(str, divisors[:MAX_DIVISORS_SHOWN]))
    return f"its divisors are {shown}{', ...' if len(divisors) > MAX_DIVISORS_SHOWN else ''}"


FFT = Fft()
