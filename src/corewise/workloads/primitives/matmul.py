"""The product of two square matrices: the workload of one operator.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Mapping, Optional, Tuple

from corewise.workloads.base import DTYPE_BYTES, Work, workload_args
from corewise.workloads.primitives.memory_demand import FREE

DEFAULT_SIZE = 512
SAFETY = 16.0  # the worst of many rows lies several standard deviations out
MATRICES_HELD = 4  # the factors, the product, and one more while they are drawn


@dataclasses.dataclass(frozen=True)
class Matmul:
    """C = A·B; one sample is one product, and each of a step's `batch` products has its own matrices."""

    name: str = "matmul"
    summary: str = "product of two square matrices (args.size)"
    modes: Tuple[str, ...] = ("infer",)
    concurrent: bool = False
    counts_by_dtype: bool = True

    @property
    def builders(self) -> Mapping[str, str]:
        """For each runtime, what turns a trial into a job: `function(params, context) -> Job`."""
        return {
            "numpy": "corewise.runtimes.numpy.matmul:prepare_matmul",
            "torch": "corewise.runtimes.torch.matmul:prepare_matmul",
            "jax": "corewise.runtimes.jax.matmul:prepare_matmul",
            "tensorflow": "corewise.runtimes.tensorflow.matmul:prepare_matmul",
        }

    @property
    def runtimes(self) -> Tuple[str, ...]:
        return tuple(self.builders)

    @property
    def parameters(self) -> Mapping[str, Any]:
        return {"size": DEFAULT_SIZE}

    def size(self, args: Mapping[str, Any]) -> int:
        """The number of rows and columns asked for."""
        unknown = sorted(set(args) - {"size"})
        if unknown:
            raise ValueError(f"matmul has no parameter {unknown[0]!r}; it has size")
        size = args.get("size", DEFAULT_SIZE)
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"matmul: size must be a whole number of at least 1, not {size!r}")
        return size

    def work(self, mode: str, args: Mapping[str, Any], dtype: Optional[str] = None) -> Work:
        """What one product costs: 2·size³ flops; both factors read and the product written once."""
        size, num_bytes = self.size(args), DTYPE_BYTES[dtype or "float32"]
        return Work(
            flops_per_sample=2.0 * size**3, bytes_per_sample=3.0 * num_bytes * size**2, num_parameters=0
        )

    def needed_bytes(self, params: Mapping[str, Any], factor: float = 1.0) -> int:
        """What a process takes; the factor is what a framework takes over the matrices themselves."""
        size, batch = self.size(workload_args(params)), int(params["batch"])
        if params["batch_scope"] == "global":
            batch = max(1, batch // int(params["processes"]))
        return math.ceil(factor * MATRICES_HELD * batch * size**2 * DTYPE_BYTES[str(params["dtype"])])

    def lack_of_memory(
        self, params: Mapping[str, Any], free_bytes: int, there_is: str = FREE, factor: float = 1.0
    ) -> Optional[str]:
        """Why so many bytes do not do for a process, and what would fit; None where they do."""
        if str(params["dtype"]) not in DTYPE_BYTES:  # refused for another reason
            return None
        needed_bytes = self.needed_bytes(params, factor)
        if needed_bytes <= free_bytes:
            return None
        fitting = math.isqrt(self.size(workload_args(params)) ** 2 * free_bytes // needed_bytes)
        told = f"matmul needs {needed_bytes} bytes ({needed_bytes / 1e9:.3g} GB), {free_bytes} {there_is}"
        fits = f"the largest that fits is args.size {fitting}" if fitting else "no smaller size fits either"
        return f"{told}; {fits}"


def product_tolerance(size: int, stored_roundoff: float, summed_roundoff: float) -> float:
    """The error allowed: rounding of stored values, and of sums, growing like √size (Higham, Mary 2019)."""
    return SAFETY * (stored_roundoff + math.sqrt(size) * summed_roundoff)


MATMUL = Matmul()
