"""Comparing what was measured on two occasions, hours or versions apart, on machines shared with others."""

import math
from collections.abc import Sequence

import numpy as np

from corewise.stats.compare import Comparison, Verdict, compare
from corewise.stats.estimate import Estimate
from corewise.stats.quantiles import normal_quantile
from corewise.stats.rank_batches import rank_p_values, smallest_p_value
from corewise.stats.sequential import level_per_look
from corewise.stats.values import Values, error_rate, positive

OCCASION_MARGIN = (
    0.02  # the same machine was seen to differ by about half of this from one occasion to the next
)


def compare_occasions(
    a_process_medians: Sequence[float],
    b_process_medians: Sequence[float],
    *,
    confidence: float = 0.95,
    margin: float = OCCASION_MARGIN,
    looks: tuple[int, int] | None = None,
) -> Comparison:
    """The verdict on B against A, from one time per process of each, the two not interleaved.

    Others on a machine only ever slow a process down, in bursts; such noise has long tails, which cost
    Student's t its power and a test on ranks nothing (Mann and Whitney 1947; the shift and its interval by
    Hodges and Lehmann 1963). And a machine is never quite the same twice, which many processes are bound to
    show. So "slower" and "faster" need the ranks to differ at the level asked for and the shift to exceed
    `margin`; "same" says that one of the two is missing. `looks` is as in `compare`, which also decides
    where there are too few processes for ranks.
    """
    a, b = positive(a_process_medians, min_num=0), positive(b_process_medians, min_num=0)
    alpha = error_rate(confidence)
    level = level_per_look(*looks, confidence) if looks else alpha
    if min(a.size, b.size) < 2 or smallest_p_value(a.size, b.size) > level:
        return compare(
            a_process_medians, b_process_medians, confidence=confidence, margin=margin, looks=looks
        )
    p_value = float(rank_p_values(a[None], b[None])[0])
    shifts = np.sort(np.subtract.outer(np.log(b), np.log(a)).ravel())
    interval = _shift_interval(shifts, a, b, level, confidence)
    verdict, reason = _verdict(interval, p_value, level, margin)
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


def _shift_interval(shifts: Values, a: Values, b: Values, level: float, confidence: float) -> Estimate:
    """The median of all ratios B / A with its distribution-free interval (Hollander and Wolfe 1999)."""
    num = shifts.size
    spread = math.sqrt(num * (a.size + b.size + 1) / 12)
    rank = max(0, math.floor(num / 2 - normal_quantile(1 - level / 2) * spread))
    low, high = float(shifts[rank]), float(shifts[num - 1 - rank])
    method = f"Mann-Whitney, Hodges-Lehmann shift of logarithms, level {level:.3g}"
    value = math.exp(float(np.median(shifts)))
    return Estimate(value, math.exp(low), math.exp(high), confidence, method, min(a.size, b.size))


def _verdict(interval: Estimate, p_value: float, level: float, margin: float) -> tuple[Verdict, str]:
    ratio = interval.value
    shown = f"time of B against A: {ratio - 1:+.2%}"
    if p_value > level:
        return "same", f"no difference shown: {shown}"
    if 1 / (1 + margin) <= ratio <= 1 + margin:
        return "same", f"within the ±{margin:.0%} by which occasions differ: {shown}"
    return ("slower" if ratio > 1 else "faster"), shown
