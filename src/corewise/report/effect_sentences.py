"""Sentences about one parameter's effect: the fastest trial against trials that differ in one step."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from corewise.analysis.effects import (
    choose_pair_values,
    choose_reference,
    find_pairs,
    find_single_process_peer,
    find_trials_like,
    find_width_of_diminishing_returns,
)
from corewise.analysis.efficiency import compute_efficiencies
from corewise.analysis.groups import CONDITION_COLUMNS, WIDTHS, Group
from corewise.analysis.phrases import describe_point, describe_shape, describe_task, describe_value
from corewise.analysis.ranking import TrialRanking
from corewise.analysis.ratios import estimate_ratio, is_significant, unpack_estimate
from corewise.text_format import format_count, format_fraction, format_memory, format_ratio, format_share

_NOT_EFFECTS = (*WIDTHS, *CONDITION_COLUMNS)
_MAX_EFFECTS = 5
# A sentence lists at most this many parameters of the fastest trial.
_MAX_NAMES = 3
# A parameter with more values than this is left to the charts.
_MAX_LINE_VALUES = 30


@dataclass(frozen=True)
class _Line:
    """Trials that differ in threads or in processes only, narrowest first; `top` is the fastest."""

    name: str
    trials: Sequence[int]
    top: int
    width: Mapping[int, int]

    def describe(self, i: int) -> str:
        return describe_value(self.name, self.width[i])


def _find_lines(group: Group, best: int) -> Iterator[_Line]:
    """Yield the lines that are long enough to describe; trials with a single run are left out."""
    for name in ("threads", "processes"):
        line = [i for i in group.find_trials_along(best, name) if group.rates.num[i] > 1]
        if name in group.varying and group.is_number(name) and 2 <= len(line) <= _MAX_LINE_VALUES:
            yield _Line(name, line, best, {i: int(group.points[i][name]) for i in line})


def describe_diminishing_returns(group: Group, standing: TrialRanking, best: int) -> str:
    """Say from which width on more threads or processes stop paying off, or that this is unknown."""
    for line in _find_lines(group, best):
        return _describe_line_end(group, standing, line)
    return ""


def _describe_line_end(group: Group, standing: TrialRanking, line: _Line) -> str:
    top, describe, task_text = line.top, line.describe, describe_task(group)
    at = _describe_rest(group, top, line.name).removeprefix(", ")
    at = f"{at}, " if at else ""
    knee = find_width_of_diminishing_returns(group, line.trials, line.width)
    equal = [i for i in line.trials if line.width[i] < line.width[top] and standing.may_equal_best[i]]
    if equal and (knee is None or line.width[equal[0]] <= knee):
        them = "it" if line.width[equal[0]] == 1 else "them"
        reason = f"{describe(top)} show no significant difference from {them}"
        return f"{at}no gain is shown for {task_text} beyond {describe(equal[0])}: {reason}."
    if knee is not None:
        base = line.trials[0]
        fair = f"what {describe(base)} gives" if line.width[base] == 1 else f"its share in {describe(base)}"
        reason = f"on average an added one gives less than half of {fair}"
        return f"{at}{task_text} gains little beyond {describe_value(line.name, knee)}: {reason}."
    wider = [i for i in line.trials if line.width[i] > line.width[top]]
    if not wider:
        reason = f"{describe(top)}, the most tried, are fastest"
        return f"{at}where more {line.name} stop helping {task_text} is unknown: {reason}."
    ratio = estimate_ratio(group, wider[-1], top)
    if is_significant(ratio) and not standing.may_equal_best[wider[-1]]:
        reason = (
            f"{describe(wider[-1])} give {format_share(*unpack_estimate(ratio))} of the throughput of {describe(top)}"
        )
        return f"{at}{task_text} is slower with more than {describe(top)}: {reason}."
    return f"{at}no gain is shown for {task_text} beyond {describe(top)}, up to {describe(wider[-1])}."


def describe_scaling(group: Group, standing: TrialRanking, best: int) -> Iterator[str]:
    """Describe how throughput grows with threads or processes, all else as in the fastest trial."""
    for line in _find_lines(group, best):
        yield from _describe_growth(group, standing, line)


def _describe_growth(group: Group, standing: TrialRanking, line: _Line) -> Iterator[str]:
    base, top, describe = line.trials[0], line.top, line.describe
    if base == top:
        return
    speedup, at = estimate_ratio(group, top, base), _describe_rest(group, top, line.name)
    ratio_text = format_ratio(*unpack_estimate(speedup))
    if not is_significant(speedup):
        yield (
            f"{start_with_capital(describe(top))} and {describe(base)} show no significant difference: "
            f"{ratio_text}{at}."
        )
        return
    efficiency = compute_efficiencies(group, (line.name,))
    per_unit = format_fraction(*(float(x[top]) for x in (efficiency.value, efficiency.low, efficiency.high)))
    yield (
        f"{start_with_capital(describe(top))} are {ratio_text} as fast as {describe(base)}, an efficiency "
        f"of {per_unit}{at}{_note_uncorrected(standing, base, top)}."
    )
    narrower = [i for i in line.trials if base != i and line.width[i] < line.width[top]]
    if narrower:
        ratio, next_to = estimate_ratio(group, narrower[-1], top), describe(narrower[-1])
        if is_significant(ratio):
            yield (
                f"{start_with_capital(next_to)} give {format_share(*unpack_estimate(ratio))} of the "
                f"throughput of {describe(top)}{at}{_note_uncorrected(standing, narrower[-1], top)}."
            )


def _note_uncorrected(standing: TrialRanking, other: int, best: int) -> str:
    """Note that a gain holds for one comparison, but not after correction for all of them."""
    if not standing.may_equal_best[other]:
        return ""
    num = len(standing.tasks[standing.find_task(best)])
    return f"; this holds for the one comparison, not after correction for all {num:,} settings"


def compare_shapes(group: Group, standing: TrialRanking, best: int) -> Iterator[str]:
    """Compare a split of the cores into processes with one process on as many cores."""
    if not all(name in group.varying and group.is_number(name) for name in WIDTHS):
        return
    peers = [i for i in find_trials_like(group, best, WIDTHS) if group.rates.num[i] > 1]
    cores = {i: group.points[i]["processes"] * group.points[i]["threads"] for i in peers}
    equally_wide = [i for i in peers if cores[i] == cores[best] and i != best]
    if not equally_wide:
        return
    single = find_single_process_peer(group, best)
    other = single if single in equally_wide else max(equally_wide, key=lambda i: group.rate[i])
    yield _compare_shape(group, standing, best, other)
    slowest = min(equally_wide, key=lambda i: group.rate[i])
    if len(equally_wide) > 1 and slowest != other:
        ratio = estimate_ratio(group, slowest, best)
        if is_significant(ratio) and not standing.may_equal_best[slowest]:
            share_text = f"{format_share(*unpack_estimate(ratio))} of the throughput of {_name_shape(group, best)}"
            yield f"{start_with_capital(_name_shape(group, slowest))} is slowest, with {share_text}."


def _compare_shape(group: Group, standing: TrialRanking, best: int, other: int) -> str:
    ratio = estimate_ratio(group, best, other)
    ratio_text = format_ratio(*unpack_estimate(ratio))
    if is_significant(ratio):
        alone = _note_uncorrected(standing, other, best)
        return (
            f"{start_with_capital(_name_shape(group, best))} gives {ratio_text} the throughput of "
            f"{_name_shape(group, other)}{alone}."
        )
    return (
        f"{start_with_capital(_name_shape(group, best))} and {_name_shape(group, other)} show no "
        f"significant difference: {ratio_text}."
    )


def _name_shape(group: Group, i: int) -> str:
    return describe_shape(group.points[i]["processes"], group.points[i]["threads"])


def describe_effects(group: Group, standing: TrialRanking, best: int) -> Iterator[str]:
    """Describe the effect of every other parameter, all else as in the fastest trial."""
    effects: list[tuple[float, list[str]]] = []
    for name in group.axes:
        if name in _NOT_EFFECTS or name.startswith("args."):
            continue
        line = [i for i in group.find_trials_along(best, name) if group.rates.num[i] > 1]
        sentences, size = [], 1.0
        if 2 <= len(line) <= _MAX_LINE_VALUES:
            sentence, size = _describe_effect(group, standing, best, name, line)
            sentences.append(sentence)
        sentences += _describe_all_pairs(group, name)
        effects.append((size, sentences))
    effects.sort(key=lambda pair: -pair[0])
    for _, sentences in effects[:_MAX_EFFECTS]:
        yield from sentences
    if effects[_MAX_EFFECTS:]:
        yield f"{format_count(len(effects) - _MAX_EFFECTS, 'further parameter')} did less: see the table."


def _describe_effect(
    group: Group, standing: TrialRanking, best: int, name: str, line: Sequence[int]
) -> tuple[str, float]:
    """Return a sentence on what the best value gains, and the gain as a ratio."""
    other = choose_reference(group, best, name, line)
    ratio = estimate_ratio(group, best, other)
    own, its = (describe_value(name, group.points[i].get(name)) for i in (best, other))
    ratio_text = format_ratio(*unpack_estimate(ratio))
    if is_significant(ratio):
        where = f"{_describe_rest(group, best, name)}{_note_uncorrected(standing, other, best)}"
        return f"With {own} the throughput is {ratio_text} that with {its}{where}.", ratio.value
    return (
        f"Trials with {own} and {its} show no significant difference: {ratio_text}{_describe_rest(group, best, name)}.",
        1.0,
    )


def _describe_all_pairs(group: Group, name: str) -> Iterator[str]:
    """Yield the range of the ratio over all settings, for a parameter with two values."""
    if group.is_number(name) or len(group.list_values(name)) != 2:
        return
    base, other = choose_pair_values(group, name)
    ratios = [float(group.rate[i] / group.rate[j]) for i, j in find_pairs(group, name, base, other)]
    if len(ratios) > 1:
        pair = f"{describe_value(name, other)} over {describe_value(name, base)}"
        yield (
            f"In the {len(ratios):,} pairs of settings that differ in nothing else, {pair} is between "
            f"{format_ratio(min(ratios))} and {format_ratio(max(ratios))}, with a median of "
            f"{format_ratio(float(np.median(ratios)))}."
        )


def describe_memory(group: Group, best: int) -> Iterator[str]:
    """Describe how much memory a larger batch takes, all else as in the fastest trial."""
    if "batch" not in group.varying or not group.is_number("batch"):
        return
    peak = group.get_metric("peak_memory_bytes")
    line = [i for i in group.find_trials_along(best, "batch") if not np.isnan(peak[i])]
    if len(line) < 2:
        return
    first, last = line[0], line[-1]
    amounts = [format_memory(peak[i]) for i in (first, last)]
    batches = [describe_value("batch", group.points[i]["batch"]) for i in (first, last)]
    change = f"grows from {amounts[0]} at {batches[0]} to {amounts[1]} at {batches[1]}"
    if amounts[0] == amounts[1]:
        change = f"is {amounts[0]} at {batches[0]} and at {batches[1]}"
    yield f"Peak memory {change}{_describe_rest(group, best, 'batch')}."


def _describe_rest(group: Group, best: int, name: str) -> str:
    """Return the other parameters of the point, so that the sentence says where it holds."""
    rest = {
        n: v
        for n, v in group.points[best].items()
        if n != name and n not in CONDITION_COLUMNS and not n.startswith("args.")
    }
    if len(rest) > _MAX_NAMES:
        return ", all else as in the fastest"
    setting = describe_point(rest)
    return f", at {setting}" if setting.startswith("batch") else f", with {setting}" if setting else ""


def start_with_capital(text: str) -> str:
    """Start a sentence with a capital letter; names like mine.py or w0 stay unchanged."""
    return f"{text[:1].upper()}{text[1:]}" if text.partition(" ")[0].rstrip(",").isalpha() else text
