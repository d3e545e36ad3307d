"""Bar charts of throughput: processes × threads, and the values of one parameter side by side."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from corewise.analysis.columns import find_largest_each
from corewise.analysis.effects import choose_pair_values, find_single_process_peer
from corewise.analysis.groups import CONDITION_COLUMNS, WIDTHS, Group
from corewise.analysis.phrases import (
    describe_point,
    describe_shape,
    describe_task,
    describe_value,
    format_axis_title,
    label_shape,
    name_rate_unit,
)
from corewise.analysis.ratios import estimate_ratio, is_significant, unpack_estimate
from corewise.report.charts.chart_labels import describe_intervals, join_sentences
from corewise.report.charts.chart_theme import (
    HEIGHT,
    Highlight,
    build_axis_from_0,
    build_key,
    build_layered_spec,
    build_tooltips,
    create_chart,
    encode_colour,
)
from corewise.report.charts.series import SeriesLayout, choose_layout
from corewise.report.charts.whiskers import build_whiskers, describe_cut_whiskers, find_whisker_limit
from corewise.report.report_model import Chart
from corewise.study.axes import AXES
from corewise.text_format import format_count, format_figure, format_list, format_ratio, round_significant, shorten

MAX_BARS = 24
MAX_SETTINGS = 10
MAX_VALUES = 6
_MANY_NAMES = 4
_TIE_SIGN = "≈"
_TEST_NOTE = (
    "Each ratio is tested as a single comparison (Welch's t). The headline corrects for all comparisons, "
    "so it may report no significant difference for the same pair."
)


def build_shapes_chart(group: Group, best: int) -> Chart | None:
    """Build bars of throughput for each processes × threads, with another parameter side by side."""
    if not all(name in group.varying and group.is_number(name) for name in WIDTHS):
        return None
    layout = choose_layout(group, "threads", without=("processes",))
    chosen = _find_fastest_shapes(group, layout)
    shapes = list(dict.fromkeys((group.points[i]["processes"], group.points[i]["threads"]) for i in chosen))
    if len(shapes) < 2:
        return None
    shapes = sorted(shapes, key=lambda s: (s[0] * s[1], s[0]))
    cut = ""
    if len(shapes) > MAX_BARS:
        cut = f"Showing the {MAX_BARS} fastest of {len(shapes):,} shapes."
        shapes = sorted(_sort_shapes_by_rate(group, chosen, shapes)[:MAX_BARS], key=lambda s: (s[0] * s[1], s[0]))
        chosen = [i for i in chosen if (group.points[i]["processes"], group.points[i]["threads"]) in shapes]
    single = find_single_process_peer(group, best)
    rows = [_build_row(group, i, layout, label_shape(*(group.points[i][n] for n in WIDTHS))) for i in chosen]
    for row, i in zip(rows, chosen, strict=True):
        row |= _compare_with_base(group, i, single)
    labels = [label_shape(*shape) for shape in shapes]
    spec = _build_bar_spec(group, layout, rows, labels, "processes × threads")
    base_label = "" if single is None else describe_shape(*(group.points[single][n] for n in WIDTHS))
    ratio_note = f"Figures above the bars: ratio to {base_label}. {_explain_test(rows)}" if base_label else ""
    held = _describe_rest(group, layout)
    fastest = describe_shape(*(group.points[best][n] for n in WIDTHS))
    return Chart(
        key=build_key(group.study, group.workload_name, group.mode, "processes-threads"),
        title=f"{describe_task(group)}: processes × threads",
        spec=spec,
        caption=join_sentences(
            "Median throughput over runs for each combination of processes × threads.",
            describe_intervals(group, chosen),
            describe_cut_whiskers(_find_whisker_limit(rows), _list_interval_ends(rows), name_rate_unit(group)),
            ratio_note,
            held,
            cut,
        ),
        alt=(
            f"Bars of throughput in {name_rate_unit(group)} for {format_count(len(shapes), 'shape')} from "
            f"{labels[0]} "
            f"to {labels[-1]}; the highest is {fastest} with {format_figure(float(group.rate[best]))}."
        ),
    )


def _compare_with_base(group: Group, i: int, base: int | None) -> dict[str, str]:
    """Return the ratio to the base as text at the bar, and with its interval; empty at the base."""
    if base is None or i == base:
        return {"ratio": "", "over": "the base itself" if base is not None else ""}
    ratio = estimate_ratio(group, i, base)
    if ratio.low is None:
        return {"ratio": "", "over": f"{format_ratio(ratio.value)}, too few runs to compare"}
    return {
        "ratio": format_ratio(ratio.value) if is_significant(ratio) else _TIE_SIGN,
        "over": format_ratio(*unpack_estimate(ratio)),
    }


def _explain_test(rows: Sequence[Mapping[str, Any]]) -> str:
    """Explain which test the ratios at the bars use; a headline may call the same pair a tie."""
    sign = f" {_TIE_SIGN}: no significant difference." if any(row["ratio"] == _TIE_SIGN for row in rows) else ""
    return f"{_TEST_NOTE}{sign}"


def _find_fastest_shapes(group: Group, layout: SeriesLayout) -> list[int]:
    """Find the fastest trial of each shape and colour."""
    allowed = ~np.isnan(group.rate)
    if layout.colour:
        column = group.columns[layout.colour]
        allowed &= np.isin(column.codes, [column.find_code(value) for value in layout.colours])
    numbers = group.index_by([name for name in (*WIDTHS, layout.colour) if name])
    return [int(i) for i in find_largest_each(numbers, np.where(allowed, group.rate, np.nan))]


def _sort_shapes_by_rate(group: Group, chosen: Sequence[int], shapes: Sequence[Any]) -> list[Any]:
    rates: dict[Any, float] = {}
    for i in chosen:
        shape = (group.points[i]["processes"], group.points[i]["threads"])
        rates[shape] = max(rates.get(shape, 0.0), float(group.rate[i]))
    return sorted(shapes, key=lambda shape: -rates[shape])


def build_choice_chart(group: Group, name: str, best: int) -> Chart | None:
    """Build bars for each value of a choice side by side, for the fastest settings of the rest."""
    values = _order_values(group, name)
    if not 2 <= len(values) <= MAX_VALUES:
        return None
    settings, num_all = _find_fastest_settings(group, name)
    if not settings:
        return None
    others = [n for n in group.varying if n != name]
    layout = SeriesLayout(x="", colour=name, colours=tuple(values))
    rows, drawn = [], []
    for setting in settings:
        label = _label_setting(group, setting[0], settings[0][0], others)
        base = next((i for i in setting if group.points[i].get(name) == values[0]), None)
        for i in sorted(setting, key=lambda i: values.index(group.points[i].get(name))):
            row = _build_row(group, i, layout, shorten(label, 44))
            row |= _compare_with_base(group, i, base)
            rows.append(row)
            drawn.append(i)
    labels = list(dict.fromkeys(row["x"] for row in rows))
    base_label, each = (describe_value(name, values[0]), format_list([describe_value(name, v) for v in values], 6))
    cut = f"Showing the {len(settings)} fastest of {num_all:,} settings." if num_all > len(settings) else ""
    return Chart(
        key=build_key(group.study, group.workload_name, group.mode, name),
        title=f"{describe_task(group)}: {format_axis_title(name)}",
        spec=_build_bar_spec(group, layout, rows, labels, "", flat=True),
        caption=join_sentences(
            f"Median throughput over runs with {each}.",
            describe_intervals(group, drawn),
            describe_cut_whiskers(_find_whisker_limit(rows), _list_interval_ends(rows), name_rate_unit(group)),
            f"Figures next to the bars: ratio to {base_label}, all else equal. {_explain_test(rows)}",
            cut,
        ),
        alt=(
            f"Bars of throughput in {name_rate_unit(group)} for {each} in "
            f"{format_count(len(labels), 'setting')}. "
            f"{_describe_first_ratio(group, settings[0], name, values)}"
        ),
    )


def _label_setting(group: Group, i: int, first: int, names: Sequence[str]) -> str:
    """Label a setting; with many parameters, only by what differs from the fastest setting."""
    own, other = group.points[i], group.points[first]
    if len(names) <= _MANY_NAMES:
        return _label_point({name: own.get(name) for name in names}) or describe_task(group)
    differ = {name: own.get(name) for name in names if own.get(name) != other.get(name)}
    return _label_point(differ) or "as in the fastest"


def _label_point(point: Mapping[str, Any]) -> str:
    """Label a point as briefly as possible: 4×4, batch 16."""
    left = dict(point)
    labels = []
    if all(name in left for name in WIDTHS):
        labels.append(label_shape(left.pop("processes"), left.pop("threads")))
    return ", ".join([*labels, *([describe_point(left)] if left else [])])


def _describe_first_ratio(group: Group, setting: Sequence[int], name: str, values: Sequence[Any]) -> str:
    ordered = sorted(setting, key=lambda i: values.index(group.points[i].get(name)))
    ratio = estimate_ratio(group, ordered[-1], ordered[0])
    own, base = (describe_value(name, group.points[i].get(name)) for i in (ordered[-1], ordered[0]))
    shown = "" if is_significant(ratio) else ", no significant difference from 1"
    return f"In the fastest, {own} has {format_ratio(*unpack_estimate(ratio))} the throughput of {base}{shown}."


def _order_values(group: Group, name: str) -> list[Any]:
    """Return the values of a choice, the base first."""
    values = group.list_values(name)
    if len(values) == 2:
        return list(choose_pair_values(group, name))
    axis = AXES.get(name)
    if axis is not None and axis.default in values:
        values.remove(axis.default)
        values.insert(0, axis.default)
    return values


def _find_fastest_settings(group: Group, name: str) -> tuple[list[list[int]], int]:
    """Return trials that differ only in the choice, fastest settings first, and how many exist."""
    setting_ids, known = group.index_without(names=(name,)), ~np.isnan(group.rate)
    best = np.zeros(int(setting_ids.max(initial=0)) + 1)
    np.maximum.at(best, setting_ids[known], group.rate[known])
    several = np.flatnonzero(np.bincount(setting_ids[known], minlength=best.size) > 1)
    fastest = several[np.argsort(-best[several], kind="stable")][:MAX_SETTINGS]
    return [np.flatnonzero((setting_ids == setting_id) & known).tolist() for setting_id in fastest], int(several.size)


def _build_row(group: Group, i: int, layout: SeriesLayout, x: str) -> dict[str, Any]:
    point = group.points[i]
    return {
        "x": x, "y": round_significant(float(group.rate[i])), "low": round_significant(float(group.low[i])),
        "high": round_significant(float(group.high[i])),
        "top": round_significant(float(np.fmax(group.rate[i], group.high[i]))),
        "series": describe_value(layout.colour, point.get(layout.colour)) if layout.colour else "",
        "point": describe_point(point), "runs": int(group.rates.num[i]),
        "trial": group.records[i].trial_id[:8],
    }  # fmt: skip


def _build_bar_spec(
    group: Group,
    layout: SeriesLayout,
    rows: Sequence[dict[str, Any]],
    labels: Sequence[str],
    title: str,
    flat: bool = False,
) -> dict[str, Any]:
    """Build bars with whiskers and ratios: vertical, or horizontal where their labels are long."""
    import altair as alt

    names = [describe_value(layout.colour, value) for value in layout.colours] or [""]
    limit = _find_whisker_limit(rows)
    ys = [row["y"] for row in rows] + ([limit] if limit else _list_interval_ends(rows))
    has_ratios = any(row.get("ratio") for row in rows) and len(rows) <= MAX_BARS
    room = 1.14 if flat and has_ratios else 1.06
    length = alt.Scale(domain=[0, max(ys) * room], nice=False)
    places = alt.Scale(paddingInner=0.25)
    axis = alt.Axis(labelAngle=0, labelLimit=240, labelOverlap=False, grid=False)
    place: Any = {"sort": list(labels), "axis": axis, "scale": places, "title": title or None}
    base = create_chart()
    of_bar: Any = {"title": name_rate_unit(group), "scale": length, "axis": build_axis_from_0()}
    if flat:
        base = base.encode(y=alt.Y("x:N", **place))
        ends_of: list[dict[str, Any]] = [{"x": alt.X(f"{n}:Q", **of_bar)} for n in ("y", "low", "high", "top")]
        ends_of[1]["x2"] = "high:Q"
    else:
        base = base.encode(x=alt.X("x:N", **place))
        ends_of = [{"y": alt.Y(f"{n}:Q", **of_bar)} for n in ("y", "low", "high", "top")]
        ends_of[1]["y2"] = "high:Q"
    if len(names) > 1:
        offset = {"yOffset" if flat else "xOffset": _build_offset(names, flat)}
        base = base.encode(**offset)
    tips = {
        "point:N": "setting", "y:Q": name_rate_unit(group), "low:Q": "interval from", "high:Q": "to",
        "over:N": "over the base", "runs:Q": "runs", "trial:N": "trial",
    }  # fmt: skip
    of_series = format_axis_title(layout.colour) if layout.colour else ""
    layers = [base.mark_bar().encode(color=encode_colour(of_series, names), tooltip=build_tooltips(tips), **ends_of[0])]
    if any(row["low"] is not None for row in rows):
        layers += build_whiskers(base, ends_of[1], ends_of[2], flat, limit)
    if has_ratios:
        at = base if limit is None else base.transform_calculate(top=f"min(datum.top, {limit})")
        texts = at.mark_text(align="left", dx=6) if flat else at.mark_text(dy=-8, fontSize=11)
        layers.append(texts.encode(text="ratio:N", **ends_of[3]))
    height = len(labels) * (16 * len(names) + 10) if flat else HEIGHT
    return build_layered_spec(layers, {"rows": rows}, height, Highlight(names))


def _list_interval_ends(rows: Sequence[Mapping[str, Any]]) -> list[float]:
    return [row["high"] for row in rows if row["high"] is not None]


def _find_whisker_limit(rows: Sequence[Mapping[str, Any]]) -> float | None:
    return find_whisker_limit([row["y"] for row in rows], _list_interval_ends(rows))


def _build_offset(names: Sequence[str], flat: bool) -> Any:
    import altair as alt

    if flat:
        return alt.YOffset("series:N", sort=list(names))
    return alt.XOffset("series:N", sort=list(names))


def _describe_rest(group: Group, layout: SeriesLayout) -> str:
    rest = [name for name in (layout.shape, *layout.rest) if name]
    return f"Showing the fastest over {format_list([format_axis_title(name) for name in rest])}." if rest else ""


def find_choices(group: Group) -> list[str]:
    """Find the parameters that are not numbers and have few values."""
    names = [name for name in group.varying if name not in ("protocol", "variant", "store")]
    choices = [name for name in names if name in CONDITION_COLUMNS or not group.is_number(name)]
    return [name for name in choices if 2 <= len(group.list_values(name)) <= MAX_VALUES]
