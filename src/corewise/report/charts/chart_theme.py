"""What all charts share: a colour-blind safe palette, shapes, axes and the layered specification.

Text and background have no colours here; the page sets them for its light and dark theme.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import altair as alt

# Okabe and Ito's colour-blind safe palette without its yellow, which is invisible on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999999")
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right")
DASHES = ([1, 0], [6, 3], [2, 2])
# A grey that is readable on white and on black.
GREY = "#888888"
# Whiskers have an edge in the page's colour, so that they are visible on and outside a bar.
WHISKER = "#222222"
EDGE = "#fefefe"
HEIGHT = 300
# Values that span more than this factor are drawn on a logarithmic scale.
_LOG_SCALE_FOLD = 20
_STEPS = (1.0, 2.0, 5.0)
_LEGEND = {"orient": "top", "direction": "horizontal", "symbolLimit": 0}
# Characters of legend labels that fit side by side.
_LEGEND_WIDTH_CHARACTERS = 66
# Share of the axis over which the points of all series are shifted.
_SERIES_SHIFT = 0.03
_MAX_KEY_LENGTH = 80
# Parts of a key are not cut below this length.
_MIN_PART_LENGTH = 16


def build_key(*parts: str) -> str:
    """Join parts to the name of a figure: letters, digits and hyphens."""
    slugs = [re.sub(r"[^a-z0-9]+", "-", part.lower()).strip("-") for part in parts]
    slugs = [slug for slug in slugs if slug]
    # The longest parts, usually study and workload, are cut first; the last parts distinguish charts.
    for k in sorted(range(len(slugs)), key=lambda k: -len(slugs[k])):
        excess = len("-".join(slugs)) - _MAX_KEY_LENGTH
        if excess > 0:
            slugs[k] = slugs[k][: max(_MIN_PART_LENGTH, len(slugs[k]) - excess)].strip("-")
    return "-".join(slugs)[:_MAX_KEY_LENGTH].strip("-") or "figure"


def create_chart(name: str = "rows") -> "alt.Chart":
    """Create an empty chart on the data that `build_layered_spec` gets under this name."""
    import altair as alt

    return alt.Chart(alt.NamedData(name=name))


def build_layered_spec(
    layers: "Sequence[alt.Chart]",
    data: Mapping[str, Sequence[Mapping[str, Any]]],
    height: int = HEIGHT,
    highlight: "Highlight | None" = None,
) -> dict[str, Any]:
    """Combine layers to one specification that fills its width and leaves text colours to the page.

    Altair's own layering copies every part of every layer many times, so the layers are joined here.
    """
    import altair as alt

    # Validation is slow; the tests do it.
    specs = [layer.to_dict(validate=False) for layer in layers]
    for each in specs:
        for name in ("$schema", "config", "datasets"):
            each.pop(name, None)
    if highlight is not None:
        highlight.mark(specs)
    return {
        "$schema": alt.SCHEMA_URL,
        "width": "container",
        "height": height,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "config": {"legend": _LEGEND},
        "datasets": {name: [dict(row) for row in rows] for name, rows in data.items()},
        "layer": specs,
    }


def encode_colour(title: str, labels: Sequence[str]) -> "alt.Color":
    """Encode the field `series` by colour; a single series has no legend."""
    import altair as alt

    scale = alt.Scale(domain=list(labels), range=list(COLOURS[: len(labels)]))
    return alt.Color("series:N", title=title, scale=scale, legend=build_legend(labels))


def encode_shape(field: str, title: str, labels: Sequence[str]) -> "alt.Shape":
    """Encode a field by the shape of its points; its own legend stands below the chart."""
    import altair as alt

    scale = alt.Scale(domain=list(labels), range=list(SHAPES[: len(labels)]))
    below = build_legend(labels, below=field != "series")
    return alt.Shape(f"{field}:N", title=title, scale=scale, legend=below)


def build_legend(labels: Sequence[str], below: bool = False) -> "alt.Legend | None":
    """Build a legend with as many columns as fit, or None for a single label."""
    import altair as alt

    if len(labels) < 2:
        return None
    longest = max(len(label) for label in labels)
    place: Any = {"orient": "bottom"} if below else {}
    return alt.Legend(**place, columns=min(4, max(1, _LEGEND_WIDTH_CHARACTERS // (longest + 4))), labelLimit=420)


@dataclass(frozen=True)
class Highlight:
    """Highlights a series when its legend entry is clicked; `full` and `faint` are opacities."""

    labels: Sequence[str]
    full: float = 1.0
    faint: float = 0.15

    def mark(self, layers: Sequence[dict[str, Any]]) -> None:
        """Bind the layers that draw the rows to the legend."""
        drawing = [layer for layer in layers if layer.get("data") == {"name": "rows"}]
        opacity: dict[str, Any] = {"value": self.full}
        if len(self.labels) > 1:
            select = {"type": "point", "fields": ["series"]}
            drawing[0]["params"] = [{"name": "picked", "select": select, "bind": "legend"}]
            opacity = {"condition": {"param": "picked", "value": self.full}, "value": self.faint}
        for layer in drawing:
            layer["encoding"]["opacity"] = opacity


def is_wide(values: Sequence[float], fold: float = _LOG_SCALE_FOLD) -> bool:
    """Return True if positive values span more than `fold`, so that a logarithmic scale is needed."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    return bool(finite) and min(finite) > 0 and max(finite) / min(finite) > fold


def compute_log_ticks(values: Sequence[float]) -> list[float]:
    """Return 1, 2 and 5 times powers of ten that cover positive values."""
    low, high = min(values), max(values)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    ticks = [step * 10.0**power for power in range(first, last + 1) for step in _STEPS]
    inside = [tick for tick in ticks if low <= tick <= high]
    if len(inside) > 9:
        inside = [tick for tick in inside if f"{tick:e}".startswith("1.0")]
    return inside


def build_axis_from_0(fmt: str = "~s") -> "alt.Axis":
    """Build an axis that formats each tick alone; Vega would give all the prefix of the largest: 0k, 0.1k."""
    import altair as alt

    return alt.Axis(labelExpr=f"format(datum.value, '{fmt}')")


def build_y_axis(title: str, values: Sequence[float], log: bool, field: str = "y", fmt: str = "~s") -> "alt.Y":
    """Build the vertical axis: from 0, or logarithmic around the values."""
    import altair as alt

    if log:
        low, high = min(values) * 0.85, max(values) * 1.18
        axis = alt.Axis(values=compute_log_ticks([low, high]), format=fmt)
        scale = alt.Scale(type="log", domain=[low, high], nice=False)
        return alt.Y(f"{field}:Q", title=title, scale=scale, axis=axis)
    top = max([value for value in values if math.isfinite(value)], default=1.0)
    scale = alt.Scale(domain=[0, top * 1.05 or 1.0])
    return alt.Y(f"{field}:Q", title=title, scale=scale, axis=build_axis_from_0(fmt))


def build_x_axis(title: str, values: Sequence[float], log: bool) -> "alt.X":
    """Build the horizontal axis, with a tick at every value where there are few."""
    import altair as alt

    distinct = sorted(set(values))
    axis = alt.Axis(grid=False)
    if len(distinct) <= 12:
        axis = alt.Axis(grid=False, values=distinct, format="~s" if max(distinct) >= 1e5 else "~r")
    if log:
        pad = (distinct[-1] / distinct[0]) ** 0.04
        domain = [distinct[0] / pad, distinct[-1] * pad]
        scale = alt.Scale(type="log", base=2 if _has_only_powers(distinct) else 10, domain=domain, nice=False)
    else:
        pad = (distinct[-1] - distinct[0]) * 0.04
        scale = alt.Scale(domain=[distinct[0] - pad, distinct[-1] + pad], nice=False, zero=False)
    return alt.X("x:Q", title=title, scale=scale, axis=axis)


def is_geometric(values: Sequence[float]) -> bool:
    """Return True if values grow by factors rather than steps, as 1, 2, 4, 8 do."""
    distinct = sorted(set(values))
    if len(distinct) < 3 or distinct[0] <= 0 or distinct[-1] / distinct[0] < 8:
        return False
    return _compute_gap(distinct[-2:]) > 3 * _compute_gap(distinct[:2])


def separate_series(rows: Sequence[dict[str, Any]], labels: Sequence[str], log: bool) -> None:
    """Shift the points of each series a little, so that their whiskers do not overlap."""
    xs = [row["x"] for row in rows]
    if len(labels) < 2 or min(xs) == max(xs):
        return
    offset = {label: (k - (len(labels) - 1) / 2) / len(labels) for k, label in enumerate(labels)}
    for row in rows:
        part = offset[row["series"]] * _SERIES_SHIFT
        if log:
            row["x"] = float(f"{row['x'] * (max(xs) / min(xs)) ** part:.5g}")
        else:
            row["x"] = float(f"{row['x'] + (max(xs) - min(xs)) * part:.5g}")


def _compute_gap(pair: Sequence[float]) -> float:
    return pair[1] - pair[0]


def _has_only_powers(values: Sequence[float]) -> bool:
    return all(math.log2(value).is_integer() for value in values if value > 0)


def build_tooltips(titles: Mapping[str, str]) -> "list[alt.Tooltip]":
    """Build one tooltip line per field; numbers are precise enough to copy."""
    import altair as alt

    return [
        alt.Tooltip(name, title=title) if ":N" in name else alt.Tooltip(name, title=title, format=",.5~g")
        for name, title in titles.items()
    ]
