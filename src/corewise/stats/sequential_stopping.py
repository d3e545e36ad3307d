"""Decide when to stop running more processes, with intervals corrected for optional stopping."""

import dataclasses
import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from corewise.stats.estimate import Estimate, estimate_process_median
from corewise.stats.quantiles import compute_t_quantile, compute_t_tail
from corewise.stats.values import Values, compute_error_rate, require_positive

_NUM_PATHS = 200_000
# Beyond this the simulation takes seconds, and Bonferroni's split is used instead.
_MAX_SIMULATED_RUNS = 200
_SEED = 20151115


@dataclasses.dataclass(frozen=True)
class Decision:
    """Whether to stop, why, and the interval that may be reported now."""

    stop: bool
    reason: str
    interval: Estimate | None


def should_stop(
    process_medians: Sequence[float], *, min_runs: int, max_runs: int, target: float, confidence: float = 0.95
) -> Decision:
    """Decide to stop if the interval's half width over the median is at most `target`, or at `max_runs`.

    The reported interval has the requested confidence under any stopping rule.
    """
    if not 1 <= min_runs <= max_runs:
        raise ValueError(f"1 <= min_runs <= max_runs is needed, not {min_runs} and {max_runs}")
    if not (math.isfinite(target) and target >= 0):
        raise ValueError(f"target must be a finite number of at least 0, for example 0.02, not {target!r}")
    compute_error_rate(confidence)
    values = require_positive(process_medians, min_num=0)
    num = values.size
    if num == 0:
        return Decision(False, "no run yet", None)
    level = compute_level_per_look(min_runs, max(max_runs, num), confidence)
    uncorrected = estimate_process_median(process_medians, 1 - level)
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
def compute_level_per_look(min_runs: int, max_runs: int, confidence: float) -> float:
    """Return the error rate of each look that keeps the error over all looks at 1 - confidence.

    This is Pocock's constant level (Biometrika 1977) for Student's t, with a look after every run from
    min_runs to max_runs. The t values of normal data depend on neither mean nor variance, so their joint
    distribution is simulated once, with a fixed seed. Neighbouring looks share most of their data, so the
    level is twice Bonferroni's at 5 to 10 runs. All looks hold simultaneously, which covers any stopping
    rule.
    """
    alpha = compute_error_rate(confidence)
    first = max(2, min_runs)
    num_looks = max_runs - first + 1
    if num_looks <= 1:
        return alpha
    split = alpha / num_looks
    # Two standard errors below the plain quantile: simulation noise may widen intervals, never narrow them.
    rank = int(alpha * _NUM_PATHS - 2 * math.sqrt(alpha * _NUM_PATHS))
    if max_runs > _MAX_SIMULATED_RUNS or rank < 0:
        return split
    smallest = _simulate_smallest_p_values(first, max_runs, alpha)
    return float(np.clip(np.partition(smallest, rank)[rank], split, alpha))


def _simulate_smallest_p_values(first: int, last: int, alpha: float) -> Values:
    """Return the smallest p-value over all looks of each simulated series; 1 if none is below alpha."""
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
        is_significant = statistic > compute_t_quantile(num - 1, 1 - alpha / 2)
        p_values = 2 * compute_t_tail(num - 1, statistic[is_significant])
        smallest[is_significant] = np.minimum(smallest[is_significant], p_values)
    return smallest
