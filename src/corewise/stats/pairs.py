"""Many pairs compared at once: what `compare_occasions` and `compare` say of one, for all together."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import stdtr, stdtrit

from corewise.stats.compare import benjamini_hochberg
from corewise.stats.quantiles import normal_quantile
from corewise.stats.rank_batches import rank_p_values, smallest_p_value
from corewise.stats.sequential import level_per_look
from corewise.stats.values import Values, error_rate

Looks = tuple[int, int] | None
_NEARLY_NORMAL = 1e9  # degrees of freedom at which Student's t is the normal distribution
_ROWS_TIMES_SHIFTS = 4_000_000  # values held at a time


@dataclass(frozen=True)
class Pair:
    """What is known of one pair: a time per process of each side, and how they were measured."""

    a: Sequence[float]
    b: Sequence[float]
    looks: Looks = None  # (min_runs, max_runs) of trials that stopped on a narrow interval
    interleaved: bool = False


@dataclass(frozen=True)
class PairTests:
    """One entry a pair. Ratios are times of B over times of A; NaN where nothing can be said."""

    ratio: Values
    low: Values  # of the pair's own interval, not widened for the number of pairs
    high: Values
    effect: Values  # Cliff's delta: from -1 (every B below every A) to 1
    p_value: Values  # corrected for having looked while measuring
    adjusted: Values  # corrected for the number of pairs too: at most 1 - confidence is a difference shown
    by_ranks: npt.NDArray[np.bool_]  # else by Welch's t


def compare_pairs(pairs: Sequence[Pair], confidence: float = 0.95) -> PairTests:
    """The tests of all pairs, with p-values adjusted for their number (Benjamini and Hochberg 1995).

    Trials of one interleaved run are compared by Welch's t on logarithms, others by ranks. Ranks give way to
    Welch's t, as in `compare_occasions`, where there are too few processes: where even the clearest order
    could not show one difference among so many pairs.
    """
    alpha, num = error_rate(confidence), len(pairs)
    columns = {name: np.full(num, np.nan) for name in ("ratio", "low", "high", "effect", "p_value")}
    by_ranks = np.zeros(num, dtype=np.bool_)
    num_tested = sum(min(len(pair.a), len(pair.b)) > 1 for pair in pairs)
    for (num_a, num_b, looks, interleaved), places in _groups(pairs).items():
        if min(num_a, num_b) == 0:
            continue
        level = level_of(looks, confidence)
        rank_based = not interleaved and ranks_can_tell(num_a, num_b, num_tested, level)
        by_ranks[places] = rank_based
        for some in _batches(places, num_a * num_b):
            a = np.array([pairs[i].a for i in some], dtype=np.float64)
            b = np.array([pairs[i].b for i in some], dtype=np.float64)
            found = _by_ranks(a, b, level) if rank_based else _by_welch(a, b, level)
            for name, values in zip(("ratio", "low", "high", "p_value"), found, strict=True):
                columns[name][some] = values
            columns["p_value"][some] = np.minimum(1.0, columns["p_value"][some] * alpha / level)
            columns["effect"][some] = np.sign(b[:, None, :] - a[:, :, None]).mean(axis=(1, 2))
    adjusted = np.full(num, np.nan)
    known = ~np.isnan(columns["p_value"])
    adjusted[known] = benjamini_hochberg(columns["p_value"][known].tolist())
    return PairTests(**columns, adjusted=adjusted, by_ranks=by_ranks)


def level_of(looks: Looks, confidence: float) -> float:
    """The error rate of each look at one pair."""
    return level_per_look(*looks, confidence) if looks else error_rate(confidence)


def ranks_can_tell(num_a: int, num_b: int, num_pairs: int, level: float) -> bool:
    """True when so many processes could show a single difference among so many pairs by their ranks."""
    return min(num_a, num_b) > 1 and smallest_p_value(num_a, num_b) * num_pairs <= level


def num_processes_needed(num_pairs: int, level: float) -> int:
    """How many processes on each side let ranks show a single difference among so many pairs."""
    num = 2
    while not ranks_can_tell(num, num, num_pairs, level):
        num += 1
    return num


def _groups(pairs: Sequence[Pair]) -> dict[tuple[int, int, Looks, bool], list[int]]:
    groups: dict[tuple[int, int, Looks, bool], list[int]] = {}
    for i, pair in enumerate(pairs):
        groups.setdefault((len(pair.a), len(pair.b), pair.looks, pair.interleaved), []).append(i)
    return groups


def _batches(places: Sequence[int], num_shifts: int) -> Iterator[Sequence[int]]:
    size = max(1, _ROWS_TIMES_SHIFTS // num_shifts)
    for start in range(0, len(places), size):
        yield places[start : start + size]


def _by_ranks(a: Values, b: Values, level: float) -> tuple[Values, Values, Values, Values]:
    """Mann and Whitney's p-values; Hodges and Lehmann's ratio with its interval, as for one pair."""
    num_a, num_b = a.shape[1], b.shape[1]
    shifts = np.sort((np.log(b)[:, None, :] - np.log(a)[:, :, None]).reshape(len(a), -1), axis=1)
    num = num_a * num_b
    spread = math.sqrt(num * (num_a + num_b + 1) / 12)
    rank = max(0, math.floor(num / 2 - normal_quantile(1 - level / 2) * spread))
    ratio, low, high = (
        np.exp(each) for each in (np.median(shifts, axis=1), shifts[:, rank], shifts[:, num - 1 - rank])
    )
    return ratio, low, high, rank_p_values(a, b)


def _by_welch(a: Values, b: Values, level: float) -> tuple[Values, Values, Values, Values]:
    """The ratio of geometric means with Welch's interval and p-value (Biometrika 1947), as in `ratio_of`."""
    (mean_a, part_a, free_a), (mean_b, part_b, free_b) = _log_moments(a), _log_moments(b)
    difference, variance = mean_b - mean_a, part_a + part_b
    with np.errstate(all="ignore"):  # rows without variation are told apart below
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


def _log_moments(values: Values) -> tuple[Values, Values, int]:
    """Mean of the logarithms of each row, its squared error (NaN from a single value), degrees of freedom."""
    logs = np.log(values)
    shifted = logs - logs[:, :1]  # equal values then vary by exactly 0
    num = values.shape[1]
    mean = logs[:, 0] + shifted.mean(axis=1)
    if num == 1:
        return mean, np.full(len(values), np.nan), 1
    return mean, shifted.var(axis=1, ddof=1) / num, num - 1
