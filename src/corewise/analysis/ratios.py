"""Throughput ratios of two trials, with an interval corrected for optional stopping."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from corewise.analysis.columns import parse_number
from corewise.analysis.groups import Group
from corewise.stats.batch_ratios import estimate_ratios
from corewise.stats.estimate import Estimate
from corewise.stats.sequential_stopping import compute_level_per_look
from corewise.study.record import Record


def compute_look_level(record: Record, confidence: float = 0.95) -> float:
    """Compute the error rate of one interval, corrected for optional stopping after each run."""
    looks = get_looks(record.protocol)
    return 1 - confidence if looks is None else compute_level_per_look(*looks, confidence)


def get_looks(protocol: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return the first and last run after which a trial could stop early; None if it could not."""
    least, most = (parse_number(protocol.get(name)) for name in ("min_runs", "max_runs"))
    if math.isnan(least) or math.isnan(most) or not 1 <= least < most:
        return None
    return int(least), int(most)


def estimate_ratio(group: Group, above: int, below: int) -> Estimate:
    """Estimate the ratio of two throughputs from the figures that are shown, with Welch's interval."""
    level = compute_look_level(group.records[above])
    ratios = estimate_ratios(group.rates[np.array([above])], group.rates[np.array([below])], 1 - level)
    value = float(group.rate[above] / group.rate[below])
    num = int(min(group.rates.num[above], group.rates.num[below]))
    method = "ratio of medians, Welch t on logarithms"
    if math.isnan(ratios.low[0]):
        return Estimate(value, None, None, 0.95, method, num, "too few runs")
    low, high = min(float(ratios.low[0]), value), max(float(ratios.high[0]), value)
    return Estimate(value, low, high, 0.95, method, num)


def unpack_estimate(estimate: Estimate) -> tuple[float, float | None, float | None]:
    """Return the value and the ends of its interval."""
    return estimate.value, estimate.low, estimate.high


def is_significant(ratio: Estimate) -> bool:
    """Return True if the interval of a ratio excludes 1."""
    return ratio.low is not None and ratio.high is not None and (ratio.low > 1 or ratio.high < 1)
