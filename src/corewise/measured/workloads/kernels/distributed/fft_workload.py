"""The Fourier transform of one long complex signal on several ranks.

Measured side: standard library only, Python 3.9; numpy when it is built.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Dict, Mapping, Optional, Tuple

from corewise.measured.workloads.base import Work
from corewise.measured.workloads.kernels.distributed.distributed_kernel import DistributedKernel
from corewise.measured.workloads.kernels.distributed.fft_grid import ORDERS, SignalGrid, build_grid
from corewise.measured.workloads.kernels.kernel import DTYPE_BYTES, KernelRun, KernelSetup
from corewise.measured.workloads.kernels.kernel_parameters import fill_defaults, read_choice, read_whole_number

# The signal, what is sent and what is received. The transform takes the memory of what was sent.
ARRAYS_HELD = 3
# Blocks of both transforms, twiddle factors and the copies of a block that a library makes.
OVERHEAD_BYTES = 2**25
LARGEST_SIZE = 2**40


@dataclasses.dataclass(frozen=True)
class DistributedFft(DistributedKernel):
    """X[k] = Σ x[n]·e^(-2πi·n·k/size), with the samples and frequencies spread over the ranks."""

    name: str = "distributed_fft"
    summary: str = "Fourier transform on several ranks: four steps with an exchange of all with all (args.size)"

    @property
    def parameters(self) -> Mapping[str, Any]:
        return {"size": 2**22, "order": "interleaved"}

    def list_dtypes(self, args: Mapping[str, Any]) -> Tuple[str, ...]:
        return ("complex128", "complex64")

    def count_work(self, mode: str, args: Mapping[str, Any], dtype: Optional[str] = None) -> Work:
        """Count 5·N·log2 N flops by convention; the signal is read once and the transform written once."""
        size, _ = self._read_parameters(args)
        return Work(
            flops_per_sample=5.0 * size * math.log2(size),
            bytes_per_sample=2.0 * size * DTYPE_BYTES[dtype or "complex128"],
            num_parameters=0,
        )

    def estimate_memory_bytes(self, args: Mapping[str, Any], dtype: str) -> int:
        size, _ = self._read_parameters(args)
        return ARRAYS_HELD * size * DTYPE_BYTES[dtype] // self.num_ranks + OVERHEAD_BYTES

    def fit_to_memory(self, args: Mapping[str, Any], dtype: str, free_bytes: int) -> Dict[str, Any]:
        """Reduce the size to a power of two, or to a multiple that the ranks can share."""
        size, _ = self._read_parameters(args)
        most = (free_bytes - OVERHEAD_BYTES) * self.num_ranks // (ARRAYS_HELD * DTYPE_BYTES[dtype])
        least = max(2, self.num_ranks**2)
        if most < least:
            return dict(args)
        is_power = size & (size - 1) == 0
        fitting = 2 ** int(math.log2(most)) if is_power else most // self.num_ranks**2 * self.num_ranks**2
        return {**args, "size": min(size, fitting)}

    def explain_ranks(self, args: Mapping[str, Any], num_ranks: int) -> Optional[str]:
        size, _ = self._read_parameters(args)
        if build_grid(size, num_ranks) is not None:
            return None
        square = num_ranks**2
        nearest = max(1, round(size / square)) * square
        return (
            f"{self.name}: {num_ranks} processes cannot share a signal of {size} values, which is no multiple of "
            f"{num_ranks}² = {square}; use size {nearest}, or another number of processes"
        )

    def build(self, setup: KernelSetup) -> KernelRun:
        from corewise.measured.workloads.kernels.distributed.fft_transform import SpreadTransform

        size, order = self._read_parameters(setup.args)
        grid = build_grid(size, setup.communicator.num_ranks)
        # Sizes that the ranks cannot share were already refused.
        assert isinstance(grid, SignalGrid)
        return SpreadTransform(setup, grid, is_natural=order == "natural")

    def _read_parameters(self, args: Mapping[str, Any]) -> Tuple[int, str]:
        filled = fill_defaults(self.name, self.parameters, args)
        size = read_whole_number(self.name, filled, "size", 2)
        if size > LARGEST_SIZE:
            raise ValueError(f"{self.name}: size {size} is larger than 2^40")
        return size, read_choice(self.name, filled, "order", ORDERS)


DISTRIBUTED_FFT = DistributedFft()
