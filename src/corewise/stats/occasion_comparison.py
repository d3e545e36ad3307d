"""Compare measurements of two occasions, hours or versions apart, on shared machines."""

import math
from collections.abc import Sequence

import numpy as np

from corewise.stats.estimate import Estimate
from corewise.stats.quantiles import compute_normal_quantile
from corewise.stats.rank_test import compute_rank_p_values, compute_smallest_p_value
from corewise.stats.sequential_stopping import compute_level_per_look
from corewise.stats.trial_comparison import Comparison, Verdict, compare_trials
from corewise.stats.values import Values, compute_error_rate, require_positive

# Relative difference. Measured: the same machine differs by about half of this between occasions.
OCCASION_MARGIN = 0.02


def compare_occasions(
    a_process_medians: Sequence[float],
    b_process_medians: Sequence[float],
    *,
    confidence: float = 0.95,
    margin: float = OCCASION_MARGIN,
    looks: tuple[int, int] | None = None,
) -> Comparison:
    """Compare B with A, from one time per process of each, measured on different occasions.

    Other users of a machine only slow a process down, in bursts. Such noise has long tails: Student's t loses
    its power, a rank test does not (Mann and Whitney 1947; shift and interval by Hodges and Lehmann 1963). A
    machine is also never quite the same twice, which many processes will show. "slower" and "faster"
    therefore need a significant rank test and a shift beyond `margin`; otherwise the verdict is "same".
    `looks` is as in `compare_trials`, which also decides if there are too few processes for ranks.
    """
    a, b = require_positive(a_process_medians, min_num=0), require_positive(b_process_medians, min_num=0)
    alpha = compute_error_rate(confidence)
    level = compute_level_per_look(*looks, confidence) if looks else alpha
    if min(a.size, b.size) < 2 or compute_smallest_p_value(a.size, b.size) > level:
        return compare_trials(a_process_medians, b_process_medians, confidence=confidence, margin=margin, looks=looks)
    p_value = float(compute_rank_p_values(a[None], b[None])[0])
    shifts = np.sort(np.subtract.outer(np.log(b), np.log(a)).ravel())
    interval = _estimate_shift(shifts, a, b, level, confidence)
    verdict, reason = _decide_verdict(interval, p_value, level, margin)
    return Comparison(
        verdict=verdict,
        ratio=interval.value,
        interval=interval,
        p_value=p_value,
        rank_p_value=p_value,
        effect_size=float(np.sign(shifts).mean()),
        effect_name="Cliff's delta",
        median_ratio=interval.value,
        method=interval.method,
        reason=reason,
    )


def _estimate_shift(shifts: Values, a: Values, b: Values, level: float, confidence: float) -> Estimate:
    """Estimate the median of all ratios B / A, distribution-free (Hollander and Wolfe 1999)."""
    num = shifts.size
    spread = math.sqrt(num * (a.size + b.size + 1) / 12)
    rank = max(0, math.floor(num / 2 - compute_normal_quantile(1 - level / 2) * spread))
    low, high = float(shifts[rank]), float(shifts[num - 1 - rank])
    method = f"Mann-Whitney, Hodges-Lehmann shift of logarithms, level {level:.3g}"
    value = math.exp(float(np.median(shifts)))
    return Estimate(value, math.exp(low), math.exp(high), confidence, method, min(a.size, b.size))


def _decide_verdict(interval: Estimate, p_value: float, level: float, margin: float) -> tuple[Verdict, str]:
    ratio = interval.value
    change = f"time of B against A: {ratio - 1:+.2%}"
    if p_value > level:
        return "same", f"no significant difference: {change}"
    if 1 / (1 + margin) <= ratio <= 1 + margin:
        return "same", f"within the ±{margin:.0%} by which occasions differ: {change}"
    return ("slower" if ratio > 1 else "faster"), change
