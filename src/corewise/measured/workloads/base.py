"""The contract of workloads: what each one reports about itself, without any framework.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, ClassVar, Dict, Mapping, Optional, Tuple

from corewise.measured.parameters import ARGS_PREFIX, TrialParameters

DTYPE_BYTES = {
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "int8": 1,
    "int32": 4,
    "complex64": 8,
    "complex128": 16,
}


@dataclasses.dataclass(frozen=True)
class Work:
    """The cost of one sample; a training step counts the forward and the backward pass.

    `bytes_per_sample` is the minimum traffic: inputs and outputs of every layer, without the parameters,
    which move once per step.
    """

    flops_per_sample: float
    bytes_per_sample: float
    num_parameters: int
    pixels_per_sample: float = 0.0


@dataclasses.dataclass(frozen=True)
class Traits:
    """Properties of a workload that decide which settings apply to it; None means unknown.

    `concurrent_under` is the execution that runs its branches in parallel. `has_fast_kernels` is true if
    Corewise has own kernels for some layers.
    """

    takes_images: Optional[bool] = None
    has_batch_norm: Optional[bool] = None
    has_dropout: Optional[bool] = None
    concurrent_under: Optional[str] = None
    has_fast_kernels: Optional[bool] = None

    @property
    def depends_on_batch(self) -> Optional[bool]:
        """True if the result of a sample depends on the rest of its batch or on random numbers."""
        if self.has_batch_norm is None or self.has_dropout is None:
            return None
        return self.has_batch_norm or self.has_dropout


class Workload(abc.ABC):
    """A computation with its parameters and its work; optional members have defaults here.

    Attributes:
        summary: One line for `corewise list`.
        modes: The supported modes out of "train" and "infer".
        concurrent: True if parts of it can run in parallel.
        is_kernel: True if it is built from any framework's arrays; one step is then one sample.
        counts_by_dtype: True if its bytes are counted in the trial's dtype; models count in float32.
    """

    name: str
    summary: str
    modes: Tuple[str, ...]
    concurrent: bool
    is_kernel: ClassVar[bool] = False
    counts_by_dtype: bool = False

    @property
    def builders(self) -> Mapping[str, str]:
        """The function that builds a job, by runtime: `module:function(params, context) -> Job`."""
        return {}

    @property
    def runtimes(self) -> Tuple[str, ...]:
        """The supported runtimes."""
        return tuple(self.builders)

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Default values of the workload's parameters (axes `args.NAME`)."""
        return {}

    @property
    def axis_defaults(self) -> Mapping[str, Any]:
        """Axis values that fit this workload better than the general defaults."""
        return {}

    @abc.abstractmethod
    def count_work(self, mode: str, args: Mapping[str, Any], dtype: Optional[str] = None) -> Work:
        """Count the work of one sample; `dtype` matters only if `counts_by_dtype` is true."""

    def describe_traits(self, args: Mapping[str, Any]) -> Traits:
        """Return the properties that decide which settings apply."""
        return Traits()

    def list_dtypes(self, args: Mapping[str, Any]) -> Tuple[str, ...]:
        """Return the supported number formats; empty if the workload does not restrict them."""
        return ()

    def explain_refusal(self, params: TrialParameters) -> Optional[str]:
        """Return why no framework can run this point, or None."""
        return None

    def derive_metrics(self, params: TrialParameters, step_s: float) -> Mapping[str, float]:
        """Return metrics that follow from the time of a step."""
        return {}

    def count_memory_traffic(self, params: TrialParameters) -> Optional[float]:
        """Return the least bytes of a sample that memory carries; None if they are those of `count_work`."""
        return None

    def explain_memory_shortage(
        self, params: TrialParameters, free_bytes: int, availability: str = "", factor: float = 1.0
    ) -> Optional[str]:
        """Return why `free_bytes` are too few for a process and what would fit; None if they suffice.

        Args:
            params: The trial's parameters.
            free_bytes: Memory that one process may use.
            availability: How the message describes `free_bytes`, for example "are free".
            factor: Memory that the framework needs, relative to the workload's own arrays.
        """
        return None


def describe_traits(workload: Optional[Workload], args: Mapping[str, Any]) -> Traits:
    """Return the traits of a workload; all are None for an unknown workload."""
    return Traits() if workload is None else workload.describe_traits(args)


def is_kernel(workload: Optional[Workload]) -> bool:
    """Return True for a kernel, where one step is one sample."""
    return workload is not None and workload.is_kernel


def is_counted_by_dtype(workload: Optional[Workload]) -> bool:
    """Return True if the workload's bytes are counted in the dtype of the trial."""
    return workload is not None and workload.counts_by_dtype


def count_work(workload: Workload, mode: str, args: Mapping[str, Any], dtype: str) -> Work:
    """Count the work of one sample in the dtype that applies to this workload."""
    return workload.count_work(mode, args, dtype if workload.counts_by_dtype else None)


def list_axis_defaults(workload: Optional[Workload]) -> Mapping[str, Any]:
    """Return the workload's default axis values, used where the study sets none."""
    formats = () if workload is None else workload.list_dtypes(workload.parameters)
    # Only kernels and primitives name their formats.
    if workload is None or not formats:
        return {}
    dtype = {} if "float32" in formats else {"dtype": formats[0]}
    return {"batch": 1, **dtype, **workload.axis_defaults}


def extract_workload_args(params: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the workload's arguments from a flat mapping of parameters, without their prefix."""
    return {name[len(ARGS_PREFIX) :]: each for name, each in params.items() if name.startswith(ARGS_PREFIX)}
