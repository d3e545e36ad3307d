"""Intervals as they are drawn: whiskers, cut off where one is so long that nothing else could be seen."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from corewise.report.charts.look import EDGE, WHISKER
from corewise.report.words import figure

if TYPE_CHECKING:
    import altair as alt

_WIDEST = 2.5  # times the highest figure: where whiskers end at the latest


def whiskers(
    base: "alt.Chart", low: Mapping[str, Any], high: Mapping[str, Any], flat: bool, limit: float | None = None
) -> list[Any]:
    """Intervals over bars: a rule with a tick at each end, edged so that it stands out from its bar.

    `low` encodes both ends of the rule, `high` the high end alone; above the limit it is an arrowhead.
    """
    first = {name: value for name, value in low.items() if name in ("x", "y")}
    whole, beyond = cut_off(base, limit)
    capped = base if limit is None else base.transform_filter(f"datum.high <= {limit}")
    layers: list[Any] = []
    for stroke, wider in ((EDGE, 2.0), (WHISKER, 0.0)):
        layers.append(whole.mark_rule(strokeWidth=1.5 + wider, color=stroke).encode(**low))
        orient: Any = "vertical" if flat else "horizontal"
        look: Any = {"orient": orient, "size": 8 + wider, "thickness": 1.5 + wider, "color": stroke}
        layers += [base.mark_tick(**look).encode(**first), capped.mark_tick(**look).encode(**high)]
    if beyond is not None:
        layers.append(arrowheads(beyond, flat, color=WHISKER).encode(**high))
    return layers


def cut_at(figures: Iterable[float], ends: Iterable[float]) -> float | None:
    """Where whiskers are cut off, lest one that is many times as long as the rest leave nothing to see."""
    limit = _WIDEST * max(figures, default=0.0)
    return limit if any(end > limit > 0 for end in ends) else None


def cut_off(base: "alt.Chart", limit: float | None) -> "tuple[alt.Chart, alt.Chart | None]":
    """The rows with no high end above the limit, and those alone that had one; without a limit all rows."""
    if limit is None:
        return base, None
    beyond = base.transform_filter(f"datum.high > {limit}").transform_calculate(high=f"{limit}")
    return base.transform_calculate(high=f"min(datum.high, {limit})"), beyond


def arrowheads(beyond: "alt.Chart", flat: bool, **look: Any) -> Any:
    """The marks at the ends of whiskers that go on."""
    return beyond.mark_point(filled=True, size=60, shape="triangle-right" if flat else "triangle-up", **look)


def cut_words(limit: float | None, ends: Iterable[float], unit: str = "") -> str:
    """What the arrowheads mean, where there are some."""
    if limit is None:
        return ""
    return f"Arrowheads: intervals that go on, the longest up to {figure(max(ends))}{unit and ' '}{unit}."
