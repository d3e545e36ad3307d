"""Compute the ratios of `estimate_ratio` for many trials in one pass, for reports of 100,000 trials."""

import dataclasses
import math
from collections.abc import Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt

from corewise.stats.quantiles import compute_t_quantile
from corewise.stats.values import Values, compute_error_rate, require_positive

# Degrees of freedom at which Student's t equals the normal distribution.
_NEARLY_NORMAL = 1e9


@dataclasses.dataclass(frozen=True)
class LogMoments:
    """The number of values of each trial, and the mean and variance of their logarithms.

    The mean is NaN without values, the variance with fewer than two.
    """

    num: npt.NDArray[np.int64]
    mean: Values
    variance: Values

    def __getitem__(self, which: "npt.NDArray[np.int64] | slice") -> "LogMoments":
        return LogMoments(self.num[which], self.mean[which], self.variance[which])


@dataclasses.dataclass(frozen=True)
class Ratios:
    """Ratios with their intervals; NaN if a side has no value, or too few for an interval."""

    value: Values
    low: Values
    high: Values


def compute_log_moments(groups: Sequence[Sequence[float]]) -> LogMoments:
    """Compute the moments of each group of positive values, one per process; groups may be empty."""
    num = np.fromiter((len(group) for group in groups), dtype=np.int64, count=len(groups))
    mean, variance = np.full(num.size, np.nan), np.full(num.size, np.nan)
    logs = np.log(require_positive(list(chain.from_iterable(groups)), min_num=0))
    nonempty = np.flatnonzero(num)
    if nonempty.size == 0:
        return LogMoments(num, mean, variance)
    sizes = num[nonempty]
    starts = np.concatenate(([0], np.cumsum(sizes)[:-1]))
    first = logs[starts]
    # After the shift, equal values have a variance of exactly 0.
    shifted = logs - np.repeat(first, sizes)
    center = np.add.reduceat(shifted, starts) / sizes
    squares = np.add.reduceat((shifted - np.repeat(center, sizes)) ** 2, starts)
    mean[nonempty] = first + center
    several = sizes > 1
    variance[nonempty[several]] = squares[several] / (sizes[several] - 1)
    return LogMoments(num, mean, variance)


def estimate_ratios(above: LogMoments, below: LogMoments, confidence: float = 0.95) -> Ratios:
    """Compute each geometric mean of `above` over that of `below`, with Welch's interval on logarithms.

    Each entry equals `estimate_ratio` (Welch, Biometrika 1947). One of the two may have a single entry.
    """
    alpha = compute_error_rate(confidence)
    # Entries without values stay NaN.
    with np.errstate(all="ignore"):
        difference = above.mean - below.mean
        top, bottom = above.variance / above.num, below.variance / below.num
        variance = top + bottom
        shares = (top / variance) ** 2 / (above.num - 1) + (bottom / variance) ** 2 / (below.num - 1)
        degrees = np.minimum(_NEARLY_NORMAL, 1 / np.maximum(1e-12, shares))
        half = np.where(variance == 0, 0.0, _compute_t_quantiles(degrees, 1 - alpha / 2) * np.sqrt(variance))
        largest = np.log(np.finfo(np.float64).max)
        value, low, high = (
            np.exp(np.minimum(each, largest)) for each in (difference, difference - half, difference + half)
        )
    return Ratios(value, low, high)


def _compute_t_quantiles(degrees: Values, p: float) -> Values:
    """Return Student's quantile for each number of degrees; slower without scipy, as on a bare node."""
    try:
        from scipy.special import stdtrit
    except ModuleNotFoundError:
        each = [math.nan if math.isnan(d) else compute_t_quantile(float(d), p) for d in np.ravel(degrees)]
        return np.array(each).reshape(np.shape(degrees))
    return np.asarray(stdtrit(degrees, p))
