"""The chart of a model's primitives: time in the model, alone and at the ceiling, side by side."""

from typing import Any

from corewise.breakdown.judged import Answer, JudgedPrimitive
from corewise.breakdown.words import label, share_words
from corewise.report.charts.look import COLOURS, chart_of, framed, key_of, legend, tooltips
from corewise.report.model import Chart
from corewise.report.words import counted, duration, rounded, short

MAX_PRIMITIVES = 16
IN_MODEL, ALONE, CEILING = "in the model", "alone", "at the ceiling"
_BAR_HEIGHT = 11
_LABEL_LETTERS = 52


def primitives_chart(answer: Answer) -> Chart:
    """A group of bars for each of the costliest primitives."""
    drawn = answer.primitives[:MAX_PRIMITIVES]
    has_ceilings = any(each.ceiling_s is not None for each in drawn)
    series = [IN_MODEL, ALONE, *([CEILING] if has_ceilings else [])]
    rows = [row for number, each in enumerate(drawn) for row in _rows(answer, number, each, series)]
    covered = sum(each.share for each in drawn)
    left = len(answer.primitives) - len(drawn)
    first = drawn[0] if drawn else None
    return Chart(
        key=key_of("primitives", answer.subject),
        title=f"{answer.subject}: the costliest primitives",
        spec=_spec(rows, series, len(drawn)),
        caption=(
            f"Time of all calls of a primitive in one step of {duration(answer.breakdown.step_s)}: in the "
            "model, alone on inputs of the same shape, layout and number format"
            f"{', and at the ceiling' if has_ceilings else ''}. "
            f"The {counted(len(drawn), 'primitive')} drawn are "
            f"{'more than' if answer.breakdown.is_doubtful else share_words(covered) + ' of'} the step"
            f"{', which makes them doubtful' if answer.breakdown.is_doubtful else ''}"
            f"{f'; {left:,} shorter ones are not drawn' if left else ''}."
        ),
        alt=(
            f"Bars of time for {counted(len(drawn), 'primitive')}"
            + (
                f"; the longest is {label(first)} with {duration(first.primitive.in_model_s)}."
                if first
                else "."
            )
        ),
    )


def _rows(answer: Answer, number: int, each: JudgedPrimitive, series: list[str]) -> list[dict[str, Any]]:
    own = each.primitive
    times_s = {IN_MODEL: own.in_model_s, ALONE: own.alone_s, CEILING: each.ceiling_s}
    name = f"{short(label(each), _LABEL_LETTERS)} ×{own.num_calls:.3g}"
    taken = [short(label(other), _LABEL_LETTERS) for other in answer.primitives[:number]]
    if short(label(each), _LABEL_LETTERS) in taken:  # told apart by what the label leaves out
        name += f" ({own.phase}{', ' + own.parameters if own.parameters else ''}, {number + 1})"
    return [
        {
            "name": name, "series": which, "ms": rounded(1e3 * took_s),
            "ratio": rounded(own.model_over_alone or 0.0), "share": rounded(100 * each.share),
            "work": own.category,
        }
        for which in series
        if (took_s := times_s[which]) is not None
    ]  # fmt: skip


def _spec(rows: list[dict[str, Any]], series: list[str], num_drawn: int) -> dict[str, Any]:
    import altair as alt

    names = list(dict.fromkeys(row["name"] for row in rows))
    colours = [COLOURS[0], COLOURS[4], COLOURS[6]][: len(series)]
    scale = alt.Scale(domain=series, range=colours)
    tips = {
        "name:N": "primitive", "series:N": "time", "ms:Q": "ms a step", "share:Q": "% of the step",
        "ratio:Q": "model/alone", "work:N": "work",
    }  # fmt: skip
    bars = (
        chart_of()
        .mark_bar()
        .encode(
            y=alt.Y("name:N", title="", sort=names, axis=alt.Axis(labelLimit=420, labelOverlap=False)),
            yOffset=alt.YOffset("series:N", sort=series),
            x=alt.X("ms:Q", title="ms in a step"),
            color=alt.Color("series:N", title="", scale=scale, legend=legend(series)),
            tooltip=tooltips(tips),
        )
    )
    height = max(120, num_drawn * (len(series) * _BAR_HEIGHT + 8))
    return framed([bars], {"rows": rows}, height)
