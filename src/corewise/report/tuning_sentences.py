"""Sentences and tables about the result of a tuning."""

from collections.abc import Iterator

from corewise.analysis.phrases import describe_mode, describe_workload
from corewise.analysis.tuning_results import StoredTuning, get_ends
from corewise.report.report_model import Column, Table
from corewise.text_format import (
    format_count,
    format_duration,
    format_figure,
    format_list,
    format_memory,
    format_ratio,
    shorten,
)

_MAX_LENGTH = 300


def describe_tuning(tuning: StoredTuning) -> list[str]:
    """Describe the result in sentences: the headline first, then cautions, then details."""
    best, default = tuning.best, tuning.default
    sentences = [_describe_headline(tuning), *describe_cautions(tuning)]
    if best.label != default.label:
        sentences.append(
            f"It gives {format_figure(best.throughput, *get_ends(best.interval))} {tuning.unit}; "
            f"the default gives {format_figure(default.throughput, *get_ends(default.interval))}."
        )
    sentences += _compare_with_hand(tuning)
    if tuning.mode == "infer" and best.latency_s and default.latency_s:
        sentences.append(
            f"A step takes {format_duration(best.latency_s)}; the default's {format_duration(default.latency_s)}."
        )
    if best.memory_bytes and best.label != default.label:
        sentences.append(
            f"It takes {format_memory(best.memory_bytes)}; the default {format_memory(default.memory_bytes)}."
        )
    if tuning.tied:
        sentences.append(
            f"No significant difference from {format_list([shorten(each.label, 120) for each in tuning.tied], 3)}."
        )
    sentences += [shorten(note, _MAX_LENGTH) for note in tuning.notes if note not in tuning.cautions]
    if tuning.command:
        sentences.append(f"Measure it again from a cold start: `{tuning.command}`")
    return sentences


def describe_cautions(tuning: StoredTuning) -> list[str]:
    """Return the notes on disturbed runs as cautions, which the page shows below the headline."""
    notes = [shorten(note, _MAX_LENGTH).removesuffix(".") for note in tuning.cautions]
    return [f"Treat with caution: {note}." for note in notes]


def _describe_headline(tuning: StoredTuning) -> str:
    """Describe the result in one sentence, in the form of a study's headline."""
    low, high = get_ends(tuning.speedup_interval)
    if tuning.verdict != "faster" or low is None or high is None:
        return f"{tuning.title}: {shorten(tuning.headline, _MAX_LENGTH)}"
    interval = f"95 % interval {format_ratio(low).rstrip('×')}–{format_ratio(high)}"
    settings = shorten(tuning.best.label, _MAX_LENGTH)
    speedup = f"{format_ratio(tuning.speedup)} as fast as by default ({interval})"
    return f"{_describe_work(tuning)} is {speedup} with {settings}."


def _describe_work(tuning: StoredTuning) -> str:
    """Describe what was tuned, for example "ResNet-18 inference (batch 8)"; scripts keep their title."""
    workload = tuning.name.removesuffix(f" {tuning.mode}")
    if workload == tuning.name:
        return tuning.title
    options = f" ({', '.join(tuning.asked)})" if tuning.asked else ""
    return shorten(f"{describe_workload(workload)} {describe_mode(tuning.mode)}{options}", _MAX_LENGTH)


def _compare_with_hand(tuning: StoredTuning) -> Iterator[str]:
    if tuning.speedup_over_hand is None or tuning.hand is None or tuning.hand.label == tuning.best.label:
        return
    hand = f"the hand setting ({shorten(tuning.hand.label, 120)})"
    low, high = get_ends(tuning.speedup_over_hand_interval)
    ratio = format_ratio(tuning.speedup_over_hand, low, high)
    who = "The default" if tuning.best.label == tuning.default.label else "The best"
    if low is None or high is None or low <= 1 <= high:
        yield f"No significant difference from {hand}: {who.lower()} is {ratio} as fast."
    else:
        yield f"{who} is {ratio} as fast as {hand}."


def build_tuning_tables(tuning: StoredTuning) -> Iterator[Table]:
    """Build the tables of raced settings and of settings that were not tried."""
    if tuning.tried:
        yield _build_raced_table(tuning)
    if tuning.not_tried:
        yield Table(
            key="not tried",
            title=f"{tuning.work}: not tried",
            columns=(Column(key="what", title="setting"), Column(key="why", title="reason")),
            rows=[(shorten(what, _MAX_LENGTH), shorten(why, _MAX_LENGTH)) for what, why in tuning.not_tried],
        )


def _build_raced_table(tuning: StoredTuning) -> Table:
    columns = (
        Column(key="setting", title="setting"),
        Column(key="outcome", title="outcome", hint="compared with the best setting at that time"),
        Column(key="ratio", title="over the default", kind="number", hint="from short samples of the search"),
        Column(key="latency", title="step", kind="seconds"),
        Column(key="error", title="error", kind="number", hint="against float64"),
        Column(key="reason", title="reason"),
    )
    in_order = sorted(tuning.tried, key=lambda each: -each.ratio)
    rows = [
        (
            shorten(each.label, _MAX_LENGTH),
            each.outcome,
            each.ratio or None,
            (each.latency_s or None) if tuning.mode != "script" else None,
            each.check_error if each.ratio else None,
            shorten(each.reason, _MAX_LENGTH),
        )
        for each in in_order
    ]
    return Table(
        key="raced",
        title=f"{tuning.work}: raced",
        columns=columns,
        rows=rows,
        caption=(f"{format_count(len(rows), 'setting')} compared by short samples; only fresh runs support a claim."),
        best_rows=[i for i, each in enumerate(in_order) if each.label == tuning.best.label],
    )
