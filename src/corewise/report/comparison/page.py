"""A comparison as a report page: what differs first, then the verdicts."""

from collections.abc import Sequence
from typing import Any

from corewise import __version__
from corewise.analysis.comparison.comparison_model import ComparedTrial, OneSidedTrial, SideFacts, StoreComparison
from corewise.report.comparison.charts import build_comparison_charts, describe_time, describe_verdict
from corewise.report.comparison.sentences import (
    describe_counts,
    describe_differences,
    describe_disagreements,
    describe_disturbances,
    describe_rule,
    format_values,
    name_side,
)
from corewise.report.report_model import Column, Report, StudyPart, Table, Unmeasured
from corewise.study.record import format_utc_now
from corewise.text_format import format_count, shorten

_TIMES_HINT = "geometric mean over processes where Welch's t compares them, else their median"
# Each reason lists at most this many points.
_MAX_POINTS = 200


def build_comparison_report(comparison: StoreComparison) -> Report:
    """Build the report of a comparison."""
    a, b = comparison.a, comparison.b
    one_store = a.store == b.store
    return Report(
        title=f"{_name_title(b, one_store)} against {_name_title(a, one_store)}",
        made_at=format_utc_now(),
        corewise_version=__version__,
        summary=[
            *comparison.summary.disturbed,
            comparison.summary.sentence,
            f"A is {name_side(a)}, B is {name_side(b)}.",
        ],
        studies=[_build_differences_part(comparison), _build_trials_part(comparison)],
        notices=[*comparison.summary.notes, *describe_disagreements(comparison.differences), *a.notices, *b.notices],
        sources=list(dict.fromkeys((a.store, b.store))),
    )


def _name_title(side: SideFacts, one_store: bool) -> str:
    return shorten(side.selected if one_store and side.selected else name_side(side))


def _build_differences_part(comparison: StoreComparison) -> StudyPart:
    columns = [
        Column(key="what", title="what"),
        Column(key="a", title="A"),
        Column(key="b", title="B"),
        Column(key="pairs", title="trials that differ", kind="number"),
    ]
    rows: list[list[Any]] = [
        ["store", name_side(comparison.a), name_side(comparison.b), None],
        ["measured", _format_period(comparison.a), _format_period(comparison.b), None],
    ]
    rows += [
        [f"{each.group} {each.name}", format_values(each.a_values), format_values(each.b_values), each.num_pairs]
        for each in comparison.differences
    ]
    table = Table(key="differences", title="A and B", columns=columns, rows=rows)
    return StudyPart(
        key="differences",
        title="What differs",
        question="What differs between A and B besides their times?",
        answers=[describe_differences(comparison.differences)],
        tables=[table],
    )


def _format_period(side: SideFacts) -> str:
    return f"{side.measured_from} to {side.measured_to}" if side.measured_from else ""


def _build_trials_part(comparison: StoreComparison) -> StudyPart:
    return StudyPart(
        key="trials",
        title="Trial by trial",
        question="Which trials are faster or slower in B?",
        answers=[describe_counts(comparison.summary)],
        charts=build_comparison_charts(comparison),
        tables=[_build_trials_table(comparison)],
        unmeasured=[
            *_list_unmeasured("measured in A, failed in B", "failed", comparison.broken),
            *_list_unmeasured("failed in A, measured in B", "failed", comparison.fixed),
            *_list_unmeasured("failed on both sides", "failed", comparison.both_failed),
            *_list_unmeasured("measured in A, not in B", "skipped", comparison.only_a),
            *_list_unmeasured("measured in B, not in A", "skipped", comparison.only_b),
        ],
        method=describe_rule(comparison),
    )


def _build_trials_table(comparison: StoreComparison) -> Table:
    time = describe_time(comparison)
    has_disturbed = bool(comparison.summary.disturbed)
    disturbed = Column(
        key="disturbed", title="disturbed", hint="runs disturbed by other load; ~: the verdict is in doubt"
    )
    columns = [
        Column(key="trial", title="trial"),
        Column(key="verdict", title="B is"),
        *([disturbed] if has_disturbed else []),
        Column(key="ratio", title="ratio", kind="number", hint=f"{time} of B over that of A"),
        Column(key="low", title="from", kind="number", hint="lower end of the interval, for this comparison alone"),
        Column(key="high", title="to", kind="number", hint="upper end of the interval"),
        Column(key="p", title="adjusted p", kind="number", hint="corrected for the number of trials"),
        Column(key="effect", title="Cliff's delta", kind="number", hint="-1: every B below every A; 1: above"),
        Column(key="a", title="A", kind="seconds", hint=_TIMES_HINT),
        Column(key="b", title="B", kind="seconds", hint=_TIMES_HINT),
        Column(key="num_a", title="processes A", kind="number"),
        Column(key="num_b", title="processes B", kind="number"),
        Column(key="why", title="why"),
    ]
    rows = [
        [
            trial.name, describe_verdict(trial), *([_format_disturbances(trial)] if has_disturbed else []),
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
        caption=f"{time.capitalize()} of {format_count(len(rows), 'trial')}, worst first.",
    )


def _format_disturbances(trial: ComparedTrial) -> str | None:
    return describe_disturbances(trial).rpartition(": ")[2] + (" ~" if trial.in_doubt else "") or None


def _list_unmeasured(reason: str, status: Any, trials: Sequence[OneSidedTrial]) -> list[Unmeasured]:
    if not trials:
        return []
    points = [f"{each.name}: {each.reason}" if each.reason else each.name for each in trials[:_MAX_POINTS]]
    return [Unmeasured(status=status, reason=reason, num_trials=len(trials), points=points)]
