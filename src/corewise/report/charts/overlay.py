"""Published curves and grids next to one's own results, labelled as different quantities."""

from collections.abc import Mapping, Sequence
from typing import Any

from corewise.analysis.efficiency import compute_efficiencies
from corewise.analysis.groups import Group
from corewise.analysis.phrases import describe_point, describe_task, describe_value, format_axis_title
from corewise.report.charts.chart_labels import describe_intervals, join_sentences
from corewise.report.charts.chart_theme import (
    COLOURS,
    GREY,
    SHAPES,
    build_key,
    build_layered_spec,
    build_legend,
    build_tooltips,
    build_x_axis,
    build_y_axis,
    create_chart,
)
from corewise.report.charts.whiskers import build_arrowheads, describe_cut_whiskers, find_whisker_limit, split_at_limit
from corewise.report.publications.published_figures import Publication, Published, PublishedLine
from corewise.report.report_model import Chart
from corewise.text_format import format_fraction, format_list, format_value, round_significant, shorten

_MAX_PUBLISHED_LINES = 6
_CELL_HEIGHT = 38


def build_efficiency_overlay(
    group: Group, x: str, best: int, publication: Publication, published: Published
) -> Chart | None:
    """Build one's own efficiency over nodes, processes or threads next to the published one over nodes."""
    efficiencies = compute_efficiencies(group, (x,))
    own = [i for i in group.find_trials_along(best, x) if efficiencies.base[i] >= 0]
    lines = [line for line in published.lines if line.workload in ("", group.workload)][:_MAX_PUBLISHED_LINES]
    lines = [line for line in lines if all(isinstance(value, float) and value > 0 for value in line.x)]
    if len(own) < 2 or not lines:
        return None
    rest = {name: value for name, value in group.points[best].items() if name != x}
    mine = f"yours, {format_axis_title(x)}{': ' + describe_point(rest) if rest else ''}"
    rows = [
        {
            "x": group.points[i][x],
            "y": round_significant(float(efficiencies.value[i])),
            "low": round_significant(float(efficiencies.low[i])),
            "high": round_significant(float(efficiencies.high[i])),
            "series": shorten(mine, 60),
        }
        for i in own
    ]
    others = [
        {"x": a, "y": b, "series": _label_line(published, line)}
        for line in lines
        for a, b in zip(line.x, line.y, strict=True)
    ]
    base = describe_value(x, group.points[own[0]][x])
    last = own[-1]
    unit = describe_value(x, 1)
    is_same = x == published.x
    curves = [f"{_label_line(published, line)} down to {min(line.y):.2f}" for line in lines]
    return Chart(
        key=build_key(group.study, group.workload_name, group.mode, "published", published.key),
        title=f"{describe_task(group)}: efficiency and published efficiency",
        spec=_build_overlay_spec(rows, others, _title_x(x, published)),
        caption=join_sentences(
            f"Yours: throughput per unit over that of the base, {base}; the unit is {unit}"
            + (f"{'' if is_same else ' of one machine'}."),
            f"Published: {published.what}, {publication.citation}, {published.where}; the unit is one of "
            f"its {published.x}, and no intervals were given.",
            (
                ""
                if is_same
                else "These are different quantities: threads share caches and memory, nodes share a network. "
            )
            + "Compare how early and how fast each curve falls, not single figures.",
            describe_intervals(group, own),
            describe_cut_whiskers(_find_whisker_limit(rows), _list_interval_ends(rows)),
        ),
        alt=(
            f"Efficiency of your trials over {format_axis_title(x)}, down to "
            f"{format_fraction(float(efficiencies.value[last]))} "
            f"at {describe_value(x, group.points[last][x])}, and published curves over {published.x}: "
            f"{format_list(curves, 6)}."
        ),
    )


def _title_x(x: str, published: Published) -> str:
    if x == published.x:
        return format_axis_title(x)
    return f"{format_axis_title(x)} (yours) · {published.x} (published)"


def _label_line(published: Published, line: PublishedLine) -> str:
    return shorten(", ".join(part for part in (line.machine, line.setting) if part) or published.what, 60)


def _list_interval_ends(rows: Sequence[Mapping[str, Any]]) -> list[float]:
    return [row["high"] or row["y"] for row in rows]


def _find_whisker_limit(rows: Sequence[Mapping[str, Any]]) -> float | None:
    return find_whisker_limit([1.0, *(row["y"] for row in rows)], _list_interval_ends(rows))


def _build_overlay_spec(rows: list[dict[str, Any]], others: list[dict[str, Any]], x_title: str) -> dict[str, Any]:
    import altair as alt

    names = list(dict.fromkeys(row["series"] for row in (*rows, *others)))
    xs = [row["x"] for row in (*rows, *others)]
    colours = alt.Scale(domain=names, range=list(COLOURS[: len(names)]))
    shapes = alt.Scale(domain=names, range=list(SHAPES[: len(names)]))
    of_series = alt.Color("series:N", title="", scale=colours, legend=build_legend(names))
    by_shape = alt.Shape("series:N", title="", scale=shapes, legend=build_legend(names))
    x = build_x_axis(x_title, xs, log=True)
    limit = _find_whisker_limit(rows)
    y = build_y_axis(
        "efficiency", [1.0, *(min(end, limit or end) for end in _list_interval_ends(rows))], log=False, fmt="~r"
    )
    tips = build_tooltips({"series:N": "", "x:Q": "units", "y:Q": "efficiency"})
    theirs = create_chart("published").encode(x=x, y=y, color=of_series)
    mine = create_chart().encode(x=x, color=of_series)
    whole, beyond = split_at_limit(mine, limit)
    ideal = create_chart("ideal")
    layers = [
        ideal.mark_line(strokeDash=[5, 4], strokeWidth=1.5, color=GREY).encode(x=x, y=y),
        theirs.mark_line(strokeWidth=1.2, strokeDash=[3, 2], opacity=0.8),
        theirs.mark_point(size=35, opacity=0.8).encode(shape=by_shape, tooltip=tips),
        mine.mark_line(strokeWidth=3).encode(y=y),
        whole.mark_rule(strokeWidth=1.5).encode(y="low:Q", y2="high:Q"),
        *([] if beyond is None else [build_arrowheads(beyond, flat=False).encode(y="high:Q")]),
        mine.mark_point(filled=True, size=85).encode(y=y, shape=by_shape, tooltip=tips),
    ]
    ends = [{"x": min(xs), "y": 1.0}, {"x": max(xs), "y": 1.0}]
    return build_layered_spec(layers, {"rows": rows, "published": others, "ideal": ends})


def build_grid_chart(group: Group, publication: Publication, published: Published) -> Chart | None:
    """Build a published grid as a heat map of speed-ups over its first row and column."""
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
            "x": format_value(f"{column:g}"), "y": format_value(f"{row:g}"),
            "gain": round_significant(base / seconds, 4), "text": f"{base / seconds:.1f}×",
            "time": f"{seconds:g} {published.unit}", "seconds": seconds,
            "bright": base / seconds > 0.55 * base / best[2], "best": seconds == best[2],
        }
        for row, column, seconds in cells
    ]  # fmt: skip
    where = f"{least[0]:g} × {least[1]:g} ({base:g} {published.unit})"
    return Chart(
        key=build_key(group.study, group.workload_name, group.mode, "published", published.key),
        title=f"Published: {published.what}",
        spec=build_grid_spec(rows, grid.columns.name, grid.rows.name, published.unit),
        caption=join_sentences(
            f"Speed-up over {where} and time, {publication.citation}, {published.where}.",
            f"{publication.protocol}." if publication.protocol else "",
            "The machine and perhaps the workload differ; compare only the shape of the map.",
        ),
        alt=(
            f"Heat map of published speed-ups with {grid.columns.name} across and {grid.rows.name} upward; "
            f"the highest is {base / best[2]:.1f} at {best[0]:g} × {best[1]:g}."
        ),
    )


def build_grid_spec(rows: list[dict[str, Any]], x_title: str, y_title: str, unit: str) -> dict[str, Any]:
    """Build a heat map of speed-ups; numbers grow to the right and upward."""
    import altair as alt

    columns, lines = (sorted({row[name] for row in rows}, key=float) for name in ("x", "y"))
    base = create_chart().encode(
        x=alt.X("x:O", title=x_title, sort=columns, axis=alt.Axis(labelAngle=0)),
        y=alt.Y("y:O", title=y_title, sort=lines, scale=alt.Scale(reverse=True)),
    )
    scale = alt.Scale(scheme="viridis", nice=False)
    bar = alt.Legend(gradientLength=200, title="speed-up")
    tips = build_tooltips({"x:N": x_title, "y:N": y_title, "gain:Q": "speed-up", "seconds:Q": unit})
    ink = alt.condition("datum.bright", alt.value("black"), alt.value("white"))
    layers = [
        base.mark_rect().encode(color=alt.Color("gain:Q", scale=scale, legend=bar), tooltip=tips),
        base.transform_filter("datum.best").mark_rect(fillOpacity=0, stroke="#D55E00", strokeWidth=3),
        base.mark_text(dy=-6, fontSize=12, fontWeight="bold").encode(text="text:N", color=ink),
        base.mark_text(dy=8, fontSize=10).encode(text="time:N", color=ink),
    ]
    return build_layered_spec(layers, {"rows": rows}, _CELL_HEIGHT * len(lines))
