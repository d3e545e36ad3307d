"""The same ratios as `ratio_of`, for many trials at once: a report of 100,000 trials has no time for each."""

import dataclasses
import math
from collections.abc import Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt

from corewise.stats.quantiles import t_quantile
from corewise.stats.values import Values, error_rate, positive

_NEARLY_NORMAL = 1e9  # degrees of freedom at which Student's t is the normal distribution


@dataclasses.dataclass(frozen=True)
class LogMoments:
    """Of each trial: how many values it has, and the mean and variance of their logarithms.

    The mean is NaN where there is no value, the variance where there are fewer than two.
    """

    num: npt.NDArray[np.int64]
    mean: Values
    variance: Values

    def __getitem__(self, which: "npt.NDArray[np.int64] | slice") -> "LogMoments":
        return LogMoments(self.num[which], self.mean[which], self.variance[which])


@dataclasses.dataclass(frozen=True)
class Ratios:
    """Ratios with their intervals; NaN where a side has no value, or too few for an interval."""

    value: Values
    low: Values
    high: Values


def log_moments(groups: Sequence[Sequence[float]]) -> LogMoments:
    """The moments of each group of positive values, one value per process; a group may be empty."""
    num = np.fromiter((len(group) for group in groups), dtype=np.int64, count=len(groups))
    mean, variance = np.full(num.size, np.nan), np.full(num.size, np.nan)
    logs = np.log(positive(list(chain.from_iterable(groups)), min_num=0))
    full = np.flatnonzero(num)
    if full.size == 0:
        return LogMoments(num, mean, variance)
    sizes = num[full]
    starts = np.concatenate(([0], np.cumsum(sizes)[:-1]))
    first = logs[starts]
    shifted = logs - np.repeat(first, sizes)  # equal values then vary by exactly 0
    center = np.add.reduceat(shifted, starts) / sizes
    squares = np.add.reduceat((shifted - np.repeat(center, sizes)) ** 2, starts)
    mean[full] = first + center
    several = sizes > 1
    variance[full[several]] = squares[several] / (sizes[several] - 1)
    return LogMoments(num, mean, variance)


def ratios_of(above: LogMoments, below: LogMoments, confidence: float = 0.95) -> Ratios:
    """Each geometric mean of `above` over that of `below`, with Welch's interval on logarithms.

    Entry by entry the same as `ratio_of` (Welch, Biometrika 1947); one of the two may have a single entry.
    """
    alpha = error_rate(confidence)
    with np.errstate(all="ignore"):  # entries without values stay NaN
        difference = above.mean - below.mean
        top, bottom = above.variance / above.num, below.variance / below.num
        variance = top + bottom
        shares = (top / variance) ** 2 / (above.num - 1) + (bottom / variance) ** 2 / (below.num - 1)
        degrees = np.minimum(_NEARLY_NORMAL, 1 / np.maximum(1e-12, shares))
        half = np.where(variance == 0, 0.0, _t_quantiles(degrees, 1 - alpha / 2) * np.sqrt(variance))
        largest = np.log(np.finfo(np.float64).max)
        value, low, high = (
            np.exp(np.minimum(each, largest)) for each in (difference, difference - half, difference + half)
        )
    return Ratios(value, low, high)


def _t_quantiles(degrees: Values, p: float) -> Values:
    """Student's quantile for each number of degrees; slower where scipy is missing, as on a bare node."""
    try:
        from scipy.special import stdtrit
    except ModuleNotFoundError:
        each = [math.nan if math.isnan(d) else t_quantile(float(d), p) for d in np.ravel(degrees)]
        return np.array(each).reshape(np.shape(degrees))
    return np.asarray(stdtrit(degrees, p))
