"""Estimate the mean, median and quantiles of a set of values, with intervals or the reason for none."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from corewise.stats.quantiles import compute_t_quantile
from corewise.stats.values import (
    compute_error_rate,
    compute_finite_exp,
    compute_sample_variance,
    compute_shifted_mean,
    require_non_negative,
    require_positive,
)


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A number with its interval; without an interval `low` and `high` are None and `reason` says why."""

    value: float
    low: float | None
    high: float | None
    confidence: float
    method: str
    num: int
    reason: str = ""

    @property
    def relative_half_width(self) -> float | None:
        """Half the interval's width over the value, or None without an interval."""
        if self.low is None or self.high is None or self.value == 0:
            return None
        return (self.high - self.low) / 2 / abs(self.value)


@dataclasses.dataclass(frozen=True)
class Quantile:
    """A quantile, or None and the reason why the values do not suffice."""

    value: float | None
    q: float
    num: int
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class Description:
    """The descriptive statistics of a set of values; missing ones are None, with a `reason`.

    `margin_of_error` is half the width of the mean's interval, in the unit of the values.
    """

    num: int
    confidence: float
    mean: float
    median: float
    standard_deviation: float | None
    coefficient_of_variation: float | None
    standard_error: float | None
    margin_of_error: float | None
    minimum: float
    maximum: float
    p99: float | None
    reason: str = ""


def estimate_median(values: Sequence[float], confidence: float = 0.95) -> Estimate:
    """Estimate the median with its exact, distribution-free interval between two order statistics.

    Source: Le Boudec, Performance Evaluation of Computer and Communication Systems (2010), chapter 2;
    required by Hoefler and Belli, SC15, rule 5. Values must be independent: for a trial's headline use
    `estimate_process_median`.
    """
    array = np.sort(require_non_negative(values))
    alpha, num = compute_error_rate(confidence), array.size
    value = float(np.median(array))
    rank = _find_outermost_rank(num, alpha)
    method = "median, order statistics"
    if rank == 0:
        needed = math.ceil(1 - math.log2(alpha))
        reason = f"{num} values give no interval of the median at {confidence:.4g}: at least {needed} are needed"
        return Estimate(value, None, None, confidence, method, num, reason)
    return Estimate(value, float(array[rank - 1]), float(array[num - rank]), confidence, method, num)


def estimate_process_median(process_medians: Sequence[float], confidence: float = 0.95) -> Estimate:
    """Estimate a trial's headline: the median of its process medians, with the interval over processes.

    It takes one value per process, never pooled steps, because steps of one process are correlated (Kalibera
    and Jones, Rigorous benchmarking in reasonable time, ISMM 2013). Student's t on logarithms, around the
    geometric mean, works from two processes on. The interval is extended, if needed, to contain the median;
    this can only raise its coverage.
    """
    array = require_positive(process_medians)
    alpha, num = compute_error_rate(confidence), array.size
    value = float(np.median(array))
    method = "median of process medians, Student t on logarithms"
    if num < 2:
        reason = "one process shows no variation between processes: at least 2 are needed"
        return Estimate(value, None, None, confidence, method, num, reason)
    if array.min() == array.max():
        return Estimate(value, value, value, confidence, method, num)
    logs = np.log(array)
    center = compute_shifted_mean(logs)
    half = compute_t_quantile(num - 1, 1 - alpha / 2) * math.sqrt(compute_sample_variance(logs) / num)
    low, high = compute_finite_exp(center - half), compute_finite_exp(center + half)
    return Estimate(value, min(low, value), max(high, value), confidence, method, num)


def estimate_mean(values: Sequence[float], confidence: float = 0.95) -> Estimate:
    """Estimate the arithmetic mean of near-normal values (Student, Biometrika 1908)."""
    array = require_non_negative(values)
    alpha, num = compute_error_rate(confidence), array.size
    value = compute_shifted_mean(array)
    if num < 2:
        reason = "one value shows no variation: at least 2 are needed"
        return Estimate(value, None, None, confidence, "mean, Student t", num, reason)
    half = compute_t_quantile(num - 1, 1 - alpha / 2) * math.sqrt(compute_sample_variance(array) / num)
    return Estimate(value, value - half, value + half, confidence, "mean, Student t", num)


def compute_quantile(values: Sequence[float], q: float) -> Quantile:
    """Compute the q-quantile by linear interpolation (Hyndman and Fan 1996, type 7).

    There is no value unless one observation is expected beyond it: the 99th percentile needs 100 values,
    because with fewer it is practically the maximum.
    """
    if not 0.0 < q < 1.0:
        raise ValueError(f"q must lie between 0 and 1, for example 0.99, not {q!r}")
    array = require_non_negative(values)
    needed = math.ceil(round(1 / min(q, 1 - q), 6))
    if array.size < needed:
        reason = f"{array.size} values do not suffice for the {q:.6g} quantile: at least {needed} are needed"
        return Quantile(None, q, array.size, reason)
    return Quantile(float(np.quantile(array, q)), q, array.size)


def describe_values(values: Sequence[float], confidence: float = 0.95) -> Description:
    """Compute mean, median, spread and extremes; the standard deviation divides by n - 1.

    Theses often call `standard_error` = s/√n the margin of error; here the margin is that times Student's t.
    """
    array = require_non_negative(values)
    num = array.size
    mean = estimate_mean(values, confidence)
    p99 = compute_quantile(values, 0.99)
    deviation = math.sqrt(compute_sample_variance(array)) if num > 1 else None
    relative = deviation / mean.value if deviation is not None and mean.value > 0 else None
    zero_mean = "a mean of 0 has no coefficient of variation" if mean.value == 0 and num > 1 else ""
    return Description(
        num=num,
        confidence=confidence,
        mean=mean.value,
        median=float(np.median(array)),
        standard_deviation=deviation,
        coefficient_of_variation=relative,
        standard_error=deviation / math.sqrt(num) if deviation is not None else None,
        margin_of_error=mean.high - mean.value if mean.high is not None else None,
        minimum=float(array.min()),
        maximum=float(array.max()),
        p99=p99.value,
        reason="; ".join(text for text in (mean.reason, zero_mean, p99.reason) if text),
    )


def _find_outermost_rank(num: int, alpha: float) -> int:
    """Return the largest rank k whose interval, counted from both ends, misses the median with at most alpha.

    It misses with probability 2 P(Binomial(num, 1/2) < k), computed exactly in integers. 0 means none.
    """
    numerator, denominator = alpha.as_integer_ratio()
    allowed = numerator * 2 ** (num - 1) // denominator
    rank, num_orders, num_below = 0, 1, 1
    while rank < num // 2 and num_below <= allowed:
        num_orders = num_orders * (num - rank) // (rank + 1)
        num_below += num_orders
        rank += 1
    return rank
