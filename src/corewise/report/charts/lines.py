"""Charts of a figure against a parameter: throughput, efficiency and memory, one line for each of another."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from corewise.report.charts.look import (
    DASHES,
    GREY,
    Highlight,
    chart_of,
    colour,
    framed,
    is_wide,
    key_of,
    legend,
    set_apart,
    shape,
    steps_by_factors,
    tooltips,
    x_axis,
    y_axis,
)
from corewise.report.charts.whiskers import arrowheads, cut_at, cut_off, cut_words
from corewise.report.charts.words import caption_joined, interval_words
from corewise.report.columns import number_or_nan
from corewise.report.groups import WIDTHS, Group
from corewise.report.model import Chart
from corewise.report.phrases import axis_title, point_words, rate_unit, task_words, value_words
from corewise.report.series import Layout, fastest_each, layout_of, left_out, like
from corewise.report.standing import Efficiencies, efficiencies_of
from corewise.report.words import figure, fraction, listed, memory, rounded
from corewise.stats.values import Values

GIB = 2.0**30
_HARDLY = 0.03
_SAME = "Nothing else that was varied changes it by more than 3 %: the fastest trials are drawn."


@dataclass(frozen=True)
class Drawn:
    """One figure of the trials drawn, with its interval."""

    y: Values
    low: Values
    high: Values
    title: str
    fmt: str = "~s"


def throughput_chart(group: Group, x: str, best: int) -> Chart | None:
    """Throughput against a parameter; of threads or processes with linear scaling as the bound."""
    layout = layout_of(group, x)
    drawn = fastest_each(group, layout, group.rate)
    if len({group.points[i][x] for i in drawn}) < 2:
        return None
    unit = rate_unit(group)
    ideal = _linear(group, layout, drawn) if x in WIDTHS else []
    figures = Drawn(group.rate, group.low, group.high, unit)
    spec = _line_spec(group, layout, drawn, figures, bound=ideal, bound_label="linear scaling")
    base = min(group.points[i][x] for i in drawn)
    from_base = f"{value_words(x, base)}, {figure(ideal[0]['y'])} {unit}" if ideal else ""
    bound = f"Dashed: the bound, linear scaling of the fastest base ({from_base})." if ideal else ""
    caption = _caption(group, layout, f"Median throughput over runs against {axis_title(x)}", drawn)
    first, last = _ends_of_best(group, layout, drawn, best)
    alt = (
        f"Throughput in {unit} against {axis_title(x)}, {_lines_in_words(layout)}. The line of the fastest "
        f"trial goes from {figure(float(group.rate[first]))} at {value_words(x, group.points[first][x])} to "
        f"{figure(float(group.rate[last]))} at {value_words(x, group.points[last][x])}."
    )
    title = f"{task_words(group)}: throughput against {axis_title(x)}"
    return Chart(
        key=key_of(group.study, group.workload_name, group.mode, "throughput", x),
        title=title,
        spec=spec,
        caption=caption_joined(caption, bound, left_out(group, layout, drawn)),
        alt=alt,
    )


def _linear(group: Group, layout: Layout, drawn: Sequence[int]) -> list[dict[str, float]]:
    """Two points of the line that the fastest base would follow if it scaled perfectly."""
    xs = [float(group.points[i][layout.x]) for i in drawn]
    narrowest = min(xs)
    rate = max(float(group.rate[i]) for i, x in zip(drawn, xs, strict=True) if x == narrowest)
    if narrowest <= 0:
        return []
    ends = [narrowest, *sorted({x for x in xs if x > narrowest})]
    return [{"x": x, "y": rate * x / narrowest} for x in ends]


def efficiency_chart(group: Group, x: str, best: int, found: Efficiencies | None = None) -> Chart | None:
    """Efficiency against threads or processes, the ideal at 1."""
    found = found or efficiencies_of(group, (x,))
    layout = layout_of(group, x)
    drawn = like(group, layout, found.value, best)
    if len({group.points[i][x] for i in drawn}) < 2:
        return None
    figures = Drawn(found.value, found.low, found.high, "efficiency", "~r")
    xs = sorted({float(group.points[i][x]) for i in drawn})
    bound = [{"x": value, "y": 1.0} for value in xs]
    ends = [float(found.high[i]) for i in drawn if not np.isnan(found.high[i])]
    cut = cut_at([1.0, *(float(found.value[i]) for i in drawn)], ends)
    spec = _line_spec(group, layout, drawn, figures, bound, "ideal", linear_y=True, cut=cut)
    base = _bases_in_words(group, x, found, drawn)
    caption = _caption(group, layout, f"Efficiency e = p / (n · p₁) against {axis_title(x)} n", drawn)
    last = max(drawn, key=lambda i: (group.points[i][x], group.rate[i]))
    told = fraction(float(found.value[last]), float(found.low[last]), float(found.high[last]))
    return Chart(
        key=key_of(group.study, group.workload_name, group.mode, "efficiency", x),
        title=f"{task_words(group)}: efficiency against {axis_title(x)}",
        spec=spec,
        caption=caption_joined(
            caption,
            cut_words(cut, ends),
            f"Base: {base}. The ideal is 1.",
            left_out(group, layout, drawn, best),
        ),
        alt=(
            f"Efficiency against {axis_title(x)}, {_lines_in_words(layout)}; the base is {base}. With "
            f"{value_words(x, group.points[last][x])} the fastest trial has {told}."
        ),
    )


def _bases_in_words(group: Group, x: str, found: Efficiencies, drawn: Sequence[int]) -> str:
    widths = sorted({group.points[int(found.base[i])][x] for i in drawn})
    words = listed([value_words(x, width) for width in widths])
    return f"{words}, all else equal"


def memory_chart(group: Group, x: str, best: int) -> Chart | None:
    """Peak memory against a parameter, usually the batch, with the machine's memory where it is near."""
    peak = group.metric("peak_memory_bytes") / GIB
    layout = layout_of(group, x)
    same = _hardly_varies(group, x, peak)
    if same:
        layout = Layout(x, rest=tuple(name for name in group.varying if name != x))
    drawn = fastest_each(group, layout, peak)
    if len({group.points[i][x] for i in drawn}) < 2 or np.ptp(peak[drawn]) <= _HARDLY * peak[drawn].max():
        return None
    none = np.full(peak.size, np.nan)  # the largest over runs has no interval
    machines = {id(record.machine): record.machine for record in group.records}
    limits = {number_or_nan(machine.get("memory_bytes")) for machine in machines.values()}
    limit = next(iter(limits)) / GIB if len(limits) == 1 and not np.isnan(next(iter(limits))) else 0.0
    near = limit and limit < 4 * max(peak[i] for i in drawn)
    bound = [{"x": float(v), "y": limit} for v in sorted({group.points[i][x] for i in drawn})] if near else []
    figures = Drawn(peak, none, none, "peak memory, GiB", "~r")
    spec = _line_spec(group, layout, drawn, figures, bound=bound, bound_label="memory of the machine")
    told = f" The machine has {memory(limit * GIB)}." if limit else ""
    caption = (
        f"Peak memory of all processes of a trial against {axis_title(x)}: the largest over "
        f"its runs, so there is no interval.{told}"
    )
    first, last = _ends_of_best(group, layout, drawn, best)
    return Chart(
        key=key_of(group.study, group.workload_name, group.mode, "memory", x),
        title=f"{task_words(group)}: memory against {axis_title(x)}",
        spec=spec,
        caption=caption_joined(caption, _SAME if same else left_out(group, layout, drawn)),
        alt=(
            f"Peak memory against {axis_title(x)}, {_lines_in_words(layout)}: from "
            f"{memory(peak[first] * GIB)} to {memory(peak[last] * GIB)} on the line of the fastest trial."
        ),
    )


def _hardly_varies(group: Group, x: str, values: Values) -> bool:
    """True when nothing but x changes the values by more than a few per cent."""
    known = np.flatnonzero(~np.isnan(values))
    codes = group.columns[x].codes[known]
    high, low = np.zeros(int(codes.max(initial=0)) + 1), np.full(int(codes.max(initial=0)) + 1, np.inf)
    np.maximum.at(high, codes, values[known])
    np.minimum.at(low, codes, values[known])
    return len(group.varying) > 1 and bool((high - low <= _HARDLY * high).all())


def _line_spec(
    group: Group,
    layout: Layout,
    drawn: Sequence[int],
    figures: Drawn,
    bound: Sequence[Mapping[str, float]] = (),
    bound_label: str = "",
    linear_y: bool = False,
    cut: float | None = None,
) -> dict[str, Any]:
    import altair as alt

    rows = line_rows(group, layout, drawn, figures)
    xs = [row["x"] for row in rows]
    across = steps_by_factors(xs)
    ys = [row[n] for row in rows for n in ("y", "low", "high") if row[n] is not None] + [
        b["y"] for b in bound
    ]
    upright = not linear_y and min(ys) > 0 and (is_wide(ys) or (across and bool(bound) and is_wide(ys, 4)))
    has_whiskers = any(row["low"] is not None for row in rows)
    names = [value_words(layout.colour, value) for value in layout.colours] or [""]
    kinds = [value_words(layout.shape, value) for value in layout.shapes]
    title = axis_title(layout.colour) if layout.colour else ""
    y = y_axis(figures.title, [min(end, cut or end) for end in ys], upright, fmt=figures.fmt)
    if has_whiskers:
        set_apart(rows, names, across)
    base = chart_of().encode(
        x=x_axis(axis_title(layout.x), xs, across),
        color=colour(title, names),
    )
    tips = tooltips(
        {
            "point:N": "setting",
            "y:Q": figures.title,
            "low:Q": "interval from",
            "high:Q": "to",
            "runs:Q": "runs",
            "trial:N": "trial",
        }
    )
    line, dots = base.mark_line(strokeWidth=2).encode(y=y), base.mark_point(filled=True, size=75).encode(y=y)
    if kinds:
        dash = alt.Scale(domain=kinds, range=list(DASHES[: len(kinds)]))
        line = line.encode(
            strokeDash=alt.StrokeDash(
                "kind:N", title=axis_title(layout.shape), scale=dash, legend=legend(kinds, below=True)
            )
        )
        dots = dots.encode(shape=shape("kind", axis_title(layout.shape), kinds))
    else:
        dots = dots.encode(shape=shape("series", title, names))
    limit = _bound_rows(bound, bound_label)
    layers = [*_bound_layers(limit, y), line]
    if has_whiskers:
        layers += [*_interval_layers(base, y, cut)]
    layers.append(dots.encode(tooltip=tips))
    data = {"rows": rows, "bound": limit} if limit else {"rows": rows}
    return framed(layers, data, highlight=Highlight(names))


def line_rows(group: Group, layout: Layout, drawn: Sequence[int], figures: Drawn) -> list[dict[str, Any]]:
    """One row of data for each trial drawn."""
    rows = []
    for i in drawn:
        point = group.points[i]
        row = {
            "x": point[layout.x],
            "y": rounded(float(figures.y[i])),
            "low": rounded(float(figures.low[i])),
            "high": rounded(float(figures.high[i])),
            "series": value_words(layout.colour, point.get(layout.colour)) if layout.colour else "",
            "point": point_words(point),
            "runs": int(group.rates.num[i]),
            "trial": group.records[i].trial_id[:8],
        }
        if layout.shape:
            row["kind"] = value_words(layout.shape, point.get(layout.shape))
        rows.append(row)
    return rows


def _interval_layers(base: Any, y: Any, limit: float | None) -> list[Any]:
    """Whiskers from the low to the high end of each interval; above the limit they end in an arrowhead."""
    import altair as alt

    low = y.copy()
    low.shorthand = "low:Q"
    whole, beyond = cut_off(base, limit)
    capped = base if limit is None else base.transform_filter(f"datum.high <= {limit}")
    layers = [whole.mark_rule(strokeWidth=1.5).encode(y=low, y2="high:Q")]
    for end, rows in (("low", base), ("high", capped)):
        layers.append(rows.mark_tick(orient="horizontal", size=9, thickness=1.5).encode(y=alt.Y(f"{end}:Q")))
    if beyond is not None:
        layers.append(arrowheads(beyond, flat=False).encode(y=alt.Y("high:Q")))
    return layers


def _bound_rows(bound: Sequence[Mapping[str, float]], text: str) -> list[dict[str, Any]]:
    """The points of the bound, its name beside the middle one."""
    if len(bound) < 2:
        return []
    middle = len(bound) // 2
    return [
        {"x": b["x"], "y": rounded(b["y"]), "label": text if k == middle else ""} for k, b in enumerate(bound)
    ]


def _bound_layers(rows: Sequence[Mapping[str, Any]], y: Any) -> list[Any]:
    if not rows:
        return []
    line = chart_of("bound").mark_line(strokeDash=[5, 4], strokeWidth=1.5, color=GREY, clip=True)
    words = chart_of("bound").mark_text(align="right", dx=-8, dy=-8, color=GREY)
    return [line.encode(x="x:Q", y=y), words.encode(x="x:Q", y="y:Q", text="label:N")]


def _ends_of_best(group: Group, layout: Layout, drawn: Sequence[int], best: int) -> tuple[int, int]:
    """The first and last trial of the line that the fastest one is on."""
    own = group.points[best]
    same = [
        i
        for i in drawn
        if all(group.points[i].get(n) == own.get(n) for n in (layout.colour, layout.shape) if n)
    ]
    line = same if len(same) > 1 else list(drawn)
    return line[0], line[-1]


def _lines_in_words(layout: Layout) -> str:
    if not layout.colour:
        return "one line"
    values = listed([value_words(layout.colour, value) for value in layout.colours], 6)
    by_shape = f", by shape {axis_title(layout.shape)}" if layout.shape else ""
    return f"one line for each of {values}{by_shape}"


def _caption(group: Group, layout: Layout, what: str, drawn: Sequence[int]) -> str:
    by = f", by {axis_title(layout.colour)}" if layout.colour else ""
    return f"{what}{by}. {interval_words(group, drawn, len(layout.colours) > 1)}"
