"""What every HPC kernel says of itself and how it is run on any framework's arrays.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Mapping, Optional, Protocol, Tuple

from corewise.runtimes.base import Check
from corewise.workloads.base import DTYPE_BYTES as DTYPE_BYTES
from corewise.workloads.base import Work

RUNTIMES = ("numpy", "torch", "jax", "tensorflow")


@dataclasses.dataclass(frozen=True)
class Setup:
    """Where a kernel is built: the framework's arrays, the number format, this rank's seed and folder."""

    arrays: Any  # corewise.runtimes.arrays.Arrays
    dtype: str
    args: Mapping[str, Any]  # the kernel's own parameters, defaults filled in
    seed: int
    folder: str  # for files: a folder of this trial's own on this node
    num_threads: int
    float32_precision: str = "default"  # what float32 products are computed in: default, bf16 or tf32
    num_ranks: int = 1  # that share this node's memory


class KernelRun(Protocol):
    """A kernel with its data, ready to step. One step is one sample."""

    def check(self) -> Check:
        """The numbers of a step against a reference that was computed another way."""
        ...

    def step(self) -> None:
        """One whole step, finished on the device when it returns."""
        ...

    def facts(self) -> Mapping[str, Any]: ...

    def close(self) -> None: ...


class Kernel(Protocol):
    """A workload whose algorithm is written once, for the arrays of any framework."""

    name: str
    summary: str
    modes: Tuple[str, ...]  # ("infer",)
    runtimes: Tuple[str, ...]
    concurrent: bool
    parameters: Mapping[str, Any]

    def work(self, mode: str, args: Mapping[str, Any], dtype: Optional[str] = None) -> Work:
        """Exact counts of one step as the papers count them, for this number format."""
        ...

    def dtypes(self, args: Mapping[str, Any]) -> Tuple[str, ...]:
        """The number formats the kernel is defined for."""
        ...

    def needed_bytes(self, args: Mapping[str, Any], dtype: str) -> int:
        """The memory a run takes on its device, so that what cannot fit is refused before it is tried.

        A kernel may have a method `memory_factors(args, dtype)` too: by runtime, what the most that is taken
        on a CPU at any time, set-up and check included, was found to be over this.
        """
        ...

    def largest_that_fits(self, args: Mapping[str, Any], dtype: str, free_bytes: int) -> Mapping[str, Any]:
        """The same parameters with the size made as large as the memory allows."""
        ...

    def build(self, setup: Setup) -> KernelRun: ...
