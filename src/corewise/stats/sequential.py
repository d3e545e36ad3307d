"""When to stop running more processes, without fooling ourselves by having looked."""

import dataclasses
import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from corewise.stats.estimate import Estimate, process_interval
from corewise.stats.quantiles import t_quantile, t_tail
from corewise.stats.values import Values, error_rate, positive

_NUM_PATHS = 200_000
_MAX_SIMULATED_RUNS = 200  # beyond this the simulation costs seconds and the plain split is used
_SEED = 20151115


@dataclasses.dataclass(frozen=True)
class Decision:
    """Whether to stop, why, and the interval that may be reported at this point."""

    stop: bool
    reason: str
    interval: Estimate | None


def should_stop(
    process_medians: Sequence[float], *, min_runs: int, max_runs: int, target: float, confidence: float = 0.95
) -> Decision:
    """Stop when the interval's half width over the median is at most `target`, or at `max_runs`.

    The interval reported holds with the confidence asked for whenever and for whatever reason one stops.
    """
    if not 1 <= min_runs <= max_runs:
        raise ValueError(f"1 <= min_runs <= max_runs is needed, not {min_runs} and {max_runs}")
    if not (math.isfinite(target) and target >= 0):
        raise ValueError(f"target must be a finite number of at least 0, for example 0.02, not {target!r}")
    error_rate(confidence)
    values = positive(process_medians, min_num=0)
    num = values.size
    if num == 0:
        return Decision(False, "no run yet", None)
    level = level_per_look(min_runs, max(max_runs, num), confidence)
    uncorrected = process_interval(process_medians, 1 - level)
    interval = dataclasses.replace(
        uncorrected,
        confidence=confidence,
        method=f"{uncorrected.method}, level {level:.3g} for looks at {min_runs} to {max_runs} runs",
    )
    width = interval.relative_half_width
    if num < min_runs:
        return Decision(False, f"{num} of at least {min_runs} runs", interval)
    if width is not None and width <= target:
        return Decision(True, f"interval ±{width:.2%} is within ±{target:.2%}", interval)
    wide = interval.reason if width is None else f"interval ±{width:.2%} is wider than ±{target:.2%}"
    if num >= max_runs:
        return Decision(True, f"limit of {max_runs} runs reached; {wide}", interval)
    return Decision(False, wide, interval)


@lru_cache(maxsize=128)
def level_per_look(min_runs: int, max_runs: int, confidence: float) -> float:
    """The error rate of each look that keeps the error over all looks at 1 - confidence.

    Pocock's constant level (Biometrika 1977) for Student's t, after every run from min_runs to max_runs: the
    t values of normal data hang on neither mean nor variance, so their joint law is simulated once, seeded.
    Neighbouring looks share most of their data, hence twice what Bonferroni's split gives at 5 to 10 runs;
    all looks hold at once, so any stopping rule is covered.
    """
    alpha = error_rate(confidence)
    first = max(2, min_runs)
    num_looks = max_runs - first + 1
    if num_looks <= 1:
        return alpha
    split = alpha / num_looks
    # Two standard errors lower than the plain quantile, so that chance makes intervals wider, not narrower.
    rank = int(alpha * _NUM_PATHS - 2 * math.sqrt(alpha * _NUM_PATHS))
    if max_runs > _MAX_SIMULATED_RUNS or rank < 0:
        return split
    smallest = _smallest_p_values(first, max_runs, alpha)
    return float(np.clip(np.partition(smallest, rank)[rank], split, alpha))


def _smallest_p_values(first: int, last: int, alpha: float) -> Values:
    """The smallest p-value over all looks for each simulated series; 1 where none is below alpha."""
    random = np.random.default_rng(_SEED)
    mean, squares = np.zeros(_NUM_PATHS), np.zeros(_NUM_PATHS)
    smallest = np.ones(_NUM_PATHS)
    for num in range(1, last + 1):
        value = random.standard_normal(_NUM_PATHS)
        step = value - mean
        mean += step / num
        squares += step * (value - mean)
        if num < first:
            continue
        statistic = np.abs(mean) * np.sqrt(num * (num - 1) / squares)
        far = statistic > t_quantile(num - 1, 1 - alpha / 2)
        smallest[far] = np.minimum(smallest[far], 2 * t_tail(num - 1, statistic[far]))
    return smallest
