"""One set of values described: a number, its interval, or the reason why there is none."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from corewise.stats.quantiles import t_quantile
from corewise.stats.values import (
    error_rate,
    finite_exp,
    non_negative,
    positive,
    sample_variance,
    shifted_mean,
)


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A number with its interval; without interval `low` and `high` are None and `reason` says why."""

    value: float
    low: float | None
    high: float | None
    confidence: float
    method: str
    num: int
    reason: str = ""

    @property
    def relative_half_width(self) -> float | None:
        """Half the interval's width over the value, or None where there is no interval."""
        if self.low is None or self.high is None or self.value == 0:
            return None
        return (self.high - self.low) / 2 / abs(self.value)


@dataclasses.dataclass(frozen=True)
class Quantile:
    """A quantile, or None and the reason why these values cannot show it."""

    value: float | None
    q: float
    num: int
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class Description:
    """One set of values in figures; what cannot be had is None and named in `reason`."""

    num: int
    confidence: float
    mean: float
    median: float
    standard_deviation: float | None
    coefficient_of_variation: float | None
    standard_error: float | None
    margin_of_error: float | None  # half width of the mean's interval, in the values' unit
    minimum: float
    maximum: float
    p99: float | None
    reason: str = ""


def median_interval(values: Sequence[float], confidence: float = 0.95) -> Estimate:
    """The median with its exact interval between two order statistics, free of any distribution.

    Source: Le Boudec, Performance Evaluation of Computer and Communication Systems (2010), chapter 2;
    asked for by Hoefler and Belli, SC15, rule 5. Values must be independent: for a trial's headline
    use `process_interval`.
    """
    array = np.sort(non_negative(values))
    alpha, num = error_rate(confidence), array.size
    value = float(np.median(array))
    rank = _outermost_rank(num, alpha)
    method = "median, order statistics"
    if rank == 0:
        needed = math.ceil(1 - math.log2(alpha))
        reason = f"{num} values cannot bound a median at {confidence:.4g}: at least {needed} are needed"
        return Estimate(value, None, None, confidence, method, num, reason)
    return Estimate(value, float(array[rank - 1]), float(array[num - rank]), confidence, method, num)


def process_interval(process_medians: Sequence[float], confidence: float = 0.95) -> Estimate:
    """A trial's headline: the median of its process medians, with the interval over processes.

    One value per process, never pooled steps: steps of one process share its luck (Kalibera and Jones,
    Rigorous benchmarking in reasonable time, ISMM 2013). Student's t on logarithms, about the geometric
    mean, works from two processes on. The interval is stretched, where needed, to hold the median shown:
    this can only raise its coverage.
    """
    array = positive(process_medians)
    alpha, num = error_rate(confidence), array.size
    value = float(np.median(array))
    method = "median of process medians, Student t on logarithms"
    if num < 2:
        reason = "one process shows no variation between processes: at least 2 are needed"
        return Estimate(value, None, None, confidence, method, num, reason)
    if array.min() == array.max():
        return Estimate(value, value, value, confidence, method, num)
    logs = np.log(array)
    center = shifted_mean(logs)
    half = t_quantile(num - 1, 1 - alpha / 2) * math.sqrt(sample_variance(logs) / num)
    low, high = finite_exp(center - half), finite_exp(center + half)
    return Estimate(value, min(low, value), max(high, value), confidence, method, num)


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> Estimate:
    """The arithmetic mean with Student's interval (Student, Biometrika 1908), for near-normal values."""
    array = non_negative(values)
    alpha, num = error_rate(confidence), array.size
    value = shifted_mean(array)
    if num < 2:
        reason = "one value shows no variation: at least 2 are needed"
        return Estimate(value, None, None, confidence, "mean, Student t", num, reason)
    half = t_quantile(num - 1, 1 - alpha / 2) * math.sqrt(sample_variance(array) / num)
    return Estimate(value, value - half, value + half, confidence, "mean, Student t", num)


def quantile(values: Sequence[float], q: float) -> Quantile:
    """The q-quantile by linear interpolation (Hyndman and Fan 1996, type 7), or the reason why not.

    No value is given unless one observation is expected beyond it: the 99th percentile needs 100 values,
    for with fewer it is the maximum under another name.
    """
    if not 0.0 < q < 1.0:
        raise ValueError(f"q must lie between 0 and 1, for example 0.99, not {q!r}")
    array = non_negative(values)
    needed = math.ceil(round(1 / min(q, 1 - q), 6))
    if array.size < needed:
        reason = f"{array.size} values cannot show the {q:.6g} quantile: at least {needed} are needed"
        return Quantile(None, q, array.size, reason)
    return Quantile(float(np.quantile(array, q)), q, array.size)


def describe(values: Sequence[float], confidence: float = 0.95) -> Description:
    """The values' mean, median, spread and extremes; the standard deviation is over n - 1.

    `standard_error` = s/√n is what theses often call margin of error; ours is that times Student's t.
    """
    array = non_negative(values)
    num = array.size
    mean = mean_interval(values, confidence)
    p99 = quantile(values, 0.99)
    deviation = math.sqrt(sample_variance(array)) if num > 1 else None
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


def _outermost_rank(num: int, alpha: float) -> int:
    """The largest rank k that, from either end, misses the median with probability alpha at most; 0 if none.

    Rank k misses it with probability 2 P(Binomial(num, 1/2) < k); counted in whole numbers, hence exact.
    """
    numerator, denominator = alpha.as_integer_ratio()
    allowed = numerator * 2 ** (num - 1) // denominator
    rank, num_orders, num_below = 0, 1, 1
    while rank < num // 2 and num_below <= allowed:
        num_orders = num_orders * (num - rank) // (rank + 1)
        num_below += num_orders
        rank += 1
    return rank
