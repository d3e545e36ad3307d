"""Intervals drawn as whiskers, cut where a very long one would hide everything else."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from corewise.report.charts.chart_theme import EDGE, WHISKER
from corewise.text_format import format_figure

if TYPE_CHECKING:
    import altair as alt

# Whiskers end at this multiple of the highest figure.
_MAX_WHISKER_RATIO = 2.5


def build_whiskers(
    base: "alt.Chart", low: Mapping[str, Any], high: Mapping[str, Any], flat: bool, limit: float | None = None
) -> list[Any]:
    """Build intervals over bars: a rule with a tick at each end, edged to stand out from its bar.

    `low` encodes both ends of the rule, `high` only the high end, which is an arrowhead above the limit.
    """
    first = {name: value for name, value in low.items() if name in ("x", "y")}
    whole, beyond = split_at_limit(base, limit)
    capped = base if limit is None else base.transform_filter(f"datum.high <= {limit}")
    layers: list[Any] = []
    for stroke, wider in ((EDGE, 2.0), (WHISKER, 0.0)):
        layers.append(whole.mark_rule(strokeWidth=1.5 + wider, color=stroke).encode(**low))
        orient: Any = "vertical" if flat else "horizontal"
        look: Any = {"orient": orient, "size": 8 + wider, "thickness": 1.5 + wider, "color": stroke}
        layers += [base.mark_tick(**look).encode(**first), capped.mark_tick(**look).encode(**high)]
    if beyond is not None:
        layers.append(build_arrowheads(beyond, flat, color=WHISKER).encode(**high))
    return layers


def find_whisker_limit(figures: Iterable[float], ends: Iterable[float]) -> float | None:
    """Return where whiskers are cut, or None if none is extremely long."""
    limit = _MAX_WHISKER_RATIO * max(figures, default=0.0)
    return limit if any(end > limit > 0 for end in ends) else None


def split_at_limit(base: "alt.Chart", limit: float | None) -> "tuple[alt.Chart, alt.Chart | None]":
    """Split rows into those with intervals cut at the limit, and those that exceed it; without limit, all."""
    if limit is None:
        return base, None
    beyond = base.transform_filter(f"datum.high > {limit}").transform_calculate(high=f"{limit}")
    return base.transform_calculate(high=f"min(datum.high, {limit})"), beyond


def build_arrowheads(beyond: "alt.Chart", flat: bool, **look: Any) -> Any:
    """Build the marks at the ends of whiskers that are cut."""
    return beyond.mark_point(filled=True, size=60, shape="triangle-right" if flat else "triangle-up", **look)


def describe_cut_whiskers(limit: float | None, ends: Iterable[float], unit: str = "") -> str:
    """Explain the arrowheads, or return "" if there are none."""
    if limit is None:
        return ""
    return f"Arrowheads: intervals that continue, the longest up to {format_figure(max(ends))}{unit and ' '}{unit}."
