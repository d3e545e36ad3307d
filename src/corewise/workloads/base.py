"""What every workload says of itself, free of frameworks.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Mapping, Optional, Protocol


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
