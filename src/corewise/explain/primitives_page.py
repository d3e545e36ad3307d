"""The report page of a model's primitives: sentences, a chart, shares of the step, every primitive."""

from typing import Any

from corewise import __version__
from corewise.explain.ceiling_verdicts import PrimitivesAnswer
from corewise.explain.explanation_text import describe_method, label_primitive, suggest_commands, summarize_answer
from corewise.explain.primitives_chart import build_primitives_chart
from corewise.report.report_model import Column, Report, StudyPart, Table
from corewise.study.record import format_utc_now


def build_primitives_report(answer: PrimitivesAnswer) -> Report:
    """Build the report of the primitives."""
    sentences = summarize_answer(answer)
    suggestions = [f"Next: `{command}` ({why})." for command, why in suggest_commands(answer)]
    part = StudyPart(
        key="primitives",
        title=f"{answer.subject}, {', '.join(answer.asked)}",
        question="Where does the time of a step go, and what could it be?",
        answers=[*sentences, *suggestions],
        charts=[build_primitives_chart(answer)],
        tables=[_build_shares_table(answer), _build_primitives_table(answer)],
        method=describe_method(answer),
    )
    return Report(
        title=f"The primitives of {answer.subject}",
        made_at=format_utc_now(),
        corewise_version=__version__,
        summary=sentences[:1],
        studies=[part],
        notices=[f"Disturbed while measuring: {note}." for note in answer.breakdown.notes],
    )


def _build_shares_table(answer: PrimitivesAnswer) -> Table:
    columns = [
        Column(key="category", title="work"),
        Column(key="calls", title="calls", kind="number"),
        Column(key="in_model_s", title="in the model", kind="seconds"),
        Column(key="alone_s", title="alone", kind="seconds"),
        Column(key="share", title="share of the step", kind="percent"),
        Column(key="fraction", title="of the ceiling", kind="percent", hint="share of the attainable rate"),
    ]
    rows: list[list[Any]] = [
        [
            each.share.category,
            each.share.num_calls or None,
            each.share.in_model_s,
            each.share.alone_s,
            None if answer.breakdown.is_doubtful else each.share.of_step,
            each.fraction,
        ]
        for each in answer.shares
    ]
    breakdown = answer.breakdown
    rows += [
        [
            "sum of the primitives",
            None,
            breakdown.in_model_s,
            breakdown.alone_s,
            None if breakdown.is_doubtful else breakdown.in_model_s / breakdown.step_s,
            None,
        ],
        ["the step", None, breakdown.step_s, None, 1.0, None],
    ]
    caption = f"The primitives alone add up to {100 * breakdown.sum_over_step:.0f} % of the step."
    return Table(key="work", title="Where the time goes", columns=columns, rows=rows, caption=caption)


def _build_primitives_table(answer: PrimitivesAnswer) -> Table:
    columns = [
        Column(key="primitive", title="primitive", hint="convolutions as benchdnn writes them"),
        Column(key="work", title="work"), Column(key="phase", title="phase"),
        Column(key="parameters", title="parameters"), Column(key="layout", title="layout"),
        Column(key="dtype", title="number format"), Column(key="calls", title="calls", kind="number"),
        Column(key="in_model_s", title="in the model", kind="seconds", hint="all calls of a step"),
        Column(key="share", title="share", kind="percent"),
        Column(key="alone_s", title="alone", kind="seconds", hint="as many calls"),
        Column(key="best_s", title="alone, best", kind="seconds"),
        Column(key="ratio", title="model/alone", kind="number", hint="above 1: loss inside the model"),
        Column(key="gflops", title="rate", kind="number", unit="Gflop/s"),
        Column(key="gbytes", title="bandwidth", kind="number", unit="GB/s"),
        Column(key="ceiling_s", title="at the ceiling", kind="seconds"),
        Column(key="fraction", title="of the ceiling", kind="percent", hint="above 100 %: from the cache"),
        Column(key="limit", title="limited by"),
        Column(key="cached", title="read from cache", kind="percent", hint="of its inputs, in the model"),
        Column(key="pages", title="new pages", kind="number", hint="per call in the model"),
        Column(key="pages_s", title="for new pages", kind="seconds", hint="share of the time alone"),
        Column(key="error", title="error", kind="number", hint="against the model's own call"),
    ]  # fmt: skip
    rows: list[list[Any]] = []
    for each in answer.primitives:
        own = each.primitive
        share = None if answer.breakdown.is_doubtful else each.share
        rows.append(
            [
                label_primitive(each),
                own.category,
                own.phase,
                own.parameters,
                own.layout,
                own.dtype,
                own.num_calls,
                own.in_model_s,
                share,
                own.alone_s,
                own.alone_best_s,
                own.model_over_alone,
                own.gflop_per_s or None,
                own.gbyte_per_s or None,
                each.ceiling_s,
                each.fraction,
                each.limit or None,
                own.cached_share,
                own.new_pages,
                own.new_pages_s,
                own.check_error,
            ]
        )
    return Table(key="primitives", title="Every primitive", columns=columns, rows=rows)
