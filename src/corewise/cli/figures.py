"""Figures and names as people read them in a terminal."""

import statistics
from collections.abc import Sequence
from itertools import pairwise

from corewise.report.words import clean as clean
from corewise.report.words import duration as duration
from corewise.report.words import memory as memory
from corewise.report.words import named as named
from corewise.report.words import number as number
from corewise.report.words import percent as percent
from corewise.report.words import point as point
from corewise.report.words import shown as shown
from corewise.report.words import visible as visible

_BLOCKS = "▁▂▃▄▅▆▇█"
_MANY_SAMPLES = 100


def sparkline(values: Sequence[float], width: int) -> str:
    """Values in their order as a line of blocks, medians of neighbours when there are many."""
    if not values:
        return ""
    num_groups = min(width, len(values))
    edges = [round(i * len(values) / num_groups) for i in range(num_groups + 1)]
    heights = [statistics.median(values[a:b]) for a, b in pairwise(edges)]
    low, high = min(heights), max(heights)
    if high - low <= 1e-3 * abs(high):  # a tenth of a per cent is no picture
        return _BLOCKS[0] * num_groups
    return "".join(_BLOCKS[round((h - low) / (high - low) * (len(_BLOCKS) - 1))] for h in heights)


def histogram(values: Sequence[float], num_bins: int = 10) -> list[tuple[float, float, int]]:
    """Bins of equal width over the values: low edge, high edge, count; of many the slowest 2 % share one."""
    if not values:
        return []
    in_order = sorted(values)
    low, top = in_order[0], in_order[-1]
    high = in_order[int(0.98 * len(values))] if len(values) >= _MANY_SAMPLES else top
    width = (high - low) / num_bins
    if width <= 0:
        return [(low, top, len(values))]
    counts = [0] * num_bins
    body = [value for value in in_order if value <= high]
    for value in body:
        counts[min(num_bins - 1, int((value - low) / width))] += 1
    bins = [(low + i * width, low + (i + 1) * width, count) for i, count in enumerate(counts)]
    return bins if high == top else [*bins, (high, top, len(values) - len(body))]
