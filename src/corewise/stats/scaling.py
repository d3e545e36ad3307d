"""Compute speed-up and efficiency over threads or nodes, always against a named base."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal

from corewise.stats.estimate import Estimate
from corewise.stats.ratio import estimate_ratio


@dataclasses.dataclass(frozen=True)
class EfficiencyPoint:
    """One width (threads or nodes) of a curve; without a base there is a reason instead of figures."""

    width: int
    base: int
    num: int
    speedup: Estimate | None
    efficiency: Estimate | None
    reason: str = ""


def compute_efficiency_curve(
    points: Mapping[int, Sequence[float]],
    *,
    base: int = 1,
    quantity: Literal["rate", "time"] = "rate",
    confidence: float = 0.95,
) -> tuple[EfficiencyPoint, ...]:
    """Compute each width's speed-up p_w / p_base, and its efficiency: the speed-up over w / base.

    Within a node e(t) = p_t / (t p_1), across nodes E_i = P_i / (i P_1). `points` holds one value per process
    run: rates (samples per second) or, for a fixed amount of work, times. Intervals are Welch's on logarithms
    (see `estimate_ratio`), each for one point alone; Hoefler and Belli, SC15, rules 1 and 5.
    """
    if quantity not in ("rate", "time"):
        raise ValueError(f"quantity must be 'rate' or 'time', not {quantity!r}")
    if base < 1 or any(width < 1 for width in points):
        raise ValueError(f"widths must be at least 1, not {sorted({base, *points})[0]}")
    return tuple(
        _build_point(width, base, points[width], points.get(base, ()), quantity, confidence) for width in sorted(points)
    )


def _build_point(
    width: int, base: int, values: Sequence[float], base_values: Sequence[float], quantity: str, confidence: float
) -> EfficiencyPoint:
    """Build the point of one width against the base."""
    num = len(values)
    if num == 0:
        return EfficiencyPoint(width, base, num, None, None, f"no value at width {width}")
    if len(base_values) == 0:
        reason = f"no value at the base width {base}: measure it, or choose another base"
        return EfficiencyPoint(width, base, num, None, None, reason)
    above, below = (values, base_values) if quantity == "rate" else (base_values, values)
    speedup = estimate_ratio(above, below, confidence).interval
    if width == base:
        speedup = Estimate(1.0, 1.0, 1.0, confidence, "the base itself", num)
    efficiency = _scale(speedup, base / width)
    return EfficiencyPoint(width, base, num, speedup, efficiency, speedup.reason)


def _scale(estimate: Estimate, factor: float) -> Estimate:
    """Return the estimate times an exactly known factor."""
    low, high = estimate.low, estimate.high
    return dataclasses.replace(
        estimate,
        value=estimate.value * factor,
        low=None if low is None else low * factor,
        high=None if high is None else high * factor,
    )
