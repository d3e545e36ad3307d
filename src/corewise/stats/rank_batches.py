"""Mann and Whitney's test on ranks for many pairs at once, exact for any number of processes one meets."""

import math
from functools import lru_cache

import numpy as np

from corewise.stats.values import Values

# Up to so many comparisons of an A with a B the law of U is counted out; beyond, it is as good as normal.
_MOST_COUNTED = 10_000
_EACH_ERFC = np.frompyfunc(math.erfc, 1, 1)


def rank_p_values(a: Values, b: Values) -> Values:
    """The two-sided p-value of each row of `a` against the same row of `b`.

    Exact where no two values are equal (Mann and Whitney, Ann. Math. Statist. 1947): the normal law that
    libraries fall back to from nine values on overstates small p-values by orders of magnitude, and those
    are what a correction for many comparisons asks for. With ties: the normal law, corrected for them.
    """
    num_a, num_b = a.shape[1], b.shape[1]
    larger = _larger_u(a, b)
    pooled = np.sort(np.concatenate([a, b], axis=1), axis=1)
    if num_a * num_b > _MOST_COUNTED:
        return _normal_p_values(larger, pooled, num_a, num_b)
    tied = (np.diff(pooled, axis=1) == 0).any(axis=1)
    tail = _upper_tail(min(num_a, num_b), max(num_a, num_b))
    p_values = np.empty(len(a))
    p_values[~tied] = np.minimum(1.0, 2 * tail[larger[~tied].astype(np.int64)])
    p_values[tied] = _normal_p_values(larger[tied], pooled[tied], num_a, num_b)
    return p_values


def smallest_p_value(num_a: int, num_b: int) -> float:
    """The p-value when every value of one side lies beyond all of the other: none can be smaller."""
    return 2 / math.comb(num_a + num_b, num_a)


def _larger_u(a: Values, b: Values) -> Values:
    """The larger of Mann and Whitney's two U: how often one side's value exceeds the other's, ties half."""
    above = (b[:, None, :] > a[:, :, None]).sum(axis=(1, 2), dtype=np.int64)
    below = (b[:, None, :] < a[:, :, None]).sum(axis=(1, 2), dtype=np.int64)
    equal = (a.shape[1] * b.shape[1] - above - below) / 2
    larger: Values = np.maximum(above, below) + equal
    return larger


def _normal_p_values(larger: Values, pooled: Values, num_a: int, num_b: int) -> Values:
    """By the normal law with corrections for ties and continuity (Hollander and Wolfe 1999, 4.1)."""
    num = num_a + num_b
    new = np.diff(pooled, axis=1, prepend=-np.inf) > 0
    group = np.cumsum(new, axis=1) - 1 + num * np.arange(len(pooled))[:, None]
    sizes = np.bincount(group.ravel(), minlength=num * len(pooled)).reshape(len(pooled), num)
    tie_term = (sizes**3 - sizes).sum(axis=1)
    spread = np.sqrt(num_a * num_b / 12 * ((num + 1) - tie_term / (num * (num - 1))))
    with np.errstate(divide="ignore", invalid="ignore"):
        z = np.where(spread > 0, (larger - num_a * num_b / 2 - 0.5) / spread, 0.0)
    tails = np.asarray(_EACH_ERFC(z / math.sqrt(2)), dtype=np.float64)
    return np.minimum(1.0, tails)


@lru_cache(maxsize=256)
def _upper_tail(few: int, many: int) -> Values:
    """P(U >= u) for u from 0 to few * many when both sides follow one law."""
    size = few * many + 1
    # ways[i][u]: orders of i values of one side and j of the other with U = u, by Mann and Whitney's
    # recurrence on whose value is the largest; it only adds, so nothing cancels.
    ways = [np.zeros(size) for _ in range(few + 1)]
    for each in ways:
        each[0] = 1.0
    for j in range(1, many + 1):
        for i in range(1, few + 1):
            ways[i][j:] += ways[i - 1][: size - j]
    law = ways[few] / math.comb(few + many, few)
    tail: Values = np.minimum(1.0, np.cumsum(law[::-1])[::-1])
    return tail
