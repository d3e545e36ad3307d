"""What every workload says of itself, free of frameworks.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, Mapping, Optional, Protocol

ARGS_PREFIX = "args."  # of a workload's own parameters among those of a trial

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
    """What one sample costs; a training step counts forward and backward."""

    flops_per_sample: float
    bytes_per_sample: (
        float  # least traffic: parameters once per step aside, inputs and outputs of every layer
    )
    num_parameters: int
    pixels_per_sample: float = 0.0


@dataclasses.dataclass(frozen=True)
class Traits:
    """What of a workload decides which settings make sense and what they change; None: not known."""

    takes_images: Optional[bool] = None
    has_batch_norm: Optional[bool] = None
    has_dropout: Optional[bool] = None
    concurrent_under: Optional[str] = None  # the execution that runs its branches side by side
    can_be_quickened: Optional[bool] = None  # some layers have kernels of our own

    @property
    def depends_on_batch(self) -> Optional[bool]:
        """True when a sample's result depends on the others of its batch, or on chance."""
        if self.has_batch_norm is None or self.has_dropout is None:
            return None
        return self.has_batch_norm or self.has_dropout


class Workload(Protocol):
    """A thing to compute, with its parameters and its work."""

    name: str
    summary: str  # one line for `corewise list`
    modes: tuple[str, ...]  # of train, infer
    runtimes: tuple[str, ...]
    concurrent: bool  # something in it can run beside something else
    parameters: Mapping[str, Any]  # its own parameters (axes `args.NAME`) with their defaults

    def work(self, mode: str, args: Mapping[str, Any]) -> Work: ...


def traits_of(workload: Optional[Workload], args: Mapping[str, Any]) -> Traits:
    """What a workload says of itself beyond what it must: nothing, unless it has a method `traits`."""
    say = getattr(workload, "traits", None)
    return say(args) if say is not None else Traits()


def is_kernel(workload: Optional[Workload]) -> bool:
    """True of a workload that is built from any framework's arrays: one step is one sample."""
    return hasattr(workload, "build")


def counts_by_dtype(workload: Optional[Workload]) -> bool:
    """True of a workload whose work is counted in the number format of the trial; of models it is float32."""
    return is_kernel(workload) or bool(getattr(workload, "counts_by_dtype", False))


def work_of(workload: Workload, mode: str, args: Mapping[str, Any], dtype: str) -> Work:
    """What one sample costs, where it depends on the number format for that one."""
    if counts_by_dtype(workload):
        counted: Work = workload.work(mode, args, dtype)  # type: ignore[call-arg]
        return counted
    return workload.work(mode, args)


def own_defaults(workload: Optional[Workload]) -> Mapping[str, Any]:
    """What axes are where a study says nothing of them and the workload knows better than their table."""
    if workload is None or not hasattr(workload, "dtypes"):  # kernels and primitives name theirs
        return {}
    formats = workload.dtypes(workload.parameters)
    best = getattr(workload, "axis_defaults", {})
    dtype = {} if "float32" in formats else {"dtype": formats[0]}
    return {"batch": 1, **dtype, **best}


def workload_args(params: Mapping[str, Any]) -> Dict[str, Any]:
    """The workload's own parameters among those of a trial, without their prefix."""
    return {name[len(ARGS_PREFIX) :]: each for name, each in params.items() if name.startswith(ARGS_PREFIX)}
