"""Estimate the ratio of two sets of values, with its interval."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from corewise.stats.estimate import Estimate
from corewise.stats.quantiles import compute_t_quantile, compute_t_tail
from corewise.stats.values import (
    compute_error_rate,
    compute_finite_exp,
    compute_sample_variance,
    compute_shifted_mean,
    require_positive,
)

# Degrees of freedom at which Student's t equals the normal distribution.
_NEARLY_NORMAL = 1e9


@dataclasses.dataclass(frozen=True)
class Ratio:
    """A ratio with its interval and the p-value of the hypothesis that the true ratio is 1."""

    interval: Estimate
    p_value: float | None


def estimate_ratio(
    above: Sequence[float],
    below: Sequence[float],
    confidence: float = 0.95,
    *,
    drift_sd: float = 0.0,
    drift_degrees: float = math.inf,
) -> Ratio:
    """Estimate the geometric mean of `above` over that of `below`, with Welch's interval on logarithms.

    Source: Welch, Biometrika 1947. Logarithms suit times and rates, which are positive and vary by factors.
    `drift_sd` is the standard deviation of the ratio's logarithm that drift between occasions causes.
    """
    top, bottom = np.log(require_positive(above)), np.log(require_positive(below))
    alpha = compute_error_rate(confidence)
    if not (math.isfinite(drift_sd) and drift_sd >= 0):
        raise ValueError(f"drift_sd must be a finite number of at least 0, not {drift_sd!r}")
    if not drift_degrees > 0:
        raise ValueError(f"drift_degrees must be greater than 0, not {drift_degrees!r}")
    difference = compute_shifted_mean(top) - compute_shifted_mean(bottom)
    value, num = compute_finite_exp(difference), min(top.size, bottom.size)
    method = "ratio of geometric means, Welch t on logarithms" + (", drift added" if drift_sd else "")
    if num < 2:
        reason = f"{top.size} and {bottom.size} values: at least 2 on each side are needed"
        return Ratio(Estimate(value, None, None, confidence, method, num, reason), None)
    parts = (
        (compute_sample_variance(top) / top.size, top.size - 1.0),
        (compute_sample_variance(bottom) / bottom.size, bottom.size - 1.0),
        (drift_sd**2, drift_degrees),
    )
    variance = sum(part for part, _ in parts)
    if variance == 0:
        return Ratio(Estimate(value, value, value, confidence, method, num), 1.0 if difference == 0 else 0.0)
    # Shares are used because squared variances would underflow for values that hardly vary.
    degrees = min(_NEARLY_NORMAL, 1 / max(1e-12, sum((v / variance) ** 2 / d for v, d in parts)))
    error = math.sqrt(variance)
    half = compute_t_quantile(degrees, 1 - alpha / 2) * error
    p_value = 2 * float(compute_t_tail(degrees, abs(difference) / error))
    low, high = compute_finite_exp(difference - half), compute_finite_exp(difference + half)
    return Ratio(Estimate(value, low, high, confidence, method, num), p_value)
