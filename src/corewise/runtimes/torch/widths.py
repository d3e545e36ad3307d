"""A module whose operators run with thread widths that change, as a trial runs it.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import time
from typing import Any, Dict, Mapping, Tuple, cast

import torch
from torch import nn

from corewise.runtimes.torch.settings import Settings


def with_changing_widths(module: nn.Module) -> nn.Module:
    """The module wrapped by corewise.malleable, not yet planned for any input."""
    from corewise.dataflow.malleable import malleable

    return cast(nn.Module, malleable(module))  # looks like one: attributes are the module's


def planned(wrapped: Any, inputs: Tuple[Any, ...], settings: Settings) -> float:
    """The seconds it took to capture, measure and plan for inputs like these, in the trial's modes."""
    started = time.perf_counter()
    with torch.inference_mode(not settings.training), settings.autocast():
        wrapped.prepare(*inputs)
    return time.perf_counter() - started


def width_facts(wrapped: Any, planning_s: float) -> Mapping[str, Any]:
    """The plan of what runs, and how long it took to make."""
    from corewise.dataflow.plan_facts import plan_facts

    facts: Dict[str, Any] = {"planning_s": planning_s, "malleable": plan_facts(wrapped)}
    return facts
