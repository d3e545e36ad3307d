"""Charts of scaling: throughput and efficiency with the model's prediction, and the parts of a step as bars."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from corewise.analysis.groups import Group
from corewise.analysis.phrases import describe_point, describe_task, describe_value, format_axis_title, name_rate_unit
from corewise.analysis.scaling.scaling_curves import ScalingCurve
from corewise.analysis.scaling.scaling_sentences import name_scaling
from corewise.analysis.scaling.step_split import StepPart
from corewise.report.charts.chart_labels import describe_intervals, join_sentences
from corewise.report.charts.chart_theme import (
    COLOURS,
    GREY,
    build_axis_from_0,
    build_key,
    build_layered_spec,
    build_legend,
    build_tooltips,
    build_x_axis,
    build_y_axis,
    create_chart,
    encode_colour,
    encode_shape,
    is_wide,
)
from corewise.report.report_model import Chart
from corewise.report.scaling.scaling_part import describe_split_source
from corewise.text_format import format_fraction, format_list, round_significant, shorten

_PART_COLOURS = {
    StepPart.COMPUTE: COLOURS[0],
    StepPart.COMMUNICATION: COLOURS[1],
    StepPart.IMBALANCE: COLOURS[3],
    StepPart.INPUT: COLOURS[4],
    StepPart.OTHER: COLOURS[6],
}
_BAND_NOTE = "Shaded: the interval of the fitted model, also beyond the measured counts (dotted line)."
# Whiskers and bands of very uncertain points would hide the others.
_MAX_RATIO = 1.6


def build_throughput_chart(group: Group, curves: Sequence[ScalingCurve]) -> Chart:
    """Build throughput against the count, with linear scaling and the model."""
    unit, rate_unit = curves[0].unit, name_rate_unit(group)
    rows = _build_rows(curves, "rate")
    band = [
        {"x": each.count, "y": each.rate, "low": each.low, "high": each.high, "series": label_curve(curve)}
        for curve in curves
        for each in curve.predictions
    ]
    fastest = max(curves, key=lambda curve: curve.base.rate / curve.base.count)
    counts = sorted({row["x"] for row in (*rows, *band)})
    ideal = [{"x": n, "y": fastest.base.rate * n / fastest.base.count} for n in counts if n >= fastest.base.count]
    base = describe_value(unit, fastest.base.count)
    return Chart(
        key=build_key(group.study, group.workload_name, group.mode, "scaling", unit),
        title=f"{describe_task(group)}: throughput against {format_axis_title(unit)}",
        spec=_build_spec(rows, band, ideal, curves, format_axis_title(unit), rate_unit),
        caption=join_sentences(
            f"Median throughput over runs; {_describe_scalings(curves)}.",
            describe_intervals(group, [point.trial for curve in curves for point in curve.points]),
            f"Dashed: linear scaling from {base}.",
            _BAND_NOTE if band else f"{curves[0].model.reason[:1].upper()}{curves[0].model.reason[1:]}.",
        ),
        alt=(
            f"Throughput in {rate_unit} against {format_axis_title(unit)}, from {rows[0]['y']:,.4g} to "
            f"{rows[-1]['y']:,.4g}, with linear scaling as a dashed line."
        ),
    )


def build_efficiency_chart(group: Group, curves: Sequence[ScalingCurve]) -> Chart:
    """Build efficiency against the count; the ideal is 1."""
    unit = curves[0].unit
    rows = _build_rows(curves, "efficiency")
    band = []
    for curve in curves:
        per_unit = curve.base.rate / curve.base.count
        for each in curve.predictions:
            ends = [value / each.count / per_unit for value in (each.rate, each.low, each.high)]
            band.append(dict(zip(("y", "low", "high"), ends, strict=True), x=each.count, series=label_curve(curve)))
    counts = sorted({row["x"] for row in (*rows, *band)})
    last = curves[0].largest
    base = describe_value(unit, curves[0].base.count)
    efficiency = format_fraction(last.efficiency, last.efficiency_low, last.efficiency_high)
    return Chart(
        key=build_key(group.study, group.workload_name, group.mode, "scaling-efficiency", unit),
        title=f"{describe_task(group)}: efficiency against {format_axis_title(unit)}",
        spec=_build_spec(
            rows, band, [{"x": n, "y": 1.0} for n in counts], curves, format_axis_title(unit), "efficiency"
        ),
        caption=join_sentences(
            f"E = P / (n / b · P of the base b) against {format_axis_title(unit)} n; {_describe_scalings(curves)}.",
            f"The base is {base}, all else equal. The ideal is 1.",
            describe_intervals(group, [point.trial for curve in curves for point in curve.points]),
            _BAND_NOTE if band else "",
        ),
        alt=f"Efficiency against {format_axis_title(unit)}: {efficiency} at {describe_value(unit, last.count)}.",
    )


def build_split_chart(group: Group, curves: Sequence[ScalingCurve]) -> Chart | None:
    """Build stacked bars of the parts of a step for the fastest curve whose ranks have figures."""
    curve = next((each for each in curves if sum(p.split is not None for p in each.points) > 1), None)
    if curve is None:
        return None
    unit = format_axis_title(curve.unit)
    rows, parts = [], []
    for point in curve.points:
        if point.split is None:
            continue
        total_s = sum(point.split.parts_s.values()) or math.nan
        for order, part in enumerate(StepPart):
            seconds = point.split.parts_s.get(part)
            if seconds is None:
                continue
            parts.append(part)
            share = f"{100 * seconds / total_s:.0f} %"
            rows.append(
                {"x": str(point.count), "y": round_significant(seconds), "series": part.value, "order": order}
                | {"share": share}
            )
    shown = [part for part in StepPart if part in parts]
    last = curve.largest
    shares = [f"{row['series']} {row['share']}" for row in rows if row["x"] == str(last.count)]
    return Chart(
        key=build_key(group.study, group.workload_name, group.mode, "scaling-split", curve.unit),
        title=f"{describe_task(group)}: time of a step against {unit}",
        spec=_build_split_spec(rows, shown, unit),
        caption=join_sentences(f"{label_curve(curve)}.", describe_split_source([curve])),
        alt=f"Stacked bars of the time of a step against {unit}. At {last.count}: {format_list(shares, 5)}.",
    )


def label_curve(curve: ScalingCurve) -> str:
    """Label a curve by the parameters that differ and its type of scaling."""
    point = describe_point(curve.point)
    return shorten(f"{point}, {curve.scaling.value}" if point else f"{curve.scaling.value} scaling", 60)


def _describe_scalings(curves: Sequence[ScalingCurve]) -> str:
    return format_list(list(dict.fromkeys(name_scaling(curve.scaling) for curve in curves)))


def _build_rows(curves: Sequence[ScalingCurve], name: str) -> list[dict[str, Any]]:
    rows = []
    for curve in curves:
        for point in curve.points:
            value, low, high = (getattr(point, f"{name}{end}") for end in ("", "_low", "_high"))
            rows.append(
                {
                    "x": point.count,
                    "y": round_significant(value),
                    "low": round_significant(low),
                    "high": round_significant(high),
                    "series": label_curve(curve),
                    "runs": point.num_runs,
                    "trial": point.trial_id[:8],
                }
            )
    return rows


def _build_spec(
    rows: Sequence[Mapping[str, Any]],
    band: Sequence[Mapping[str, Any]],
    ideal: Sequence[Mapping[str, Any]],
    curves: Sequence[ScalingCurve],
    x_title: str,
    y_title: str,
) -> dict[str, Any]:
    names = list(dict.fromkeys(label_curve(curve) for curve in curves))
    xs = [row["x"] for row in (*rows, *band)]
    # Intervals beyond this are cut at the edge of the chart.
    limit = max(_MAX_RATIO * max(row["y"] for row in (*rows, *band)), *(point["y"] for point in ideal))
    ends = [row[n] for row in (*rows, *band, *ideal) for n in ("y", "high") if row.get(n) is not None]
    highest = min(limit, max(ends))
    if y_title == "efficiency":
        highest = max(1.05, highest)
    x = build_x_axis(x_title, xs, log=len(set(xs)) > 2)
    ys = [row["y"] for row in (*rows, *band, *ideal)]
    if y_title != "efficiency" and len(set(xs)) > 2 and is_wide(ys, 4):
        # Linear scaling is a straight line if both axes are logarithmic.
        y = build_y_axis(y_title, [*ys, highest], log=True)
    else:
        y = build_y_axis(y_title, [highest], log=False, fmt="~r" if y_title == "efficiency" else "~s")
    colour = encode_colour("", names)
    tips = build_tooltips(
        {"series:N": "", "x:Q": x_title, "y:Q": y_title, "low:Q": "interval from", "high:Q": "to", "runs:Q": "runs"}
    )
    low = y.copy()
    low.shorthand = "low:Q"
    model = create_chart("band").encode(x=x, color=colour)
    mine = create_chart().encode(x=x, color=colour)
    ideal_line = create_chart("ideal").mark_line(strokeDash=[5, 4], strokeWidth=1.5, color=GREY, clip=True)
    prediction = [
        model.mark_area(opacity=0.15, clip=True).encode(y=low, y2="high:Q"),
        model.mark_line(strokeDash=[1, 3], strokeWidth=1.5, clip=True).encode(y=y),
    ]
    # The first coloured layer gives the legend its look.
    layers = [
        ideal_line.encode(x=x, y=y),
        mine.mark_line(strokeWidth=2).encode(y=y),
        *(prediction if band else []),
        mine.mark_rule(strokeWidth=1.5, clip=True).encode(y=low, y2="high:Q"),
        mine.mark_point(filled=True, size=75).encode(y=y, shape=encode_shape("series", "", names), tooltip=tips),
    ]
    rounded = [{n: round_significant(v) if isinstance(v, float) else v for n, v in row.items()} for row in band]
    data: dict[str, Sequence[Mapping[str, Any]]] = {"rows": rows, "ideal": ideal}
    if band:
        data["band"] = rounded
    return build_layered_spec(layers, data)


def _build_split_spec(rows: Sequence[Mapping[str, Any]], parts: Sequence[StepPart], x_title: str) -> dict[str, Any]:
    import altair as alt

    names = [part.value for part in parts]
    counts = list(dict.fromkeys(row["x"] for row in rows))
    scale = alt.Scale(domain=names, range=[_PART_COLOURS[part] for part in parts])
    bars = (
        create_chart()
        .mark_bar(size=42)
        .encode(
            x=alt.X("x:N", title=x_title, sort=counts, axis=alt.Axis(labelAngle=0)),
            y=alt.Y("y:Q", title="seconds per step", stack="zero", axis=build_axis_from_0()),
            color=alt.Color("series:N", title="", scale=scale, legend=build_legend(names)),
            order=alt.Order("order:Q"),
            tooltip=build_tooltips({"series:N": "", "y:Q": "seconds per step", "share:N": "share"}),
        )
    )
    return build_layered_spec([bars], {"rows": rows})
