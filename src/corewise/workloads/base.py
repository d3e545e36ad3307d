"""What every workload says of itself, free of frameworks.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Mapping, Protocol


@dataclasses.dataclass(frozen=True)
class Work:
    """What one sample costs; a training step counts forward and backward."""

    flops_per_sample: float
    bytes_per_sample: (
        float  # least traffic: parameters once per step aside, inputs and outputs of every layer
    )
    num_parameters: int
    pixels_per_sample: float = 0.0


class Workload(Protocol):
    """A thing to compute, with its parameters and its work."""

    name: str
    summary: str  # one line for `corewise list`
    modes: tuple[str, ...]  # of train, infer
    runtimes: tuple[str, ...]
    concurrent: bool  # something in it can run beside something else
    parameters: Mapping[str, Any]  # its own parameters (axes `args.NAME`) with their defaults

    def work(self, mode: str, args: Mapping[str, Any]) -> Work: ...
