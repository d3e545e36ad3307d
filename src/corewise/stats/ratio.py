"""The ratio of two sets of values, with its interval."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from corewise.stats.estimate import Estimate
from corewise.stats.quantiles import t_quantile, t_tail
from corewise.stats.values import error_rate, finite_exp, positive, sample_variance, shifted_mean

_NEARLY_NORMAL = 1e9  # degrees of freedom at which Student's t is the normal distribution


@dataclasses.dataclass(frozen=True)
class Ratio:
    """A ratio with its interval and the probability of so large a deviation if the true ratio were 1."""

    interval: Estimate
    p_value: float | None


def ratio_of(
    above: Sequence[float],
    below: Sequence[float],
    confidence: float = 0.95,
    *,
    drift_sd: float = 0.0,
    drift_degrees: float = math.inf,
) -> Ratio:
    """The geometric mean of `above` over that of `below`, with Welch's interval on logarithms.

    Source: Welch, Biometrika 1947; logarithms because times and rates are positive and vary by factors.
    `drift_sd` is the standard deviation of the logarithm of the ratio caused by time alone.
    """
    top, bottom = np.log(positive(above)), np.log(positive(below))
    alpha = error_rate(confidence)
    if not (math.isfinite(drift_sd) and drift_sd >= 0):
        raise ValueError(f"drift_sd must be a finite number of at least 0, not {drift_sd!r}")
    if not drift_degrees > 0:
        raise ValueError(f"drift_degrees must be greater than 0, not {drift_degrees!r}")
    difference = shifted_mean(top) - shifted_mean(bottom)
    value, num = finite_exp(difference), min(top.size, bottom.size)
    method = "ratio of geometric means, Welch t on logarithms" + (", drift added" if drift_sd else "")
    if num < 2:
        reason = f"{top.size} and {bottom.size} values show no variation: at least 2 on each side are needed"
        return Ratio(Estimate(value, None, None, confidence, method, num, reason), None)
    parts = (
        (sample_variance(top) / top.size, top.size - 1.0),
        (sample_variance(bottom) / bottom.size, bottom.size - 1.0),
        (drift_sd**2, drift_degrees),
    )
    variance = sum(part for part, _ in parts)
    if variance == 0:
        return Ratio(Estimate(value, value, value, confidence, method, num), 1.0 if difference == 0 else 0.0)
    # Shares rather than squared variances: these would underflow for values that hardly vary.
    degrees = min(_NEARLY_NORMAL, 1 / max(1e-12, sum((v / variance) ** 2 / d for v, d in parts)))
    error = math.sqrt(variance)
    half = t_quantile(degrees, 1 - alpha / 2) * error
    p_value = 2 * float(t_tail(degrees, abs(difference) / error))
    low, high = finite_exp(difference - half), finite_exp(difference + half)
    return Ratio(Estimate(value, low, high, confidence, method, num), p_value)
