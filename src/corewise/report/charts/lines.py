"""Line charts of throughput, efficiency and memory against a parameter."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from corewise.analysis.columns import parse_number
from corewise.analysis.efficiency import Efficiencies, compute_efficiencies
from corewise.analysis.groups import WIDTHS, Group
from corewise.analysis.phrases import describe_point, describe_task, describe_value, format_axis_title, name_rate_unit
from corewise.report.charts.chart_labels import describe_intervals, join_sentences
from corewise.report.charts.chart_theme import (
    DASHES,
    GREY,
    Highlight,
    build_key,
    build_layered_spec,
    build_legend,
    build_tooltips,
    build_x_axis,
    build_y_axis,
    create_chart,
    encode_colour,
    encode_shape,
    is_geometric,
    is_wide,
    separate_series,
)
from corewise.report.charts.series import (
    SeriesLayout,
    choose_layout,
    describe_omissions,
    find_fastest_each,
    find_matching_trials,
)
from corewise.report.charts.whiskers import build_arrowheads, describe_cut_whiskers, find_whisker_limit, split_at_limit
from corewise.report.report_model import Chart
from corewise.stats.values import Values
from corewise.text_format import format_figure, format_fraction, format_list, format_memory, round_significant

GIB = 2.0**30
_NEARLY_CONSTANT_SHARE = 0.03
_NEARLY_CONSTANT_NOTE = "No other parameter changes it by more than 3 %. Showing the fastest trials."


@dataclass(frozen=True)
class PlottedQuantity:
    """The plotted values of all trials, with their intervals."""

    y: Values
    low: Values
    high: Values
    title: str
    fmt: str = "~s"


def build_throughput_chart(group: Group, x: str, best: int) -> Chart | None:
    """Build throughput against a parameter; for threads or processes with linear scaling as a bound."""
    layout = choose_layout(group, x)
    drawn = find_fastest_each(group, layout, group.rate)
    if len({group.points[i][x] for i in drawn}) < 2:
        return None
    unit = name_rate_unit(group)
    ideal = _compute_linear_scaling(group, layout, drawn) if x in WIDTHS else []
    figures = PlottedQuantity(group.rate, group.low, group.high, unit)
    spec = _build_line_spec(group, layout, drawn, figures, bound=ideal, bound_label="linear scaling")
    base = min(group.points[i][x] for i in drawn)
    from_base = f"{describe_value(x, base)}, {format_figure(ideal[0]['y'])} {unit}" if ideal else ""
    bound = f"Dashed: linear scaling from the fastest base ({from_base})." if ideal else ""
    caption = _build_caption(group, layout, f"Median throughput over runs against {format_axis_title(x)}", drawn)
    first, last = _find_ends_of_best(group, layout, drawn, best)
    alt = (
        f"Throughput in {unit} against {format_axis_title(x)}, {_describe_lines(layout)}. The line of the "
        f"fastest trial goes from {format_figure(float(group.rate[first]))} at "
        f"{describe_value(x, group.points[first][x])} to {format_figure(float(group.rate[last]))} at "
        f"{describe_value(x, group.points[last][x])}."
    )
    title = f"{describe_task(group)}: throughput against {format_axis_title(x)}"
    return Chart(
        key=build_key(group.study, group.workload_name, group.mode, "throughput", x),
        title=title,
        spec=spec,
        caption=join_sentences(caption, bound, describe_omissions(group, layout, drawn)),
        alt=alt,
    )


def _compute_linear_scaling(group: Group, layout: SeriesLayout, drawn: Sequence[int]) -> list[dict[str, float]]:
    """Return points of the line that the fastest base would follow with perfect scaling."""
    xs = [float(group.points[i][layout.x]) for i in drawn]
    narrowest = min(xs)
    rate = max(float(group.rate[i]) for i, x in zip(drawn, xs, strict=True) if x == narrowest)
    if narrowest <= 0:
        return []
    ends = [narrowest, *sorted({x for x in xs if x > narrowest})]
    return [{"x": x, "y": rate * x / narrowest} for x in ends]


def build_efficiency_chart(group: Group, x: str, best: int, efficiencies: Efficiencies | None = None) -> Chart | None:
    """Build efficiency against threads or processes; the ideal is 1."""
    efficiencies = efficiencies or compute_efficiencies(group, (x,))
    layout = choose_layout(group, x)
    drawn = find_matching_trials(group, layout, efficiencies.value, best)
    if len({group.points[i][x] for i in drawn}) < 2:
        return None
    figures = PlottedQuantity(efficiencies.value, efficiencies.low, efficiencies.high, "efficiency", "~r")
    xs = sorted({float(group.points[i][x]) for i in drawn})
    bound = [{"x": value, "y": 1.0} for value in xs]
    ends = [float(efficiencies.high[i]) for i in drawn if not np.isnan(efficiencies.high[i])]
    cut = find_whisker_limit([1.0, *(float(efficiencies.value[i]) for i in drawn)], ends)
    spec = _build_line_spec(group, layout, drawn, figures, bound, "ideal", linear_y=True, cut=cut)
    base = _describe_bases(group, x, efficiencies, drawn)
    caption = _build_caption(group, layout, f"Efficiency e = p / (n · p₁) against {format_axis_title(x)} n", drawn)
    last = max(drawn, key=lambda i: (group.points[i][x], group.rate[i]))
    efficiency_text = format_fraction(
        float(efficiencies.value[last]), float(efficiencies.low[last]), float(efficiencies.high[last])
    )
    return Chart(
        key=build_key(group.study, group.workload_name, group.mode, "efficiency", x),
        title=f"{describe_task(group)}: efficiency against {format_axis_title(x)}",
        spec=spec,
        caption=join_sentences(
            caption,
            describe_cut_whiskers(cut, ends),
            f"Base: {base}. The ideal is 1.",
            describe_omissions(group, layout, drawn, best),
        ),
        alt=(
            f"Efficiency against {format_axis_title(x)}, {_describe_lines(layout)}; the base is {base}. With "
            f"{describe_value(x, group.points[last][x])} the fastest trial has {efficiency_text}."
        ),
    )


def _describe_bases(group: Group, x: str, efficiencies: Efficiencies, drawn: Sequence[int]) -> str:
    widths = sorted({group.points[int(efficiencies.base[i])][x] for i in drawn})
    bases = format_list([describe_value(x, width) for width in widths])
    return f"{bases}, all else equal"


def build_memory_chart(group: Group, x: str, best: int) -> Chart | None:
    """Build peak memory against a parameter, with the machine's memory where it is close."""
    peak = group.get_metric("peak_memory_bytes") / GIB
    layout = choose_layout(group, x)
    is_nearly_constant = _is_nearly_constant(group, x, peak)
    if is_nearly_constant:
        layout = SeriesLayout(x, rest=tuple(name for name in group.varying if name != x))
    drawn = find_fastest_each(group, layout, peak)
    if (
        len({group.points[i][x] for i in drawn}) < 2
        or np.ptp(peak[drawn]) <= _NEARLY_CONSTANT_SHARE * peak[drawn].max()
    ):
        return None
    # The maximum over runs has no interval.
    none = np.full(peak.size, np.nan)
    machines = {id(record.machine): record.machine for record in group.records}
    limits = {parse_number(machine.get("memory_bytes")) for machine in machines.values()}
    limit = next(iter(limits)) / GIB if len(limits) == 1 and not np.isnan(next(iter(limits))) else 0.0
    near = limit and limit < 4 * max(peak[i] for i in drawn)
    bound = [{"x": float(v), "y": limit} for v in sorted({group.points[i][x] for i in drawn})] if near else []
    figures = PlottedQuantity(peak, none, none, "peak memory, GiB", "~r")
    spec = _build_line_spec(group, layout, drawn, figures, bound=bound, bound_label="memory of the machine")
    capacity = f" The machine has {format_memory(limit * GIB)}." if limit else ""
    caption = (
        f"Peak memory of all processes of a trial against {format_axis_title(x)}: the maximum over "
        f"its runs, so there is no interval.{capacity}"
    )
    first, last = _find_ends_of_best(group, layout, drawn, best)
    return Chart(
        key=build_key(group.study, group.workload_name, group.mode, "memory", x),
        title=f"{describe_task(group)}: memory against {format_axis_title(x)}",
        spec=spec,
        caption=join_sentences(
            caption, _NEARLY_CONSTANT_NOTE if is_nearly_constant else describe_omissions(group, layout, drawn)
        ),
        alt=(
            f"Peak memory against {format_axis_title(x)}, {_describe_lines(layout)}: from "
            f"{format_memory(peak[first] * GIB)} to {format_memory(peak[last] * GIB)} on the line of the "
            "fastest trial."
        ),
    )


def _is_nearly_constant(group: Group, x: str, values: Values) -> bool:
    """Return True if only x changes the values by more than a few per cent."""
    known = np.flatnonzero(~np.isnan(values))
    codes = group.columns[x].codes[known]
    high, low = np.zeros(int(codes.max(initial=0)) + 1), np.full(int(codes.max(initial=0)) + 1, np.inf)
    np.maximum.at(high, codes, values[known])
    np.minimum.at(low, codes, values[known])
    return len(group.varying) > 1 and bool((high - low <= _NEARLY_CONSTANT_SHARE * high).all())


def _build_line_spec(
    group: Group,
    layout: SeriesLayout,
    drawn: Sequence[int],
    figures: PlottedQuantity,
    bound: Sequence[Mapping[str, float]] = (),
    bound_label: str = "",
    linear_y: bool = False,
    cut: float | None = None,
) -> dict[str, Any]:
    import altair as alt

    rows = build_line_rows(group, layout, drawn, figures)
    xs = [row["x"] for row in rows]
    across = is_geometric(xs)
    ys = [row[n] for row in rows for n in ("y", "low", "high") if row[n] is not None] + [b["y"] for b in bound]
    upright = not linear_y and min(ys) > 0 and (is_wide(ys) or (across and bool(bound) and is_wide(ys, 4)))
    has_whiskers = any(row["low"] is not None for row in rows)
    names = [describe_value(layout.colour, value) for value in layout.colours] or [""]
    shapes = [describe_value(layout.shape, value) for value in layout.shapes]
    title = format_axis_title(layout.colour) if layout.colour else ""
    y = build_y_axis(figures.title, [min(end, cut or end) for end in ys], upright, fmt=figures.fmt)
    if has_whiskers:
        separate_series(rows, names, across)
    base = create_chart().encode(
        x=build_x_axis(format_axis_title(layout.x), xs, across), color=encode_colour(title, names)
    )
    tips = build_tooltips(
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
    if shapes:
        dash = alt.Scale(domain=shapes, range=list(DASHES[: len(shapes)]))
        line = line.encode(
            strokeDash=alt.StrokeDash(
                "style:N", title=format_axis_title(layout.shape), scale=dash, legend=build_legend(shapes, below=True)
            )
        )
        dots = dots.encode(shape=encode_shape("style", format_axis_title(layout.shape), shapes))
    else:
        dots = dots.encode(shape=encode_shape("series", title, names))
    limit = _build_bound_rows(bound, bound_label)
    layers = [*_build_bound_layers(limit, y), line]
    if has_whiskers:
        layers += [*_build_interval_layers(base, y, cut)]
    layers.append(dots.encode(tooltip=tips))
    data = {"rows": rows, "bound": limit} if limit else {"rows": rows}
    return build_layered_spec(layers, data, highlight=Highlight(names))


def build_line_rows(
    group: Group, layout: SeriesLayout, drawn: Sequence[int], figures: PlottedQuantity
) -> list[dict[str, Any]]:
    """Return one row of data for each plotted trial."""
    rows = []
    for i in drawn:
        point = group.points[i]
        row = {
            "x": point[layout.x],
            "y": round_significant(float(figures.y[i])),
            "low": round_significant(float(figures.low[i])),
            "high": round_significant(float(figures.high[i])),
            "series": describe_value(layout.colour, point.get(layout.colour)) if layout.colour else "",
            "point": describe_point(point),
            "runs": int(group.rates.num[i]),
            "trial": group.records[i].trial_id[:8],
        }
        if layout.shape:
            row["style"] = describe_value(layout.shape, point.get(layout.shape))
        rows.append(row)
    return rows


def _build_interval_layers(base: Any, y: Any, limit: float | None) -> list[Any]:
    """Build whiskers over each interval; beyond the limit they end in an arrowhead."""
    import altair as alt

    low = y.copy()
    low.shorthand = "low:Q"
    whole, beyond = split_at_limit(base, limit)
    capped = base if limit is None else base.transform_filter(f"datum.high <= {limit}")
    layers = [whole.mark_rule(strokeWidth=1.5).encode(y=low, y2="high:Q")]
    for end, rows in (("low", base), ("high", capped)):
        layers.append(rows.mark_tick(orient="horizontal", size=9, thickness=1.5).encode(y=alt.Y(f"{end}:Q")))
    if beyond is not None:
        layers.append(build_arrowheads(beyond, flat=False).encode(y=alt.Y("high:Q")))
    return layers


def _build_bound_rows(bound: Sequence[Mapping[str, float]], text: str) -> list[dict[str, Any]]:
    """Return the points of the bound, with its name at the middle one."""
    if len(bound) < 2:
        return []
    middle = len(bound) // 2
    return [
        {"x": b["x"], "y": round_significant(b["y"]), "label": text if k == middle else ""} for k, b in enumerate(bound)
    ]


def _build_bound_layers(rows: Sequence[Mapping[str, Any]], y: Any) -> list[Any]:
    if not rows:
        return []
    line = create_chart("bound").mark_line(strokeDash=[5, 4], strokeWidth=1.5, color=GREY, clip=True)
    label = create_chart("bound").mark_text(align="right", dx=-8, dy=-8, color=GREY)
    return [line.encode(x="x:Q", y=y), label.encode(x="x:Q", y="y:Q", text="label:N")]


def _find_ends_of_best(group: Group, layout: SeriesLayout, drawn: Sequence[int], best: int) -> tuple[int, int]:
    """Return the first and last trial of the line with the fastest trial."""
    own = group.points[best]
    on_line = [
        i for i in drawn if all(group.points[i].get(n) == own.get(n) for n in (layout.colour, layout.shape) if n)
    ]
    line = on_line if len(on_line) > 1 else list(drawn)
    return line[0], line[-1]


def _describe_lines(layout: SeriesLayout) -> str:
    if not layout.colour:
        return "one line"
    values = format_list([describe_value(layout.colour, value) for value in layout.colours], 6)
    by_shape = f", by shape {format_axis_title(layout.shape)}" if layout.shape else ""
    return f"one line for each of {values}{by_shape}"


def _build_caption(group: Group, layout: SeriesLayout, what: str, drawn: Sequence[int]) -> str:
    by = f", by {format_axis_title(layout.colour)}" if layout.colour else ""
    return f"{what}{by}. {describe_intervals(group, drawn, len(layout.colours) > 1)}"
