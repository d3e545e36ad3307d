"""Figures and names as people read them in a terminal."""

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

_BLOCKS = "▁▂▃▄▅▆▇█"
_MANY_SAMPLES = 100


def number(value: float | None) -> str:
    """A number with four significant digits and no more than it needs: 0.01230, 18.30, 1,234."""
    if value is None or not math.isfinite(value):
        return "-"
    if value == 0:
        return "0"
    decimals = _num_decimals(value, 4)
    if decimals > 7:
        return f"{value:.3g}"
    return f"{value:,.{max(0, decimals)}f}"


def duration(seconds: float | None, digits: int = 3) -> str:
    """A duration with so many significant digits: 1.23 s, 432 ms, 5.67 µs."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(seconds) >= size * 0.9995:
            return f"{_significant(seconds / size, digits)} {unit}"
    return f"{seconds * 1e9:.{digits}g} ns"


def memory(num_bytes: float | None) -> str:
    """An amount of memory with three significant digits: 3.00 GiB."""
    if num_bytes is None:
        return "-"
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if num_bytes >= size:
            return f"{_significant(num_bytes / size, 3)} {unit}"
    return f"{num_bytes:.0f} B"


def percent(share: float | None) -> str:
    """A share in per cent with one digit after the point."""
    return "-" if share is None else f"{100 * share:.1f}"


def named(name: str) -> str:
    """A parameter's name as shown: a workload's own parameters without their prefix."""
    return clean(name.removeprefix("args."))


def point(params: Mapping[str, Any]) -> str:
    """Parameters in one line."""
    return " ".join(f"{named(name)}={shown(value)}" for name, value in params.items())


def shown(value: Any) -> str:
    """A parameter's value as shown."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else clean(str(value))


def clean(text: str) -> str:
    """The text in one line, with nothing in it that could steer a terminal."""
    return visible(" ".join(text.split()))


def visible(text: str) -> str:
    """The text with every character that does not print written out, its spaces as they are."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


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


def _significant(value: float, digits: int) -> str:
    return f"{value:.{max(0, _num_decimals(value, digits))}f}"


def _num_decimals(value: float, digits: int) -> int:
    """How many decimals leave so many significant digits; the exponent is that of the rounded value."""
    return digits - 1 - int(f"{value:.{digits - 1}e}".partition("e")[2])
