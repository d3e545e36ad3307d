"""The chart of a model's primitives: time in the model, alone and at the ceiling, side by side."""

from typing import Any

from corewise.explain.ceiling_verdicts import JudgedPrimitive, PrimitivesAnswer
from corewise.explain.explanation_text import format_share, label_primitive
from corewise.report.charts.chart_theme import (
    COLOURS,
    build_key,
    build_layered_spec,
    build_legend,
    build_tooltips,
    create_chart,
)
from corewise.report.report_model import Chart
from corewise.text_format import format_count, format_duration, round_significant, shorten

MAX_PRIMITIVES = 16
IN_MODEL, ALONE, CEILING = "in the model", "alone", "at the ceiling"
_BAR_HEIGHT = 11
_LABEL_CHARACTERS = 52


def build_primitives_chart(answer: PrimitivesAnswer) -> Chart:
    """Build a group of bars for each of the most expensive primitives."""
    drawn = answer.primitives[:MAX_PRIMITIVES]
    has_ceilings = any(each.ceiling_s is not None for each in drawn)
    series = [IN_MODEL, ALONE, *([CEILING] if has_ceilings else [])]
    rows = [row for number, each in enumerate(drawn) for row in _build_rows(answer, number, each, series)]
    covered = sum(each.share for each in drawn)
    left = len(answer.primitives) - len(drawn)
    first = drawn[0] if drawn else None
    return Chart(
        key=build_key("primitives", answer.subject),
        title=f"{answer.subject}: the most expensive primitives",
        spec=_build_spec(rows, series, len(drawn)),
        caption=(
            f"Time of all calls of a primitive in one step of {format_duration(answer.breakdown.step_s)}: in "
            "the "
            "model, alone on inputs of the same shape, layout and number format"
            f"{', and at the ceiling' if has_ceilings else ''}. "
            f"The {format_count(len(drawn), 'primitive')} shown are "
            f"{'more than' if answer.breakdown.is_doubtful else format_share(covered) + ' of'} the step"
            f"{', which makes them doubtful' if answer.breakdown.is_doubtful else ''}"
            f"{f'; {left:,} shorter ones are not shown' if left else ''}."
        ),
        alt=(
            f"Bars of time for {format_count(len(drawn), 'primitive')}"
            + (
                f"; the longest is {label_primitive(first)} with {format_duration(first.primitive.in_model_s)}."
                if first
                else "."
            )
        ),
    )


def _build_rows(
    answer: PrimitivesAnswer, number: int, each: JudgedPrimitive, series: list[str]
) -> list[dict[str, Any]]:
    own = each.primitive
    times_s = {IN_MODEL: own.in_model_s, ALONE: own.alone_s, CEILING: each.ceiling_s}
    name = f"{shorten(label_primitive(each), _LABEL_CHARACTERS)} ×{own.num_calls:.3g}"
    taken = [shorten(label_primitive(other), _LABEL_CHARACTERS) for other in answer.primitives[:number]]
    if shorten(label_primitive(each), _LABEL_CHARACTERS) in taken:
        name += f" ({own.phase}{', ' + own.parameters if own.parameters else ''}, {number + 1})"
    return [
        {
            "name": name, "series": which, "ms": round_significant(1e3 * took_s),
            "ratio": round_significant(own.model_over_alone or 0.0),
            "share": round_significant(100 * each.share), "work": own.category,
        }
        for which in series
        if (took_s := times_s[which]) is not None
    ]  # fmt: skip


def _build_spec(rows: list[dict[str, Any]], series: list[str], num_drawn: int) -> dict[str, Any]:
    import altair as alt

    names = list(dict.fromkeys(row["name"] for row in rows))
    colours = [COLOURS[0], COLOURS[4], COLOURS[6]][: len(series)]
    scale = alt.Scale(domain=series, range=colours)
    tips = {
        "name:N": "primitive", "series:N": "time", "ms:Q": "ms per step", "share:Q": "% of the step",
        "ratio:Q": "model/alone", "work:N": "work",
    }  # fmt: skip
    bars = (
        create_chart()
        .mark_bar()
        .encode(
            y=alt.Y("name:N", title="", sort=names, axis=alt.Axis(labelLimit=420, labelOverlap=False)),
            yOffset=alt.YOffset("series:N", sort=series),
            x=alt.X("ms:Q", title="ms per step"),
            color=alt.Color("series:N", title="", scale=scale, legend=build_legend(series)),
            tooltip=build_tooltips(tips),
        )
    )
    height = max(120, num_drawn * (len(series) * _BAR_HEIGHT + 8))
    return build_layered_spec([bars], {"rows": rows}, height)
