"""The matmul workload: the product of two square matrices.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Mapping, Optional, Tuple

from corewise.measured.parameters import BatchScope, TrialParameters
from corewise.measured.workloads.base import DTYPE_BYTES, Work, Workload
from corewise.measured.workloads.primitives.memory_demand import FREE

DEFAULT_SIZE = 512
# The largest error of many rows is several standard deviations from the mean.
SAFETY = 16.0
# The factors, the product, and one more while the factors are drawn.
MATRICES_HELD = 4


@dataclasses.dataclass(frozen=True)
class Matmul(Workload):
    """C = A·B; one sample is one product, and the `batch` products of a step use different matrices."""

    name: str = "matmul"
    summary: str = "product of two square matrices (args.size)"
    modes: Tuple[str, ...] = ("infer",)
    concurrent: bool = False
    counts_by_dtype: bool = True

    @property
    def builders(self) -> Mapping[str, str]:
        return {
            "numpy": "corewise.measured.runtimes.numpy.primitives.matmul:prepare_matmul",
            "torch": "corewise.measured.runtimes.torch.primitives.matmul:prepare_matmul",
            "jax": "corewise.measured.runtimes.jax.primitives.matmul:prepare_matmul",
            "tensorflow": "corewise.measured.runtimes.tensorflow.primitives.matmul:prepare_matmul",
        }

    @property
    def parameters(self) -> Mapping[str, Any]:
        return {"size": DEFAULT_SIZE}

    def read_size(self, args: Mapping[str, Any]) -> int:
        """Return the number of rows and columns; raise ValueError for invalid arguments."""
        unknown = sorted(set(args) - {"size"})
        if unknown:
            raise ValueError(f"matmul has no parameter {unknown[0]!r}; it has size")
        size = args.get("size", DEFAULT_SIZE)
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"matmul: size must be a whole number of at least 1, not {size!r}")
        return size

    def count_work(self, mode: str, args: Mapping[str, Any], dtype: Optional[str] = None) -> Work:
        """Count 2·size³ flops per product; both factors are read and the product is written once."""
        size, num_bytes = self.read_size(args), DTYPE_BYTES[dtype or "float32"]
        return Work(flops_per_sample=2.0 * size**3, bytes_per_sample=3.0 * num_bytes * size**2, num_parameters=0)

    def estimate_memory_bytes(self, params: TrialParameters, factor: float = 1.0) -> int:
        """Estimate the memory of a process; `factor` is the framework's need relative to the matrices."""
        size, batch = self.read_size(params.arguments), params.batch
        if params.batch_scope == BatchScope.GLOBAL:
            batch = max(1, batch // params.processes)
        return math.ceil(factor * MATRICES_HELD * batch * size**2 * DTYPE_BYTES[params.dtype.value])

    def explain_memory_shortage(
        self, params: TrialParameters, free_bytes: int, availability: str = FREE, factor: float = 1.0
    ) -> Optional[str]:
        """Return why a process needs more than `free_bytes` and what would fit; None if it fits."""
        # Unknown dtypes are refused elsewhere.
        if params.dtype.value not in DTYPE_BYTES:
            return None
        needed_bytes = self.estimate_memory_bytes(params, factor)
        if needed_bytes <= free_bytes:
            return None
        fitting = math.isqrt(self.read_size(params.arguments) ** 2 * free_bytes // needed_bytes)
        message = f"matmul needs {needed_bytes} bytes ({needed_bytes / 1e9:.3g} GB), {free_bytes} {availability}"
        fits = f"the largest that fits is args.size {fitting}" if fitting else "no smaller size fits either"
        return f"{message}; {fits}"


def compute_product_tolerance(size: int, stored_roundoff: float, summed_roundoff: float) -> float:
    """Return the tolerance: rounding of values, and of sums, which grows with √size (Higham, Mary 2019)."""
    return SAFETY * (stored_roundoff + math.sqrt(size) * summed_roundoff)


MATMUL = Matmul()
