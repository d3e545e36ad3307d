"""What all charts share: colours every reader can tell apart, shapes beside them, axes, and the frame.

Text and background have no colours here: the page gives them, light or dark.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import altair as alt

# Okabe and Ito's palette, which the common kinds of colour blindness leave distinct; its yellow is left out,
# since it vanishes on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999999")
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right")
DASHES = ([1, 0], [6, 3], [2, 2])
GREY = "#888888"  # readable on white and on black
WHISKER = "#222222"  # with an edge of the page's colour: seen on a bar and beside it
EDGE = "#fefefe"
HEIGHT = 300
_MANY_FOLD = 20  # values that span more than this are drawn on a logarithmic scale
_STEPS = (1.0, 2.0, 5.0)
_LEGEND = {"orient": "top", "direction": "horizontal", "symbolLimit": 0}
_LEGEND_LETTERS = 66  # side by side in the width of a column
_APART = 0.03  # of the axis, over all series
_LONGEST_KEY = 80
_SHORTEST_WORD = 16  # of a key


def key_of(*words: str) -> str:
    """Words as the name of a figure: letters, digits and hyphens."""
    slugs = [re.sub(r"[^a-z0-9]+", "-", word.lower()).strip("-") for word in words]
    slugs = [slug for slug in slugs if slug]
    # The longest give way first, names of studies and workloads as a rule: the last words tell charts apart.
    for k in sorted(range(len(slugs)), key=lambda k: -len(slugs[k])):
        excess = len("-".join(slugs)) - _LONGEST_KEY
        if excess > 0:
            slugs[k] = slugs[k][: max(_SHORTEST_WORD, len(slugs[k]) - excess)].strip("-")
    return "-".join(slugs)[:_LONGEST_KEY].strip("-") or "figure"


def chart_of(name: str = "rows") -> "alt.Chart":
    """An empty chart of the data that `framed` is given under this name."""
    import altair as alt

    return alt.Chart(alt.NamedData(name=name))


def framed(
    layers: "Sequence[alt.Chart]",
    data: Mapping[str, Sequence[Mapping[str, Any]]],
    height: int = HEIGHT,
    highlight: "Highlight | None" = None,
) -> dict[str, Any]:
    """The layers as one specification that fills the width it is given, with no colours of its own for text.

    They are joined here: Altair's own way copies every part of every layer many times over.
    """
    import altair as alt

    made = [layer.to_dict(validate=False) for layer in layers]  # the tests validate: it is slow
    for each in made:
        for name in ("$schema", "config", "datasets"):
            each.pop(name, None)
    if highlight is not None:
        highlight.mark(made)
    return {
        "$schema": alt.SCHEMA_URL,
        "width": "container",
        "height": height,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "config": {"legend": _LEGEND},
        "datasets": {name: [dict(row) for row in rows] for name, rows in data.items()},
        "layer": made,
    }


def colour(title: str, labels: Sequence[str]) -> "alt.Color":
    """The encoding of the field `series` by colour; no legend where there is only one."""
    import altair as alt

    scale = alt.Scale(domain=list(labels), range=list(COLOURS[: len(labels)]))
    return alt.Color("series:N", title=title, scale=scale, legend=legend(labels))


def shape(field: str, title: str, labels: Sequence[str]) -> "alt.Shape":
    """The encoding of a field by the shape of its points; a legend of its own stands below the chart."""
    import altair as alt

    scale = alt.Scale(domain=list(labels), range=list(SHAPES[: len(labels)]))
    below = legend(labels, below=field != "series")
    return alt.Shape(f"{field}:N", title=title, scale=scale, legend=below)


def legend(labels: Sequence[str], below: bool = False) -> "alt.Legend | None":
    """A legend with as many columns as its labels leave room for; none for one thing alone."""
    import altair as alt

    if len(labels) < 2:
        return None
    longest = max(len(label) for label in labels)
    place: Any = {"orient": "bottom"} if below else {}
    return alt.Legend(**place, columns=min(4, max(1, _LEGEND_LETTERS // (longest + 4))), labelLimit=420)


@dataclass(frozen=True)
class Highlight:
    """A click on the legend leaves one series in full view; nothing to click on where there is only one."""

    labels: Sequence[str]
    full: float = 1.0  # opacity of what is chosen
    faint: float = 0.15

    def mark(self, layers: Sequence[dict[str, Any]]) -> None:
        """Make the layers that draw the rows listen to the legend."""
        drawing = [layer for layer in layers if layer.get("data") == {"name": "rows"}]
        opacity: dict[str, Any] = {"value": self.full}
        if len(self.labels) > 1:
            select = {"type": "point", "fields": ["series"]}
            drawing[0]["params"] = [{"name": "picked", "select": select, "bind": "legend"}]
            opacity = {"condition": {"param": "picked", "value": self.full}, "value": self.faint}
        for layer in drawing:
            layer["encoding"]["opacity"] = opacity


def is_wide(values: Sequence[float], fold: float = _MANY_FOLD) -> bool:
    """True when positive values span so many fold that a logarithmic scale is needed."""
    found = [value for value in values if value is not None and math.isfinite(value)]
    return bool(found) and min(found) > 0 and max(found) / min(found) > fold


def log_ticks(values: Sequence[float]) -> list[float]:
    """Round numbers, 1, 2 and 5 times powers of ten, that cover positive values."""
    low, high = min(values), max(values)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    ticks = [step * 10.0**power for power in range(first, last + 1) for step in _STEPS]
    inside = [tick for tick in ticks if low <= tick <= high]
    if len(inside) > 9:
        inside = [tick for tick in inside if f"{tick:e}".startswith("1.0")]
    return inside


def axis_from_0(fmt: str = "~s") -> "alt.Axis":
    """An axis whose 0 is plain: Vega would give it the prefix of the others, 0k."""
    import altair as alt

    return alt.Axis(format=fmt, labelExpr="datum.value === 0 ? '0' : datum.label")


def y_axis(title: str, values: Sequence[float], log: bool, field: str = "y", fmt: str = "~s") -> "alt.Y":
    """The upright axis of the field `y`: from 0, or logarithmic around the values given."""
    import altair as alt

    if log:
        low, high = min(values) * 0.85, max(values) * 1.18
        axis = alt.Axis(values=log_ticks([low, high]), format=fmt)
        scale = alt.Scale(type="log", domain=[low, high], nice=False)
        return alt.Y(f"{field}:Q", title=title, scale=scale, axis=axis)
    top = max([value for value in values if math.isfinite(value)], default=1.0)
    scale = alt.Scale(domain=[0, top * 1.05 or 1.0])
    return alt.Y(f"{field}:Q", title=title, scale=scale, axis=axis_from_0(fmt))


def x_axis(title: str, values: Sequence[float], log: bool) -> "alt.X":
    """The axis across, of the field `x`, with a tick at every value where they are few."""
    import altair as alt

    found = sorted(set(values))
    axis = alt.Axis(grid=False)
    if len(found) <= 12:
        axis = alt.Axis(grid=False, values=found, format="~s" if max(found) >= 1e5 else "~r")
    if log:
        pad = (found[-1] / found[0]) ** 0.04
        domain = [found[0] / pad, found[-1] * pad]
        scale = alt.Scale(type="log", base=2 if _are_powers(found) else 10, domain=domain, nice=False)
    else:
        pad = (found[-1] - found[0]) * 0.04
        scale = alt.Scale(domain=[found[0] - pad, found[-1] + pad], nice=False, zero=False)
    return alt.X("x:Q", title=title, scale=scale, axis=axis)


def steps_by_factors(values: Sequence[float]) -> bool:
    """True when values grow by factors rather than by steps, as 1, 2, 4, 8 do."""
    found = sorted(set(values))
    if len(found) < 3 or found[0] <= 0 or found[-1] / found[0] < 8:
        return False
    return _gap(found[-2:]) > 3 * _gap(found[:2])


def set_apart(rows: Sequence[dict[str, Any]], labels: Sequence[str], log: bool) -> None:
    """Move the points of each series a little across, so that their whiskers do not cover each other."""
    xs = [row["x"] for row in rows]
    if len(labels) < 2 or min(xs) == max(xs):
        return
    offset = {label: (k - (len(labels) - 1) / 2) / len(labels) for k, label in enumerate(labels)}
    for row in rows:
        part = offset[row["series"]] * _APART
        if log:
            row["x"] = float(f"{row['x'] * (max(xs) / min(xs)) ** part:.5g}")
        else:
            row["x"] = float(f"{row['x'] + (max(xs) - min(xs)) * part:.5g}")


def _gap(pair: Sequence[float]) -> float:
    return pair[1] - pair[0]


def _are_powers(values: Sequence[float]) -> bool:
    return all(math.log2(value).is_integer() for value in values if value > 0)


def tooltips(titles: Mapping[str, str]) -> "list[alt.Tooltip]":
    """One line of a tooltip for each field; numbers exact enough to be copied."""
    import altair as alt

    return [
        alt.Tooltip(name, title=title) if ":N" in name else alt.Tooltip(name, title=title, format=",.5~g")
        for name, title in titles.items()
    ]
