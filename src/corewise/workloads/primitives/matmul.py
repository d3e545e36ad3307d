"""The product of two square matrices: the workload of one operator.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Mapping, Optional, Tuple

from corewise.workloads.base import DTYPE_BYTES, Work

DEFAULT_SIZE = 512
SAFETY = 16.0  # the worst of many rows lies several standard deviations out


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


def product_error(a: Any, b: Any, c: Any, x: Any) -> float:
    """The largest error of C·x against A·(B·x), relative to the root of A²·B²·x², squared element by element.

    Freivalds' check: takes float64 arrays of any library with `@`; `x` is a random vector, so that an error
    anywhere in C shows.
    """
    return rows_error(a, c, x, b @ x, (b * b) @ (x * x))


def rows_error(a: Any, c: Any, x: Any, b_x: Any, squares: Any) -> float:
    """The same of rows of A and C, given B·x and B²·x²."""
    return float((abs(c @ x - a @ b_x) / ((a * a) @ squares) ** 0.5).max())


def product_tolerance(size: int, stored_roundoff: float, summed_roundoff: float) -> float:
    """The error allowed: rounding of stored values, and of sums, growing like √size (Higham, Mary 2019)."""
    return SAFETY * (stored_roundoff + math.sqrt(size) * summed_roundoff)


MATMUL = Matmul()
