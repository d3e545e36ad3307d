"""A paper's curve under one's own, a paper's grid beside one's own: never as if they were the same thing."""

from collections.abc import Mapping, Sequence
from typing import Any

from corewise.report.charts.look import (
    COLOURS,
    GREY,
    SHAPES,
    chart_of,
    framed,
    key_of,
    legend,
    tooltips,
    x_axis,
    y_axis,
)
from corewise.report.charts.whiskers import arrowheads, cut_at, cut_off, cut_words
from corewise.report.charts.words import caption_joined, interval_words
from corewise.report.groups import Group
from corewise.report.model import Chart
from corewise.report.phrases import axis_title, point_words, task_words, value_words
from corewise.report.publications import Line, Publication, Published
from corewise.report.standing import efficiencies_of
from corewise.report.words import fraction, listed, rounded, short, shown

_MOST_LINES = 6  # published ones, beside one's own
_CELL_HEIGHT = 38


def efficiency_overlay(
    group: Group, x: str, best: int, publication: Publication, published: Published
) -> Chart | None:
    """One's own efficiency over threads or processes beside the published one over nodes."""
    found = efficiencies_of(group, (x,))
    own = [i for i in group.along(best, x) if found.base[i] >= 0]
    lines = [line for line in published.lines if line.workload in ("", group.workload)][:_MOST_LINES]
    lines = [line for line in lines if all(isinstance(value, float) and value > 0 for value in line.x)]
    if len(own) < 2 or not lines:
        return None
    rest = {name: value for name, value in group.points[best].items() if name != x}
    mine = f"yours, {axis_title(x)}{': ' + point_words(rest) if rest else ''}"
    rows = [
        {
            "x": group.points[i][x], "y": rounded(float(found.value[i])), "low": rounded(float(found.low[i])),
            "high": rounded(float(found.high[i])), "series": short(mine, 60),
        }
        for i in own
    ]  # fmt: skip
    others = [
        {"x": a, "y": b, "series": _line_label(published, line)}
        for line in lines
        for a, b in zip(line.x, line.y, strict=True)
    ]
    base = value_words(x, group.points[own[0]][x])
    last = own[-1]
    unit = value_words(x, 1)
    return Chart(
        key=key_of(group.study, group.workload_name, group.mode, "published", published.key),
        title=f"{task_words(group)}: efficiency beside a published one",
        spec=_overlay_spec(rows, others, f"{axis_title(x)} (yours) · {published.x} (published)"),
        caption=caption_joined(
            f"Yours: throughput per unit over that of the base, {base}; the unit is {unit} of one machine.",
            f"Published: {published.what}, {publication.citation}, {published.where}; the unit is one of "
            f"its {published.x}, and no intervals were given.",
            "These are not the same quantity: threads share caches and memory, nodes a network. Compare "
            "how early and how fast each falls, not one figure with another.",
            interval_words(group, own),
            cut_words(_limit(rows), _ends(rows)),
        ),
        alt=(
            f"Efficiency of your trials over {axis_title(x)}, down to {fraction(float(found.value[last]))} "
            f"at {value_words(x, group.points[last][x])}, beside published curves over {published.x}: "
            f"{listed([f'{_line_label(published, line)} down to {min(line.y):.2f}' for line in lines], 6)}."
        ),
    )  # fmt: skip


def _line_label(published: Published, line: Line) -> str:
    return short(", ".join(word for word in (line.machine, line.setting) if word) or published.what, 60)


def _ends(rows: Sequence[Mapping[str, Any]]) -> list[float]:
    return [row["high"] or row["y"] for row in rows]


def _limit(rows: Sequence[Mapping[str, Any]]) -> float | None:
    return cut_at([1.0, *(row["y"] for row in rows)], _ends(rows))


def _overlay_spec(rows: list[dict[str, Any]], others: list[dict[str, Any]], x_title: str) -> dict[str, Any]:
    import altair as alt

    names = list(dict.fromkeys(row["series"] for row in (*rows, *others)))
    xs = [row["x"] for row in (*rows, *others)]
    colours = alt.Scale(domain=names, range=list(COLOURS[: len(names)]))
    shapes = alt.Scale(domain=names, range=list(SHAPES[: len(names)]))
    of_series = alt.Color("series:N", title="", scale=colours, legend=legend(names))
    by_shape = alt.Shape("series:N", title="", scale=shapes, legend=legend(names))
    x = x_axis(x_title, xs, log=True)
    limit = _limit(rows)
    y = y_axis("efficiency", [1.0, *(min(end, limit or end) for end in _ends(rows))], log=False, fmt="~r")
    tips = tooltips({"series:N": "", "x:Q": "units", "y:Q": "efficiency"})
    theirs = chart_of("published").encode(x=x, y=y, color=of_series)
    mine = chart_of().encode(x=x, color=of_series)
    whole, beyond = cut_off(mine, limit)
    ideal = chart_of("ideal")
    layers = [
        ideal.mark_line(strokeDash=[5, 4], strokeWidth=1.5, color=GREY).encode(x=x, y=y),
        theirs.mark_line(strokeWidth=1.2, strokeDash=[3, 2], opacity=0.8),
        theirs.mark_point(size=35, opacity=0.8).encode(shape=by_shape, tooltip=tips),
        mine.mark_line(strokeWidth=3).encode(y=y),
        whole.mark_rule(strokeWidth=1.5).encode(y="low:Q", y2="high:Q"),
        *([] if beyond is None else [arrowheads(beyond, flat=False).encode(y="high:Q")]),
        mine.mark_point(filled=True, size=85).encode(y=y, shape=by_shape, tooltip=tips),
    ]
    ends = [{"x": min(xs), "y": 1.0}, {"x": max(xs), "y": 1.0}]
    return framed(layers, {"rows": rows, "published": others, "ideal": ends})


def grid_chart(group: Group, publication: Publication, published: Published) -> Chart | None:
    """A published grid as a heat map, each cell as the speed-up over its first row and column."""
    grid = published.grid
    if grid is None or published.quantity != "time":
        return None
    cells = [
        (row, column, seconds)
        for row, line in zip(grid.rows.values, grid.cells, strict=True)
        for column, seconds in zip(grid.columns.values, line, strict=True)
    ]
    least = (min(grid.rows.values), min(grid.columns.values))
    base = next(seconds for row, column, seconds in cells if (row, column) == least)
    best = min(cells, key=lambda cell: cell[2])
    rows = [
        {
            "x": shown(f"{column:g}"), "y": shown(f"{row:g}"), "gain": rounded(base / seconds, 4),
            "text": f"{base / seconds:.1f}×", "time": f"{seconds:g} {published.unit}", "seconds": seconds,
            "bright": base / seconds > 0.55 * base / best[2], "best": seconds == best[2],
        }
        for row, column, seconds in cells
    ]  # fmt: skip
    where = f"{least[0]:g} × {least[1]:g} ({base:g} {published.unit})"
    return Chart(
        key=key_of(group.study, group.workload_name, group.mode, "published", published.key),
        title=f"Published: {published.what}",
        spec=grid_spec(rows, grid.columns.name, grid.rows.name, published.unit),
        caption=caption_joined(
            f"Speed-up over {where} and time, {publication.citation}, {published.where}.",
            f"{publication.protocol}." if publication.protocol else "",
            "Another machine, and perhaps another workload: the shape of the map is what may be compared.",
        ),
        alt=(
            f"Heat map of published speed-ups with {grid.columns.name} across and {grid.rows.name} upward; "
            f"the highest is {base / best[2]:.1f} at {best[0]:g} × {best[1]:g}."
        ),
    )


def grid_spec(rows: list[dict[str, Any]], x_title: str, y_title: str, unit: str) -> dict[str, Any]:
    """A heat map of speed-ups, numbers growing to the right and upward."""
    import altair as alt

    columns, lines = (sorted({row[name] for row in rows}, key=float) for name in ("x", "y"))
    base = chart_of().encode(
        x=alt.X("x:O", title=x_title, sort=columns, axis=alt.Axis(labelAngle=0)),
        y=alt.Y("y:O", title=y_title, sort=lines, scale=alt.Scale(reverse=True)),
    )
    scale = alt.Scale(scheme="viridis", nice=False)
    bar = alt.Legend(gradientLength=200, title="speed-up")
    tips = tooltips({"x:N": x_title, "y:N": y_title, "gain:Q": "speed-up", "seconds:Q": unit})
    ink = alt.condition("datum.bright", alt.value("black"), alt.value("white"))
    layers = [
        base.mark_rect().encode(color=alt.Color("gain:Q", scale=scale, legend=bar), tooltip=tips),
        base.transform_filter("datum.best").mark_rect(fillOpacity=0, stroke="#D55E00", strokeWidth=3),
        base.mark_text(dy=-6, fontSize=12, fontWeight="bold").encode(text="text:N", color=ink),
        base.mark_text(dy=8, fontSize=10).encode(text="time:N", color=ink),
    ]
    return framed(layers, {"rows": rows}, _CELL_HEIGHT * len(lines))
