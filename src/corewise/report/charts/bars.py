"""Charts of throughput as bars: shapes of processes × threads, and values of one parameter side by side."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from corewise.report.charts.look import (
    HEIGHT,
    Highlight,
    axis_from_0,
    chart_of,
    colour,
    framed,
    key_of,
    tooltips,
)
from corewise.report.charts.whiskers import cut_at, cut_words, whiskers
from corewise.report.charts.words import caption_joined, interval_words
from corewise.report.columns import largest_each
from corewise.report.effects import pair_of, single_peer
from corewise.report.groups import APART, WIDTHS, Group
from corewise.report.model import Chart
from corewise.report.phrases import (
    axis_title,
    point_words,
    rate_unit,
    shape_label,
    shape_words,
    task_words,
    value_words,
)
from corewise.report.series import Layout, layout_of
from corewise.report.standing import ends, is_shown, ratio_between
from corewise.report.words import counted, figure, listed, rounded, short, times
from corewise.spec.axes import AXES

MAX_BARS = 24
MAX_SETTINGS = 10
MAX_VALUES = 6
_MANY_NAMES = 4
_ALIKE = "≈"


def shapes_chart(group: Group, best: int) -> Chart | None:
    """Throughput of each shape, processes × threads, as bars; another parameter side by side."""
    if not all(name in group.varying and group.is_number(name) for name in WIDTHS):
        return None
    layout = layout_of(group, "threads", without=("processes",))
    chosen = _fastest_shapes(group, layout)
    shapes = list(dict.fromkeys((group.points[i]["processes"], group.points[i]["threads"]) for i in chosen))
    if len(shapes) < 2:
        return None
    shapes = sorted(shapes, key=lambda s: (s[0] * s[1], s[0]))
    cut = ""
    if len(shapes) > MAX_BARS:
        cut = f"The {MAX_BARS} fastest of {len(shapes):,} shapes are drawn."
        shapes = sorted(_fastest(group, chosen, shapes)[:MAX_BARS], key=lambda s: (s[0] * s[1], s[0]))
        chosen = [i for i in chosen if (group.points[i]["processes"], group.points[i]["threads"]) in shapes]
    single = single_peer(group, best)
    rows = [_row(group, i, layout, shape_label(*(group.points[i][n] for n in WIDTHS))) for i in chosen]
    for row, i in zip(rows, chosen, strict=True):
        row |= _over(group, i, single)
    labels = [shape_label(*shape) for shape in shapes]
    spec = _bar_spec(group, layout, rows, labels, "processes × threads")
    over = "" if single is None else shape_words(*(group.points[single][n] for n in WIDTHS))
    base = f"Figures above the bars: over {over}{_unsure(rows)}." if over else ""
    held = _rest_words(group, layout)
    fastest = shape_words(*(group.points[best][n] for n in WIDTHS))
    return Chart(
        key=key_of(group.study, group.workload_name, group.mode, "processes-threads"),
        title=f"{task_words(group)}: processes × threads",
        spec=spec,
        caption=caption_joined(
            "Median throughput over runs for each number of processes × threads in each.",
            interval_words(group, chosen), cut_words(_limit(rows), _ends(rows), rate_unit(group)),
            base, held, cut,
        ),
        alt=(
            f"Bars of throughput in {rate_unit(group)} for {counted(len(shapes), 'shape')} from {labels[0]} "
            f"to {labels[-1]}; the highest is {fastest} with {figure(float(group.rate[best]))}."
        ),
    )  # fmt: skip


def _over(group: Group, i: int, base: int | None) -> dict[str, str]:
    """The ratio to the base as it stands at a bar, and with its interval; nothing at the base itself."""
    if base is None or i == base:
        return {"ratio": "", "over": "the base itself" if base is not None else ""}
    ratio = ratio_between(group, i, base)
    if ratio.low is None:
        return {"ratio": "", "over": f"{times(ratio.value)}, too few runs to compare"}
    return {"ratio": times(ratio.value) if is_shown(ratio) else _ALIKE, "over": times(*ends(ratio))}


def _unsure(rows: Sequence[Mapping[str, Any]]) -> str:
    """What the sign of no difference means, where it is drawn."""
    return f"; {_ALIKE} not told apart from it" if any(row["ratio"] == _ALIKE for row in rows) else ""


def _fastest_shapes(group: Group, layout: Layout) -> list[int]:
    """For each shape and colour the fastest trial over the rest."""
    allowed = ~np.isnan(group.rate)
    if layout.colour:
        column = group.columns[layout.colour]
        allowed &= np.isin(column.codes, [column.code(value) for value in layout.colours])
    numbers = group.together([name for name in (*WIDTHS, layout.colour) if name])
    return [int(i) for i in largest_each(numbers, np.where(allowed, group.rate, np.nan))]


def _fastest(group: Group, chosen: Sequence[int], shapes: Sequence[Any]) -> list[Any]:
    rates: dict[Any, float] = {}
    for i in chosen:
        shape = (group.points[i]["processes"], group.points[i]["threads"])
        rates[shape] = max(rates.get(shape, 0.0), float(group.rate[i]))
    return sorted(shapes, key=lambda shape: -rates[shape])


def choice_chart(group: Group, name: str, best: int) -> Chart | None:
    """Throughput of each value of a choice side by side, for the fastest settings of all else."""
    values = _ordered_values(group, name)
    if not 2 <= len(values) <= MAX_VALUES:
        return None
    settings, num_all = _settings(group, name)
    if not settings:
        return None
    others = [n for n in group.varying if n != name]
    layout = Layout(x="", colour=name, colours=tuple(values))
    rows, used = [], []
    for setting in settings:
        label = _setting_label(group, setting[0], settings[0][0], others)
        base = next((i for i in setting if group.points[i].get(name) == values[0]), None)
        for i in sorted(setting, key=lambda i: values.index(group.points[i].get(name))):
            row = _row(group, i, layout, short(label, 44))
            row |= _over(group, i, base)
            rows.append(row)
            used.append(i)
    labels = list(dict.fromkeys(row["x"] for row in rows))
    base_words, each = value_words(name, values[0]), listed([value_words(name, v) for v in values], 6)
    cut = f"The {len(settings)} fastest of {num_all:,} settings are drawn." if num_all > len(settings) else ""
    return Chart(
        key=key_of(group.study, group.workload_name, group.mode, name),
        title=f"{task_words(group)}: {axis_title(name)}",
        spec=_bar_spec(group, layout, rows, labels, "", flat=True),
        caption=caption_joined(
            f"Median throughput over runs with {each}.",
            interval_words(group, used), cut_words(_limit(rows), _ends(rows), rate_unit(group)),
            f"Figures beside the bars: over {base_words}, all else equal{_unsure(rows)}.", cut,
        ),
        alt=(
            f"Bars of throughput in {rate_unit(group)} for {each} in {counted(len(labels), 'setting')}. "
            f"{_first_ratio(group, settings[0], name, values)}"
        ),
    )  # fmt: skip


def _setting_label(group: Group, i: int, first: int, names: Sequence[str]) -> str:
    """What a setting is; of many parameters only what differs from the fastest setting."""
    own, other = group.points[i], group.points[first]
    if len(names) <= _MANY_NAMES:
        return _label({name: own.get(name) for name in names}) or task_words(group)
    differ = {name: own.get(name) for name in names if own.get(name) != other.get(name)}
    return _label(differ) or "as in the fastest"


def _label(point: Mapping[str, Any]) -> str:
    """A point as the label of a bar, as short as it can be: 4×4, batch 16."""
    left = dict(point)
    words = []
    if all(name in left for name in WIDTHS):
        words.append(shape_label(left.pop("processes"), left.pop("threads")))
    return ", ".join([*words, *([point_words(left)] if left else [])])


def _first_ratio(group: Group, setting: Sequence[int], name: str, values: Sequence[Any]) -> str:
    ordered = sorted(setting, key=lambda i: values.index(group.points[i].get(name)))
    ratio = ratio_between(group, ordered[-1], ordered[0])
    own, base = (value_words(name, group.points[i].get(name)) for i in (ordered[-1], ordered[0]))
    shown = "" if is_shown(ratio) else ", which is not told apart from 1"
    return f"In the fastest, {own} has {times(*ends(ratio))} the throughput of {base}{shown}."


def _ordered_values(group: Group, name: str) -> list[Any]:
    """The values of a choice, the base first."""
    values = group.values(name)
    if len(values) == 2:
        return list(pair_of(group, name))
    axis = AXES.get(name)
    if axis is not None and axis.default in values:
        values.remove(axis.default)
        values.insert(0, axis.default)
    return values


def _settings(group: Group, name: str) -> tuple[list[list[int]], int]:
    """Trials that differ in nothing but the choice, the fastest settings first, and how many there are."""
    kinds, known = group.kinds(without=(name,)), ~np.isnan(group.rate)
    best = np.zeros(int(kinds.max(initial=0)) + 1)
    np.maximum.at(best, kinds[known], group.rate[known])
    several = np.flatnonzero(np.bincount(kinds[known], minlength=best.size) > 1)
    fastest = several[np.argsort(-best[several], kind="stable")][:MAX_SETTINGS]
    return [np.flatnonzero((kinds == kind) & known).tolist() for kind in fastest], int(several.size)


def _row(group: Group, i: int, layout: Layout, x: str) -> dict[str, Any]:
    point = group.points[i]
    return {
        "x": x,
        "y": rounded(float(group.rate[i])),
        "low": rounded(float(group.low[i])),
        "high": rounded(float(group.high[i])),
        "top": rounded(float(np.fmax(group.rate[i], group.high[i]))),
        "series": value_words(layout.colour, point.get(layout.colour)) if layout.colour else "",
        "point": point_words(point),
        "runs": int(group.rates.num[i]),
        "trial": group.records[i].trial_id[:8],
    }


def _bar_spec(
    group: Group,
    layout: Layout,
    rows: Sequence[dict[str, Any]],
    labels: Sequence[str],
    title: str,
    flat: bool = False,
) -> dict[str, Any]:
    """Bars with whiskers and ratios: upright, or flat where their labels are long."""
    import altair as alt

    names = [value_words(layout.colour, value) for value in layout.colours] or [""]
    limit = _limit(rows)
    ys = [row["y"] for row in rows] + ([limit] if limit else _ends(rows))
    has_ratios = any(row.get("ratio") for row in rows) and len(rows) <= MAX_BARS
    room = 1.14 if flat and has_ratios else 1.06
    length = alt.Scale(domain=[0, max(ys) * room], nice=False)
    places = alt.Scale(paddingInner=0.25)
    axis = alt.Axis(labelAngle=0, labelLimit=240, labelOverlap=False, grid=False)
    place: Any = {"sort": list(labels), "axis": axis, "scale": places, "title": title or None}
    base = chart_of()
    of_bar: Any = {"title": rate_unit(group), "scale": length, "axis": axis_from_0()}
    if flat:
        base = base.encode(y=alt.Y("x:N", **place))
        ends_of: list[dict[str, Any]] = [
            {"x": alt.X(f"{n}:Q", **of_bar)} for n in ("y", "low", "high", "top")
        ]
        ends_of[1]["x2"] = "high:Q"
    else:
        base = base.encode(x=alt.X("x:N", **place))
        ends_of = [{"y": alt.Y(f"{n}:Q", **of_bar)} for n in ("y", "low", "high", "top")]
        ends_of[1]["y2"] = "high:Q"
    if len(names) > 1:
        offset = {"yOffset" if flat else "xOffset": _offset(names, flat)}
        base = base.encode(**offset)
    tips = {
        "point:N": "setting", "y:Q": rate_unit(group), "low:Q": "interval from", "high:Q": "to",
        "over:N": "over the base", "runs:Q": "runs", "trial:N": "trial",
    }  # fmt: skip
    of_series = axis_title(layout.colour) if layout.colour else ""
    layers = [base.mark_bar().encode(color=colour(of_series, names), tooltip=tooltips(tips), **ends_of[0])]
    if any(row["low"] is not None for row in rows):
        layers += whiskers(base, ends_of[1], ends_of[2], flat, limit)
    if has_ratios:
        at = base if limit is None else base.transform_calculate(top=f"min(datum.top, {limit})")
        words = at.mark_text(align="left", dx=6) if flat else at.mark_text(dy=-8, fontSize=11)
        layers.append(words.encode(text="ratio:N", **ends_of[3]))
    height = len(labels) * (16 * len(names) + 10) if flat else HEIGHT
    return framed(layers, {"rows": rows}, height, Highlight(names))


def _ends(rows: Sequence[Mapping[str, Any]]) -> list[float]:
    return [row["high"] for row in rows if row["high"] is not None]


def _limit(rows: Sequence[Mapping[str, Any]]) -> float | None:
    return cut_at([row["y"] for row in rows], _ends(rows))


def _offset(names: Sequence[str], flat: bool) -> Any:
    import altair as alt

    if flat:
        return alt.YOffset("series:N", sort=list(names))
    return alt.XOffset("series:N", sort=list(names))


def _rest_words(group: Group, layout: Layout) -> str:
    rest = [name for name in (layout.shape, *layout.rest) if name]
    return f"Of {listed([axis_title(name) for name in rest])} the fastest is drawn." if rest else ""


def choices(group: Group) -> list[str]:
    """The parameters that are no numbers and have few values: what stands side by side."""
    names = [name for name in group.varying if name not in ("protocol", "variant", "store")]
    found = [name for name in names if name in APART or not group.is_number(name)]
    return [name for name in found if 2 <= len(group.values(name)) <= MAX_VALUES]
