"""Heat maps of throughput over two parameters, with the figure and its interval in each cell."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from corewise.analysis.columns import find_largest_each
from corewise.analysis.groups import WIDTHS, Group
from corewise.analysis.phrases import describe_point, describe_task, format_axis_title, name_rate_unit
from corewise.report.charts.chart_labels import join_sentences
from corewise.report.charts.chart_theme import build_key, build_layered_spec, build_tooltips, create_chart
from corewise.report.report_model import Chart
from corewise.text_format import format_figure, format_list, format_percent, format_value, round_significant

MAX_SIDE = 16
# With more columns, the figures do not fit into their cells.
_MAX_TEXT_COLUMNS = 10
_ROW_HEIGHT = 38


def build_heat_chart(group: Group, x: str, y: str, highest: Sequence[int]) -> Chart | None:
    """Build a heat map of throughput; each cell holds the fastest over all other parameters.

    `highest` lists the fastest trial and those without a significant difference from it; these are framed.
    """
    columns, rows_of = group.list_values(x), group.list_values(y)
    if not (2 <= len(columns) <= MAX_SIDE and 2 <= len(rows_of) <= MAX_SIDE):
        return None
    cells = [int(i) for i in find_largest_each(group.index_by([x, y]), group.rate)]
    if len(cells) < 3 or _is_diagonal(group, x, y, cells):
        return None
    best = highest[0]
    rest = [name for name in group.varying if name not in (x, y)]
    held = f"Showing the fastest over {format_list([format_axis_title(name) for name in rest])}." if rest else ""
    empty = len(columns) * len(rows_of) - len(cells)
    left = "Empty cells were not measured." if empty else ""
    unit = name_rate_unit(group)
    equal = " and those without a significant difference from it" if len(set(highest) & set(cells)) > 1 else ""
    frames = f"{'frames' if equal else 'frame'}: the highest{equal}"
    at = describe_point({name: group.points[best].get(name) for name in (x, y)})
    return Chart(
        key=build_key(group.study, group.workload_name, group.mode, "map", y, x),
        title=f"{describe_task(group)}: map of {format_axis_title(y)} × {format_axis_title(x)}",
        spec=_build_heat_spec(group, x, y, cells, highest),
        caption=join_sentences(
            f"Median throughput over runs in {unit}; below it half the {100 * group.confidence:g} % "
            f"interval, in per cent of it; {frames}.",
            held,
            left,
        ),
        alt=(
            f"Heat map of throughput in {unit} with {format_axis_title(x)} across and {format_axis_title(y)} "
            "upward; the "
            f"highest is {format_figure(float(group.rate[best]))} at {at}."
        ),
    )


def _is_diagonal(group: Group, x: str, y: str, cells: Sequence[int]) -> bool:
    """Return True if each row or column has a single cell; bars show that better."""
    return any(len({group.columns[name].codes[i] for i in cells}) == len(cells) for name in (x, y))


def _build_heat_spec(group: Group, x: str, y: str, chosen: Sequence[int], highest: Sequence[int]) -> dict[str, Any]:
    import altair as alt

    rows, framed_ones = [], set(highest)
    top = max(float(group.rate[i]) for i in chosen)
    low = min(float(group.rate[i]) for i in chosen)
    for i in chosen:
        rate, half = float(group.rate[i]), float(group.high[i] - group.low[i]) / 2
        rows.append(
            {
                "x": format_value(group.points[i].get(x)), "y": format_value(group.points[i].get(y)),
                "rate": round_significant(rate), "text": format_figure(rate),
                "spread": "" if np.isnan(half) else f"±{format_percent(half / rate)} %",
                "low": round_significant(float(group.low[i])),
                "high": round_significant(float(group.high[i])),
                "bright": (rate - low) / (top - low) > 0.55 if top > low else True,
                "best": i in framed_ones, "point": describe_point(group.points[i]),
                "runs": int(group.rates.num[i]), "trial": group.records[i].trial_id[:8],
            }
        )  # fmt: skip
    columns, lines = ([format_value(value) for value in group.list_values(name)] for name in (x, y))
    unit = name_rate_unit(group)
    base = create_chart().encode(
        x=alt.X(
            "x:O",
            title=format_axis_title(x),
            sort=columns,
            scale=alt.Scale(domain=columns),
            axis=alt.Axis(labelAngle=0),
        ),
        y=alt.Y("y:O", title=format_axis_title(y), sort=lines, scale=alt.Scale(domain=lines, reverse=_is_upward(y))),
    )
    scale = alt.Scale(scheme="viridis", type="log" if low > 0 and top / low > 20 else "linear", nice=False)
    bar = alt.Legend(orient="top", gradientLength=200, title=unit, format="~s")
    tips = {
        "point:N": "setting", "rate:Q": unit, "low:Q": "interval from", "high:Q": "to",
        "runs:Q": "runs", "trial:N": "trial",
    }  # fmt: skip
    layers = [base.mark_rect().encode(color=alt.Color("rate:Q", scale=scale, legend=bar), tooltip=build_tooltips(tips))]
    frame = base.transform_filter("datum.best").mark_rect(fillOpacity=0, stroke="#D55E00", strokeWidth=3)
    layers.append(frame)
    if len(columns) <= _MAX_TEXT_COLUMNS:
        ink = alt.condition("datum.bright", alt.value("black"), alt.value("white"))
        layers.append(base.mark_text(dy=-6, fontSize=12, fontWeight="bold").encode(text="text:N", color=ink))
        layers.append(base.mark_text(dy=8, fontSize=10).encode(text="spread:N", color=ink))
    return build_layered_spec(layers, {"rows": rows}, _ROW_HEIGHT * len(lines))


def _is_upward(name: str) -> bool:
    """Return True for numbers, which grow upward as on any axis."""
    return name in (*WIDTHS, "batch", "interop_threads") or name.startswith("args.")
