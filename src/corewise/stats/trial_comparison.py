"""Compare two trials: is there a significant difference, and how large is it?"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from corewise.stats.estimate import Estimate
from corewise.stats.rank_test import compute_rank_p_values, compute_smallest_p_value
from corewise.stats.ratio import estimate_ratio
from corewise.stats.sequential_stopping import compute_level_per_look
from corewise.stats.values import Values, compute_error_rate, require_positive

Verdict = Literal["faster", "slower", "same", "unknown"]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """B compared with A; the verdict is about B.

    `ratio` is the time of B over that of A: below 1, B is faster. It and its `interval` are None if a side is
    empty. `p_value` is that of Welch's t on logarithms, not adjusted, as `adjust_holm` expects.
    `rank_p_value` is that of Mann-Whitney's U, or None if it cannot reach significance. `effect_size` ranges
    from -1 (every B below every A) to 1. `median_ratio` is the Hodges-Lehmann estimate, the median of all b /
    a.
    """

    verdict: Verdict
    ratio: float | None
    interval: Estimate | None
    p_value: float | None
    rank_p_value: float | None
    effect_size: float | None
    effect_name: str
    median_ratio: float | None
    method: str
    reason: str


def compare_trials(
    a_process_medians: Sequence[float],
    b_process_medians: Sequence[float],
    *,
    confidence: float = 0.95,
    margin: float = 0.0,
    num_comparisons: int = 1,
    drift_sd: float = 0.0,
    drift_degrees: float = math.inf,
    looks: tuple[int, int] | None = None,
) -> Comparison:
    """Compare B with A, from one time per process of each.

    "slower" and "faster" need an interval of the ratio that excludes 1 and a ratio that differs from 1 by
    more than `margin`. Otherwise, with margin 0, "same" means no significant difference. With a margin,
    "same" means that the difference is within the margin (two one-sided tests, Schuirmann 1987), and
    "unknown" that the interval is too wide.

    Args:
        a_process_medians: one time per process of A.
        b_process_medians: one time per process of B.
        confidence: confidence of the interval and of the verdict.
        margin: the smallest relative difference of interest.
        num_comparisons: divides the error rate by their number (Bonferroni).
        drift_sd: relative standard deviation of the ratio between occasions (`estimate_drift`), for trials
            that were not interleaved.
        drift_degrees: degrees of freedom of `drift_sd`.
        looks: (min_runs, max_runs) of trials that stopped on a narrow interval. A spread that is small by
            chance stops a trial early, which alone raises false verdicts from 5 to 8 %; the corrected level
            of each look brings them below 5 %.
    """
    if not (math.isfinite(margin) and margin >= 0):
        raise ValueError(f"margin must be a finite number of at least 0, for example 0.01, not {margin!r}")
    if num_comparisons < 1:
        raise ValueError(f"num_comparisons must be at least 1, not {num_comparisons}")
    a, b = require_positive(a_process_medians, min_num=0), require_positive(b_process_medians, min_num=0)
    alpha = compute_error_rate(confidence) / num_comparisons
    level = compute_level_per_look(*looks, 1 - alpha) if looks else alpha
    if min(a.size, b.size) == 0:
        return _report_empty_side(a, b)
    ratio = estimate_ratio(
        b_process_medians, a_process_medians, 1 - level, drift_sd=drift_sd, drift_degrees=drift_degrees
    )
    interval = dataclasses.replace(ratio.interval, confidence=confidence)
    verdict, reason = _decide_verdict(interval, margin)
    rank_p_value = _run_rank_test(a, b, level)
    if rank_p_value is not None and verdict in ("faster", "slower") and rank_p_value > level:
        reason += f"; the rank test does not confirm it (p = {rank_p_value:.2g})"
    pairs = np.subtract.outer(np.log(b), np.log(a))
    return Comparison(
        verdict=verdict,
        ratio=interval.value,
        interval=interval,
        p_value=ratio.p_value,
        rank_p_value=rank_p_value,
        effect_size=float(np.sign(pairs).mean()),
        effect_name="Cliff's delta",
        median_ratio=math.exp(float(np.median(pairs))),
        method=f"{interval.method}, level {level:.3g}",
        reason=reason,
    )


def adjust_holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Adjust p-values for their number, in the given order (Holm, Scand. J. Statist. 1979)."""
    raw = np.asarray(p_values, dtype=np.float64)
    if raw.ndim != 1 or not ((raw >= 0) & (raw <= 1)).all():
        raise ValueError("p-values must lie between 0 and 1")
    order = np.argsort(raw, kind="stable")
    stepped = np.maximum.accumulate(raw[order] * np.arange(raw.size, 0, -1))
    adjusted = np.empty_like(raw)
    adjusted[order] = np.minimum(stepped, 1.0)
    return tuple(adjusted.tolist())


def adjust_benjamini_hochberg(p_values: Sequence[float]) -> tuple[float, ...]:
    """Adjust p-values for the false discovery rate (Benjamini and Hochberg, J. Royal Statist. Soc. B 1995).

    Among adjusted values of at most q, on average at most a share q is false. This is milder than
    `adjust_holm` if many pairs differ. It holds for independent and for positively dependent values.
    """
    raw = np.asarray(p_values, dtype=np.float64)
    if raw.ndim != 1 or not ((raw >= 0) & (raw <= 1)).all():
        raise ValueError("p-values must lie between 0 and 1")
    order = np.argsort(raw, kind="stable")[::-1]
    stepped = np.minimum.accumulate(raw[order] * raw.size / np.arange(raw.size, 0, -1))
    adjusted = np.empty_like(raw)
    adjusted[order] = np.minimum(stepped, 1.0)
    return tuple(adjusted.tolist())


def _decide_verdict(interval: Estimate, margin: float) -> tuple[Verdict, str]:
    """Return the verdict on B and the reason; the margin is a factor, so swapping A and B is symmetric."""
    low, high, ratio = interval.low, interval.high, interval.value
    if low is None or high is None:
        return "unknown", interval.reason
    change = f"{ratio - 1:+.2%} ({low - 1:+.2%} to {high - 1:+.2%})"
    bound = 1 + margin
    if low > 1 and ratio > bound:
        return "slower", f"time of B against A: {change}"
    if high < 1 and ratio < 1 / bound:
        return "faster", f"time of B against A: {change}"
    if margin == 0:
        return "same", f"no significant difference: {change}"
    if 1 / bound <= low and high <= bound:
        return "same", f"any difference is within ±{margin:.2%}: {change}"
    return "unknown", f"too wide to decide whether B differs by ±{margin:.2%}: {change}; run more processes"


def _run_rank_test(a: Values, b: Values, level: float) -> float | None:
    """Return the p-value of Mann and Whitney's U (Ann. Math. Statist. 1947), or None if it has no power."""
    if compute_smallest_p_value(a.size, b.size) > level:
        return None
    return float(compute_rank_p_values(a[None], b[None])[0])


def _report_empty_side(a: Values, b: Values) -> Comparison:
    """Return the comparison if one side has no value."""
    reason = f"{a.size} values of A and {b.size} of B: at least 2 on each side are needed"
    return Comparison("unknown", None, None, None, None, None, "Cliff's delta", None, "none", reason)
