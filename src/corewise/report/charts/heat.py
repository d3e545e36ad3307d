"""Heat maps of throughput over two parameters, each cell with its figure and how sure that is."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from corewise.report.charts.look import chart_of, framed, key_of, tooltips
from corewise.report.charts.words import caption_joined
from corewise.report.columns import largest_each
from corewise.report.groups import WIDTHS, Group
from corewise.report.model import Chart
from corewise.report.phrases import axis_title, point_words, rate_unit, task_words
from corewise.report.words import figure, listed, percent, rounded, shown

MAX_SIDE = 16
_MAX_TEXT = 10  # columns; beyond that the figures do not fit their cells
_ROW_HEIGHT = 38


def heat_chart(group: Group, x: str, y: str, highest: Sequence[int]) -> Chart | None:
    """Throughput over two parameters, the fastest over the rest in each cell.

    `highest` is the fastest trial and those not told apart from it: their cells are framed.
    """
    columns, rows_of = group.values(x), group.values(y)
    if not (2 <= len(columns) <= MAX_SIDE and 2 <= len(rows_of) <= MAX_SIDE):
        return None
    cells = [int(i) for i in largest_each(group.together([x, y]), group.rate)]
    if len(cells) < 3 or _is_diagonal(group, x, y, cells):
        return None
    best = highest[0]
    rest = [name for name in group.varying if name not in (x, y)]
    held = f"Of {listed([axis_title(name) for name in rest])} the fastest is drawn." if rest else ""
    empty = len(columns) * len(rows_of) - len(cells)
    left = "Empty cells were not measured." if empty else ""
    unit = rate_unit(group)
    equal = " and those not told apart from it" if len(set(highest) & set(cells)) > 1 else ""
    frames = f"{'frames' if equal else 'frame'}: the highest{equal}"
    at = point_words({name: group.points[best].get(name) for name in (x, y)})
    return Chart(
        key=key_of(group.study, group.workload_name, group.mode, "map", y, x),
        title=f"{task_words(group)}: map of {axis_title(y)} × {axis_title(x)}",
        spec=_heat_spec(group, x, y, cells, highest),
        caption=caption_joined(
            f"Median throughput over runs in {unit}; below it half the {100 * group.confidence:g} % "
            f"interval, in per cent of it; {frames}.",
            held,
            left,
        ),
        alt=(
            f"Heat map of throughput in {unit} with {axis_title(x)} across and {axis_title(y)} upward; the "
            f"highest is {figure(float(group.rate[best]))} at {at}."
        ),
    )


def _is_diagonal(group: Group, x: str, y: str, cells: Sequence[int]) -> bool:
    """True when each row or each column has a single cell: bars tell that better."""
    return any(len({group.columns[name].codes[i] for i in cells}) == len(cells) for name in (x, y))


def _heat_spec(group: Group, x: str, y: str, chosen: Sequence[int], highest: Sequence[int]) -> dict[str, Any]:
    import altair as alt

    rows, framed_ones = [], set(highest)
    top = max(float(group.rate[i]) for i in chosen)
    low = min(float(group.rate[i]) for i in chosen)
    for i in chosen:
        rate, half = float(group.rate[i]), float(group.high[i] - group.low[i]) / 2
        rows.append(
            {
                "x": shown(group.points[i].get(x)), "y": shown(group.points[i].get(y)),
                "rate": rounded(rate), "text": figure(rate),
                "spread": "" if np.isnan(half) else f"±{percent(half / rate)} %",
                "low": rounded(float(group.low[i])), "high": rounded(float(group.high[i])),
                "bright": (rate - low) / (top - low) > 0.55 if top > low else True,
                "best": i in framed_ones,
                "point": point_words(group.points[i]), "runs": int(group.rates.num[i]),
                "trial": group.records[i].trial_id[:8],
            }
        )  # fmt: skip
    columns, lines = ([shown(value) for value in group.values(name)] for name in (x, y))
    unit = rate_unit(group)
    base = chart_of().encode(
        x=alt.X(
            "x:O",
            title=axis_title(x),
            sort=columns,
            scale=alt.Scale(domain=columns),
            axis=alt.Axis(labelAngle=0),
        ),
        y=alt.Y("y:O", title=axis_title(y), sort=lines, scale=alt.Scale(domain=lines, reverse=_upward(y))),
    )
    scale = alt.Scale(scheme="viridis", type="log" if low > 0 and top / low > 20 else "linear", nice=False)
    bar = alt.Legend(orient="top", gradientLength=200, title=unit, format="~s")
    tips = {
        "point:N": "setting", "rate:Q": unit, "low:Q": "interval from", "high:Q": "to",
        "runs:Q": "runs", "trial:N": "trial",
    }  # fmt: skip
    layers = [
        base.mark_rect().encode(color=alt.Color("rate:Q", scale=scale, legend=bar), tooltip=tooltips(tips))
    ]
    frame = base.transform_filter("datum.best").mark_rect(fillOpacity=0, stroke="#D55E00", strokeWidth=3)
    layers.append(frame)
    if len(columns) <= _MAX_TEXT:
        ink = alt.condition("datum.bright", alt.value("black"), alt.value("white"))
        layers.append(base.mark_text(dy=-6, fontSize=12, fontWeight="bold").encode(text="text:N", color=ink))
        layers.append(base.mark_text(dy=8, fontSize=10).encode(text="spread:N", color=ink))
    return framed(layers, {"rows": rows}, _ROW_HEIGHT * len(lines))


def _upward(name: str) -> bool:
    """Numbers grow upward, as on the axis of any chart."""
    return name in (*WIDTHS, "batch", "interop_threads") or name.startswith("args.")
