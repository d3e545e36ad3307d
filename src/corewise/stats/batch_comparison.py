"""Compare many pairs of trials in one vectorised pass, like `compare_occasions` and `compare_trials`."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import stdtr, stdtrit

from corewise.stats.quantiles import compute_normal_quantile
from corewise.stats.rank_test import compute_rank_p_values, compute_smallest_p_value
from corewise.stats.sequential_stopping import compute_level_per_look
from corewise.stats.trial_comparison import adjust_benjamini_hochberg
from corewise.stats.values import Values, compute_error_rate

Looks = tuple[int, int] | None
# Degrees of freedom at which Student's t equals the normal distribution.
_NEARLY_NORMAL = 1e9
# The number of values held in memory at a time.
_ROWS_TIMES_SHIFTS = 4_000_000


@dataclass(frozen=True)
class Pair:
    """One pair: a time per process of each side, and how they were measured.

    `looks` is (min_runs, max_runs) of trials that stopped on a narrow interval.
    """

    a: Sequence[float]
    b: Sequence[float]
    looks: Looks = None
    interleaved: bool = False


@dataclass(frozen=True)
class PairTests:
    """The results, one entry per pair; NaN where there are too few values.

    `ratio` is the time of B over the time of A. `low` and `high` are the interval of each pair alone, not
    widened for the number of pairs. `effect` is Cliff's delta, from -1 (every B below every A) to 1.
    `p_value` is corrected for optional stopping, and `adjusted` also for the number of pairs: a value of at
    most 1 - confidence shows a difference. `by_ranks` is False where Welch's t was used.
    """

    ratio: Values
    low: Values
    high: Values
    effect: Values
    p_value: Values
    adjusted: Values
    by_ranks: npt.NDArray[np.bool_]


def compare_pairs(pairs: Sequence[Pair], confidence: float = 0.95) -> PairTests:
    """Test all pairs and adjust the p-values for their number (Benjamini and Hochberg 1995).

    Interleaved trials are compared with Welch's t on logarithms, others by ranks. As in `compare_occasions`,
    Welch's t replaces ranks if there are too few processes for ranks to show a difference among all pairs.
    """
    alpha, num = compute_error_rate(confidence), len(pairs)
    columns = {name: np.full(num, np.nan) for name in ("ratio", "low", "high", "effect", "p_value")}
    by_ranks = np.zeros(num, dtype=np.bool_)
    num_tested = sum(min(len(pair.a), len(pair.b)) > 1 for pair in pairs)
    for (num_a, num_b, looks, interleaved), places in _group_pairs(pairs).items():
        if min(num_a, num_b) == 0:
            continue
        level = compute_level(looks, confidence)
        rank_based = not interleaved and has_rank_power(num_a, num_b, num_tested, level)
        by_ranks[places] = rank_based
        for batch in _split_places(places, num_a * num_b):
            a = np.array([pairs[i].a for i in batch], dtype=np.float64)
            b = np.array([pairs[i].b for i in batch], dtype=np.float64)
            results = _compare_by_ranks(a, b, level) if rank_based else _compare_by_welch(a, b, level)
            for name, values in zip(("ratio", "low", "high", "p_value"), results, strict=True):
                columns[name][batch] = values
            columns["p_value"][batch] = np.minimum(1.0, columns["p_value"][batch] * alpha / level)
            columns["effect"][batch] = np.sign(b[:, None, :] - a[:, :, None]).mean(axis=(1, 2))
    adjusted = np.full(num, np.nan)
    known = ~np.isnan(columns["p_value"])
    adjusted[known] = adjust_benjamini_hochberg(columns["p_value"][known].tolist())
    return PairTests(**columns, adjusted=adjusted, by_ranks=by_ranks)


def compute_level(looks: Looks, confidence: float) -> float:
    """Return the error rate of each look at one pair."""
    return compute_level_per_look(*looks, confidence) if looks else compute_error_rate(confidence)


def has_rank_power(num_a: int, num_b: int, num_pairs: int, level: float) -> bool:
    """Return whether this many processes can show one difference among the pairs by ranks."""
    return min(num_a, num_b) > 1 and compute_smallest_p_value(num_a, num_b) * num_pairs <= level


def count_processes_needed(num_pairs: int, level: float) -> int:
    """Return how many processes per side ranks need to show one difference among the pairs."""
    num = 2
    while not has_rank_power(num, num, num_pairs, level):
        num += 1
    return num


def _group_pairs(pairs: Sequence[Pair]) -> dict[tuple[int, int, Looks, bool], list[int]]:
    groups: dict[tuple[int, int, Looks, bool], list[int]] = {}
    for i, pair in enumerate(pairs):
        groups.setdefault((len(pair.a), len(pair.b), pair.looks, pair.interleaved), []).append(i)
    return groups


def _split_places(places: Sequence[int], num_shifts: int) -> Iterator[Sequence[int]]:
    size = max(1, _ROWS_TIMES_SHIFTS // num_shifts)
    for start in range(0, len(places), size):
        yield places[start : start + size]


def _compare_by_ranks(a: Values, b: Values, level: float) -> tuple[Values, Values, Values, Values]:
    """Return the Hodges-Lehmann ratio, its interval and the Mann-Whitney p-value of each row."""
    num_a, num_b = a.shape[1], b.shape[1]
    shifts = np.sort((np.log(b)[:, None, :] - np.log(a)[:, :, None]).reshape(len(a), -1), axis=1)
    num = num_a * num_b
    spread = math.sqrt(num * (num_a + num_b + 1) / 12)
    rank = max(0, math.floor(num / 2 - compute_normal_quantile(1 - level / 2) * spread))
    ratio, low, high = (
        np.exp(each) for each in (np.median(shifts, axis=1), shifts[:, rank], shifts[:, num - 1 - rank])
    )
    return ratio, low, high, compute_rank_p_values(a, b)


def _compare_by_welch(a: Values, b: Values, level: float) -> tuple[Values, Values, Values, Values]:
    """Return the ratio of geometric means with Welch's interval and p-value, as `estimate_ratio`."""
    (mean_a, part_a, free_a), (mean_b, part_b, free_b) = _compute_log_moments(a), _compute_log_moments(b)
    difference, variance = mean_b - mean_a, part_a + part_b
    # Rows without variation divide by zero; the values below replace them.
    with np.errstate(all="ignore"):
        shares = (part_a / variance) ** 2 / free_a + (part_b / variance) ** 2 / free_b
        degrees = np.minimum(_NEARLY_NORMAL, 1 / np.maximum(1e-12, shares))
        error = np.sqrt(variance)
        half = np.where(variance == 0, 0.0, stdtrit(degrees, 1 - level / 2) * error)
        p_value = 2 * stdtr(degrees, -np.abs(difference) / error)
    p_value = np.where(variance == 0, np.where(difference == 0, 1.0, 0.0), p_value)
    largest = math.log(np.finfo(np.float64).max)
    ratio, low, high = (
        np.exp(np.minimum(each, largest)) for each in (difference, difference - half, difference + half)
    )
    return ratio, low, high, p_value


def _compute_log_moments(values: Values) -> tuple[Values, Values, int]:
    """Return each row's mean logarithm, its squared error (NaN for one value) and degrees of freedom."""
    logs = np.log(values)
    # After the shift, equal values have a variance of exactly 0.
    shifted = logs - logs[:, :1]
    num = values.shape[1]
    mean = logs[:, 0] + shifted.mean(axis=1)
    if num == 1:
        return mean, np.full(len(values), np.nan), 1
    return mean, shifted.var(axis=1, ddof=1) / num, num - 1
