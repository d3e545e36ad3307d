"""A comparison as the page that reports use: what differs first, then the verdicts."""

from collections.abc import Sequence
from typing import Any

from corewise import __version__
from corewise.comparison.charts import charts_of, standing, time_word
from corewise.comparison.model import ComparedTrial, Comparison, OneSided, SideFacts
from corewise.comparison.words import (
    counts_words,
    difference_words,
    disturbed_words,
    rule_words,
    side_name,
    values_words,
    within_words,
)
from corewise.report.model import Column, Report, StudyPart, Table, Unmeasured
from corewise.report.words import counted, short
from corewise.spec.record import utc_now

_TIMES_HINT = "geometric mean over processes where Welch's t compares them, else their median"
_MAX_POINTS = 200  # named for each reason


def as_report(comparison: Comparison) -> Report:
    """What the page shows."""
    a, b = comparison.a, comparison.b
    one_store = a.store == b.store
    return Report(
        title=f"{_title(b, one_store)} against {_title(a, one_store)}",
        made_at=utc_now(),
        corewise_version=__version__,
        summary=[
            *comparison.summary.disturbed,
            comparison.summary.sentence,
            f"A is {side_name(a)}, B is {side_name(b)}.",
        ],
        studies=[_differences_part(comparison), _trials_part(comparison)],
        notices=[
            *comparison.summary.notes,
            *within_words(comparison.differences),
            *a.notices,
            *b.notices,
        ],
        sources=list(dict.fromkeys((a.store, b.store))),
    )


def _title(side: SideFacts, one_store: bool) -> str:
    return short(side.selected if one_store and side.selected else side_name(side))


def _differences_part(comparison: Comparison) -> StudyPart:
    columns = [
        Column(key="what", title="what"),
        Column(key="a", title="A"),
        Column(key="b", title="B"),
        Column(key="pairs", title="trials that differ", kind="number"),
    ]
    rows: list[list[Any]] = [
        ["store", side_name(comparison.a), side_name(comparison.b), None],
        ["measured", _when(comparison.a), _when(comparison.b), None],
    ]
    rows += [
        [
            f"{each.group} {each.name}",
            values_words(each.a_values),
            values_words(each.b_values),
            each.num_pairs,
        ]
        for each in comparison.differences
    ]
    table = Table(key="differences", title="A and B", columns=columns, rows=rows)
    return StudyPart(
        key="differences",
        title="What differs",
        question="What differs between A and B besides their times?",
        answers=[difference_words(comparison.differences)],
        tables=[table],
    )


def _when(side: SideFacts) -> str:
    return f"{side.measured_from} to {side.measured_to}" if side.measured_from else ""


def _trials_part(comparison: Comparison) -> StudyPart:
    return StudyPart(
        key="trials",
        title="Trial by trial",
        question="Which trials are faster or slower in B?",
        answers=[counts_words(comparison.summary)],
        charts=charts_of(comparison),
        tables=[_trials_table(comparison)],
        unmeasured=[
            *_unmeasured("measured in A, failed in B", "failed", comparison.broken),
            *_unmeasured("failed in A, measured in B", "failed", comparison.fixed),
            *_unmeasured("failed on both sides", "failed", comparison.both_failed),
            *_unmeasured("measured in A, not in B", "skipped", comparison.only_a),
            *_unmeasured("measured in B, not in A", "skipped", comparison.only_b),
        ],
        method=rule_words(comparison),
    )


def _trials_table(comparison: Comparison) -> Table:
    time = time_word(comparison)
    has_disturbed = bool(comparison.summary.disturbed)
    disturbed = Column(
        key="disturbed", title="disturbed", hint="runs that others disturbed; ~: in doubt for it"
    )
    columns = [
        Column(key="trial", title="trial"),
        Column(key="verdict", title="B is"),
        *([disturbed] if has_disturbed else []),
        Column(key="ratio", title="ratio", kind="number", hint=f"{time} of B over that of A"),
        Column(key="low", title="from", kind="number", hint="lower end of the interval, of this trial alone"),
        Column(key="high", title="to", kind="number", hint="upper end of the interval"),
        Column(key="p", title="adjusted p", kind="number", hint="corrected for the number of trials"),
        Column(
            key="effect", title="Cliff's delta", kind="number", hint="-1: every B below every A; 1: above"
        ),
        Column(key="a", title="A", kind="seconds", hint=_TIMES_HINT),
        Column(key="b", title="B", kind="seconds", hint=_TIMES_HINT),
        Column(key="num_a", title="processes A", kind="number"),
        Column(key="num_b", title="processes B", kind="number"),
        Column(key="why", title="why"),
    ]
    rows = [
        [
            trial.name, standing(trial), *([_disturbed(trial)] if has_disturbed else []),
            trial.ratio, trial.low, trial.high, trial.adjusted_p_value, trial.effect_size,
            trial.a_time_s, trial.b_time_s, trial.a_num_processes,
            trial.b_num_processes, trial.reason,
        ]
        for trial in comparison.trials
    ]  # fmt: skip
    return Table(
        key="verdicts",
        title="Verdicts",
        columns=columns,
        rows=rows,
        caption=f"{time.capitalize()} of {counted(len(rows), 'trial')}, worst first.",
    )


def _disturbed(trial: ComparedTrial) -> str | None:
    return disturbed_words(trial).rpartition(": ")[2] + (" ~" if trial.in_doubt else "") or None


def _unmeasured(what: str, status: Any, trials: Sequence[OneSided]) -> list[Unmeasured]:
    if not trials:
        return []
    points = [f"{each.name}: {each.reason}" if each.reason else each.name for each in trials[:_MAX_POINTS]]
    return [Unmeasured(status=status, reason=what, num_trials=len(trials), points=points)]
