"""The contract of HPC kernels: algorithms written once for the arrays of any framework.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, Mapping, Tuple

from corewise.measured.runtimes.base import Check
from corewise.measured.workloads.base import DTYPE_BYTES as DTYPE_BYTES
from corewise.measured.workloads.base import Workload

RUNTIMES = ("numpy", "torch", "jax", "tensorflow")


@dataclasses.dataclass(frozen=True)
class KernelSetup:
    """The inputs for building a kernel.

    Attributes:
        arrays: The framework's arrays (corewise.measured.runtimes.arrays.array_contract.Arrays).
        args: The kernel's parameters, with defaults filled in.
        folder: A folder on this node for the trial's files.
        float32_precision: The precision of float32 products: default, bf16 or tf32.
        num_ranks: Ranks that share the memory of this node.
        communicator: Passes messages among all ranks of the trial
            (corewise.measured.runtimes.communication.communicator.Communicator); None unless the kernel is distributed.
        first_address: The address of the first node as other nodes reach it; empty on one node.
    """

    arrays: Any
    dtype: str
    args: Mapping[str, Any]
    seed: int
    folder: str
    num_threads: int
    float32_precision: str = "default"
    num_ranks: int = 1
    communicator: Any = None
    first_address: str = ""


class KernelRun(abc.ABC):
    """A kernel with its data, ready to step. One step is one sample."""

    @abc.abstractmethod
    def check(self) -> Check:
        """Compare the result of a step with an independently computed reference."""

    @abc.abstractmethod
    def step(self) -> None:
        """Run one step; the device has finished when it returns."""

    @abc.abstractmethod
    def read_facts(self) -> Mapping[str, Any]:
        """Return facts about the kernel, after warm-up."""

    def collect_metrics(self) -> Mapping[str, float]:
        """Return figures that the worker does not measure; called after sampling."""
        return {}

    def collect_notes(self) -> Tuple[str, ...]:
        """Return sentences that a reader of the results should know."""
        return ()

    def close(self) -> None:
        """Release memory and files."""
        return


class Kernel(Workload):
    """A workload whose algorithm is written once, for the arrays of any framework."""

    is_kernel = True
    counts_by_dtype = True
    # Whether all ranks work on one problem and pass messages; otherwise each rank is a replica.
    is_distributed = False

    def share_among(self, num_ranks: int) -> Kernel:
        """Return the kernel whose memory is that of one of the ranks; replicas share nothing."""
        return self

    @abc.abstractmethod
    def list_dtypes(self, args: Mapping[str, Any]) -> Tuple[str, ...]:
        """Return the supported number formats."""

    @abc.abstractmethod
    def estimate_memory_bytes(self, args: Mapping[str, Any], dtype: str) -> int:
        """Estimate the device memory of a run, so that a run that cannot fit is refused early."""

    def estimate_memory_factors(self, args: Mapping[str, Any], dtype: str) -> Mapping[str, float]:
        """Return the peak CPU memory by runtime, set-up and check included, relative to the estimate."""
        return {}

    @abc.abstractmethod
    def fit_to_memory(self, args: Mapping[str, Any], dtype: str, free_bytes: int) -> Mapping[str, Any]:
        """Return the parameters with the largest size that fits into `free_bytes`."""

    @abc.abstractmethod
    def build(self, setup: KernelSetup) -> KernelRun:
        """Build the kernel with its data."""
