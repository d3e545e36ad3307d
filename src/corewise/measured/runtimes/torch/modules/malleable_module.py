"""Wrap a trial's module with `corewise.malleable`, plan it, and collect facts of the plan.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import time
from typing import Any, Mapping, Optional, Tuple, cast

import torch
from torch import nn

from corewise.measured.runtimes.torch.settings import Settings

# Planning takes at most this share of the time limit of a run.
PLANNING_SHARE = 0.25


def wrap_malleable(module: nn.Module, time_limit_s: Optional[float] = None) -> nn.Module:
    """Wrap the module with corewise.malleable, without a plan yet; planning ends well before the time limit."""
    from corewise.accelerate.malleable.module_wrapper import PLANNING_S, malleable

    limit_s = float("inf") if time_limit_s is None else PLANNING_SHARE * time_limit_s
    return cast(nn.Module, malleable(module, planning_s=min(PLANNING_S, limit_s)))


def plan_for_inputs(wrapped: Any, inputs: Tuple[Any, ...], settings: Settings) -> float:
    """Capture, measure and plan for inputs like these, and return the seconds it took."""
    started = time.perf_counter()
    with torch.inference_mode(not settings.training), settings.autocast():
        wrapped.prepare(*inputs)
    return time.perf_counter() - started


def collect_width_facts(wrapped: Any, planning_s: float) -> Mapping[str, Any]:
    """Collect facts of the plan and its planning time."""
    from corewise.accelerate.malleable.plan_facts import collect_plan_facts

    return {"planning_s": planning_s, "malleable": collect_plan_facts(wrapped)}
