"""Are two trials different, by how much, and can these values tell?"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from corewise.stats.estimate import Estimate
from corewise.stats.rank_batches import rank_p_values, smallest_p_value
from corewise.stats.ratio import ratio_of
from corewise.stats.sequential import level_per_look
from corewise.stats.values import Values, error_rate, positive

Verdict = Literal["faster", "slower", "same", "unknown"]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """B against A. `ratio` = time of B / time of A: below 1, B is faster; the verdict speaks of B."""

    verdict: Verdict
    ratio: float | None
    interval: Estimate | None  # of the ratio; None when one side is empty
    p_value: float | None  # Welch's t on logarithms, not adjusted: `holm` takes these
    rank_p_value: float | None  # Mann-Whitney U; None when it could not reach significance
    effect_size: float | None  # from -1 (every B below every A) to 1 (every B above)
    effect_name: str
    median_ratio: float | None  # Hodges-Lehmann: median of all b / a
    method: str
    reason: str


def compare(
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
    """The verdict on B against A, from one time per process of each.

    "slower" and "faster" need the interval of the ratio to exclude 1 and the ratio to differ from 1 by more
    than `margin`, the smallest relative difference of interest. Otherwise, with margin 0, "same" says that no
    difference was shown; with a margin, "same" says that none beyond it is left possible (two one-sided
    tests, Schuirmann 1987) and "unknown" that the interval is too wide to tell.
    `looks` = (min_runs, max_runs) of trials that stopped on a narrow interval: those whose spread is small by
    luck stop early, which alone raises false verdicts from 5 to 8 %; the corrected level of each look brings
    them back below 5 %. `num_comparisons` splits the error rate (Bonferroni). `drift_sd` is the relative
    standard deviation of the ratio between two occasions (`estimate_drift`), for trials not interleaved.
    """
    if not (math.isfinite(margin) and margin >= 0):
        raise ValueError(f"margin must be a finite number of at least 0, for example 0.01, not {margin!r}")
    if num_comparisons < 1:
        raise ValueError(f"num_comparisons must be at least 1, not {num_comparisons}")
    a, b = positive(a_process_medians, min_num=0), positive(b_process_medians, min_num=0)
    alpha = error_rate(confidence) / num_comparisons
    level = level_per_look(*looks, 1 - alpha) if looks else alpha
    if min(a.size, b.size) == 0:
        return _nothing_to_compare(a, b)
    found = ratio_of(
        b_process_medians, a_process_medians, 1 - level, drift_sd=drift_sd, drift_degrees=drift_degrees
    )
    interval = dataclasses.replace(found.interval, confidence=confidence)
    verdict, reason = _verdict(interval, margin)
    rank_p_value, rank_note = _rank_test(a, b, level)
    if rank_p_value is not None and verdict in ("faster", "slower") and rank_p_value > level:
        rank_note = f"the rank test does not confirm it (p = {rank_p_value:.2g})"
    pairs = np.subtract.outer(np.log(b), np.log(a))
    return Comparison(
        verdict=verdict,
        ratio=interval.value,
        interval=interval,
        p_value=found.p_value,
        rank_p_value=rank_p_value,
        effect_size=float(np.sign(pairs).mean()),
        effect_name="Cliff's delta",
        median_ratio=math.exp(float(np.median(pairs))),
        method=f"{interval.method}, level {level:.3g}",
        reason="; ".join(text for text in (reason, rank_note) if text),
    )


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """The p-values adjusted for their number, in the order given (Holm, Scand. J. Statist. 1979)."""
    raw = np.asarray(p_values, dtype=np.float64)
    if raw.ndim != 1 or not ((raw >= 0) & (raw <= 1)).all():
        raise ValueError("p-values must lie between 0 and 1")
    order = np.argsort(raw, kind="stable")
    stepped = np.maximum.accumulate(raw[order] * np.arange(raw.size, 0, -1))
    adjusted = np.empty_like(raw)
    adjusted[order] = np.minimum(stepped, 1.0)
    return tuple(adjusted.tolist())


def benjamini_hochberg(p_values: Sequence[float]) -> tuple[float, ...]:
    """The p-values adjusted so that those at most q hold a share of at most q false ones on average.

    The false discovery rate (Benjamini and Hochberg, J. Royal Statist. Soc. B 1995): milder than `holm` where
    much differs, and like it where little does. Holds for independent and for positively dependent values.
    """
    raw = np.asarray(p_values, dtype=np.float64)
    if raw.ndim != 1 or not ((raw >= 0) & (raw <= 1)).all():
        raise ValueError("p-values must lie between 0 and 1")
    order = np.argsort(raw, kind="stable")[::-1]
    stepped = np.minimum.accumulate(raw[order] * raw.size / np.arange(raw.size, 0, -1))
    adjusted = np.empty_like(raw)
    adjusted[order] = np.minimum(stepped, 1.0)
    return tuple(adjusted.tolist())


def _verdict(interval: Estimate, margin: float) -> tuple[Verdict, str]:
    """The verdict on B and why; the margin is a factor, so that swapping A and B swaps the verdict."""
    low, high, ratio = interval.low, interval.high, interval.value
    if low is None or high is None:
        return "unknown", interval.reason
    shown = f"{ratio - 1:+.2%} ({low - 1:+.2%} to {high - 1:+.2%})"
    bound = 1 + margin
    if low > 1 and ratio > bound:
        return "slower", f"time of B against A: {shown}"
    if high < 1 and ratio < 1 / bound:
        return "faster", f"time of B against A: {shown}"
    if margin == 0:
        return "same", f"no difference shown: {shown}"
    if 1 / bound <= low and high <= bound:
        return "same", f"any difference is within ±{margin:.2%}: {shown}"
    return "unknown", f"too wide to tell whether B differs by ±{margin:.2%}: {shown}; run more processes"


def _rank_test(a: Values, b: Values, level: float) -> tuple[float | None, str]:
    """The p-value of Mann and Whitney's U (Ann. Math. Statist. 1947), or why it has no power."""
    if smallest_p_value(a.size, b.size) > level:
        return None, f"{a.size} and {b.size} values give a rank test no power at {level:.2g}"
    return float(rank_p_values(a[None], b[None])[0]), ""


def _nothing_to_compare(a: Values, b: Values) -> Comparison:
    """The verdict when one side left no value at all."""
    reason = f"{a.size} values of A and {b.size} of B: at least 2 on each side are needed"
    return Comparison("unknown", None, None, None, None, None, "Cliff's delta", None, "none", reason)
