"""Small charts made of characters: sparklines and histograms of samples."""

import statistics
from collections.abc import Sequence
from itertools import pairwise

_BLOCKS = "▁▂▃▄▅▆▇█"
# From this number of samples on, a histogram has one bin for the slowest 2 %.
_MANY_SAMPLES = 100


def draw_sparkline(values: Sequence[float], width: int) -> str:
    """Draw values in their order as one line of blocks; many values are reduced to medians of neighbours."""
    if not values:
        return ""
    num_groups = min(width, len(values))
    edges = [round(i * len(values) / num_groups) for i in range(num_groups + 1)]
    heights = [statistics.median(values[a:b]) for a, b in pairwise(edges)]
    low, high = min(heights), max(heights)
    # Differences below 0.1 % are noise and are not drawn.
    if high - low <= 1e-3 * abs(high):
        return _BLOCKS[0] * num_groups
    return "".join(_BLOCKS[round((h - low) / (high - low) * (len(_BLOCKS) - 1))] for h in heights)


def count_histogram(values: Sequence[float], num_bins: int = 10) -> list[tuple[float, float, int]]:
    """Return bins of equal width as (low edge, high edge, count); many values get one bin for the top 2 %."""
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
