"""Sentences that answer a study's question, the most important first."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from corewise.analysis.columns import get_run_rates, parse_number
from corewise.analysis.groups import Group
from corewise.analysis.phrases import (
    describe_machine_rate,
    describe_point,
    describe_task,
    describe_value,
    name_rate_unit,
    select_main_params,
)
from corewise.analysis.ranking import TrialRanking
from corewise.analysis.ratios import get_looks
from corewise.report.effect_sentences import (
    compare_shapes,
    describe_diminishing_returns,
    describe_effects,
    describe_memory,
    describe_scaling,
    start_with_capital,
)
from corewise.stats.occasion_comparison import compare_occasions
from corewise.text_format import format_count, format_figure, format_list, format_ratio, format_value, shorten

# Answers of more tasks than this are left to the table.
MAX_TASKS = 4
# A headline names this many ties; the others are counted.
_MAX_NAMED = 2
# Records that do not state their confidence level used this one.
DEFAULT_CONFIDENCE = 0.95


def describe_group(group: Group, standing: TrialRanking) -> list[str]:
    """Return the sentences about one study, workload and mode."""
    if not standing.best:
        return [explain_missing_answer(group)]
    tasks = list(standing.best)
    sentences: list[str] = []
    for task in tasks[:MAX_TASKS]:
        sentences += _describe_task(group, standing, task)
    if tasks[MAX_TASKS:]:
        names = format_list([shorten(name.removeprefix("args.").replace("_", " ")) for name in group.task_names])
        sentences.append(f"{format_count(len(tasks) - MAX_TASKS, 'further task')} ({names} differ): see the table.")
    sentences += _compare_tasks(group, standing)
    sentences += _describe_missing_trials(group)
    return sentences


def describe_headline(group: Group, standing: TrialRanking) -> list[str]:
    """Return the headline of a group and its caution, if any, for the summary of the whole report."""
    for task, best in standing.best.items():
        where = _describe_location(group, standing, best)
        sentences = (_describe_fastest(group, standing, task), _describe_caution(group, best))
        return [_start_sentence(where, each) for each in sentences if each]
    return [explain_missing_answer(group)]


def explain_missing_answer(group: Group) -> str:
    """Explain why a group has no answer."""
    if group.records:
        return f"No result for {describe_task(group)}: no trial gave a throughput."
    reasons = Counter(record.reason or "no reason was recorded" for record, _ in group.unmeasured)
    if not reasons:
        return f"No measurements of {describe_task(group)}."
    [(reason, num)] = reasons.most_common(1)
    frequency = "" if len(reasons) == 1 else f" in {num} of {len(group.unmeasured)} cases"
    subject = format_count(len(group.unmeasured), "trial")
    explanation = f"{subject} gave no result, because{frequency} {shorten(reason, 160)}"
    return f"No measurements of {describe_task(group)}: {explanation}."


def _describe_task(group: Group, standing: TrialRanking, task: int) -> Iterator[str]:
    best = standing.best[task]
    yield from _describe_fastest_and_cautions(group, standing, task)
    if group.rates.num[best] < 2:
        return
    yield from compare_shapes(group, standing, best)
    yield from describe_scaling(group, standing, best)
    yield from describe_effects(group, standing, best)
    yield from describe_memory(group, best)


def _describe_fastest_and_cautions(group: Group, standing: TrialRanking, task: int) -> Iterator[str]:
    """Yield what is fastest, where scaling ends, and the caution."""
    best = standing.best[task]
    where = _describe_location(group, standing, best)
    sentences = [_describe_fastest(group, standing, task)]
    if group.rates.num[best] > 1:
        sentences.append(describe_diminishing_returns(group, standing, best))
    sentences.append(_describe_caution(group, best))
    yield from (_start_sentence(where, each) for each in sentences if each)


def _start_sentence(where: str, sentence: str) -> str:
    return f"{where}{sentence}" if where else start_with_capital(sentence)


def _describe_fastest(group: Group, standing: TrialRanking, task: int) -> str:
    best = standing.best[task]
    others = [int(i) for i in standing.tasks[task] if i != best and not math.isnan(group.rate[i])]
    task_text = describe_task(group)
    setting = describe_point(group.points[best], without=group.task_names)
    confidence = parse_number(group.records[best].protocol.get("confidence"))
    rate = format_figure(
        float(group.rate[best]),
        float(group.low[best]),
        float(group.high[best]),
        name_rate_unit(group),
        DEFAULT_CONFIDENCE if math.isnan(confidence) else confidence,
    )
    of_machine = describe_machine_rate(group, best)
    rate += f" = {of_machine}" if of_machine else ""
    if not others:
        setting = setting or describe_point(select_main_params(group.records[best]))
        return f"{task_text} gives {rate}{f' with {setting}' if setting else ''}{_note_single_run(group, best)}."
    comparable = [i for i in others if group.rates.num[i] > 1]
    if group.rates.num[best] < 2 or not comparable:
        runs = ", in a single run" if group.rates.num[best] < 2 else ""
        return (
            f"{task_text} reached its highest throughput with {setting}: {rate}{runs}. "
            "This does not show which setting is fastest: each needs at least two runs."
        )
    left = len(others) - len(comparable)
    among = f", among the {len(comparable) + 1:,} settings with two runs or more" if left else ""
    ties = [i for i in comparable if standing.may_equal_best[i]]
    if not ties:
        return f"{task_text} is fastest with {setting}: {rate}{among}."
    if len(ties) == len(comparable):
        return (
            f"{task_text}: no setting is significantly faster than the others{among}. Highest: {rate} with {setting}."
        )
    ties.sort(key=lambda i: -group.rate[i])
    named = [_name_tie(group, i, best) for i in ties]
    sentence = f"No significant difference from {format_list(named, _MAX_NAMED)}."
    return f"{task_text} is fastest with {setting}: {rate}{among}. {sentence}"


def _name_tie(group: Group, i: int, best: int) -> str:
    """Name a setting that ties with the best by what differs: 2 × 1, or 2 × 1 contiguous."""
    differences = dict(_find_differences(group, i, best))
    if "processes" not in differences or "threads" not in differences:
        return describe_point(differences, without=group.task_names)
    shape = f"{format_value(differences.pop('processes'))} × {format_value(differences.pop('threads'))}"
    return f"{shape} {describe_point(differences, without=group.task_names)}".strip()


def _describe_caution(group: Group, best: int) -> str:
    """Describe what weakens the best figure in one sentence, or return ""."""
    record, doubts = group.records[best], []
    if group.is_disturbed[best]:
        again = ", even when repeated" if record.disturbed else ""
        doubts.append(f"other load disturbed its runs{again}")
    target = parse_number(record.protocol.get("target_interval"))
    spread = float((group.high[best] - group.low[best]) / 2 / group.rate[best])
    if spread > target > 0:
        decimals = 1 if round(100 * spread) <= 100 * target else 0
        reached = f"{100 * spread:.{decimals}f}"
        doubts.append(f"its interval is ±{reached} %, the target was ±{100 * target:g} %")
    return f"treat with caution: {'; '.join(doubts)}." if doubts else ""


def _note_single_run(group: Group, i: int) -> str:
    return "" if group.rates.num[i] > 1 else " (a single run, no interval)"


def _find_differences(group: Group, i: int, best: int) -> Mapping[str, Any]:
    """Return what differs from the best point; processes and threads always come as a pair."""
    own, other = group.points[i], group.points[best]
    differ = {name for name in group.varying if own.get(name) != other.get(name)}
    if differ & {"processes", "threads"}:
        differ |= {name for name in ("processes", "threads") if name in own}
    return {name: own.get(name) for name in group.varying if name in differ}


def _describe_location(group: Group, standing: TrialRanking, i: int) -> str:
    """Return the machine, version or size as the start of a sentence, where there are several."""
    phrases = []
    for name in group.task_names:
        value = describe_value(name, group.points[i].get(name))
        phrases.append(f"on {value}" if name == "machine" else f"in {value}" if name == "store" else f"at {value}")
    text = ", ".join(phrases)
    return f"{text[:1].upper()}{text[1:]}: " if text else ""


def _compare_tasks(group: Group, standing: TrialRanking) -> Iterator[str]:
    """Compare the best of several machines, stores or versions, where nothing else differs."""
    names = group.task_names
    if len(standing.best) < 2 or any(name not in ("machine", "store", "version") for name in names):
        return
    ranked = sorted(standing.best.values(), key=lambda i: -group.rate[i])[:MAX_TASKS]
    first = ranked[0]
    for other in ranked[1:]:
        a, b = ([1 / rate for rate in get_run_rates(group.records[i])] for i in (first, other))
        if min(len(a), len(b)) < 2:
            continue
        comparison = compare_occasions(a, b, looks=get_looks(group.records[first].protocol))
        above, below = (describe_point({n: group.points[i].get(n) for n in names}) for i in (first, other))
        value = float(group.rate[first] / group.rate[other])
        ratio = format_ratio(value)
        if (
            comparison.interval is not None
            and comparison.interval.low is not None
            and comparison.interval.high is not None
        ):
            ratio = format_ratio(value, min(comparison.interval.low, value), max(comparison.interval.high, value))
        if comparison.verdict == "slower":
            yield f"At its best, {above} gives {ratio} the throughput of {below} at its best."
        else:
            yield f"At their best, {above} and {below} show no significant difference: {ratio}."


def _describe_missing_trials(group: Group) -> Iterator[str]:
    """Yield what the other sentences leave out: single runs, failed and skipped trials."""
    single = int(np.sum((group.rates.num < 2) & ~np.isnan(group.rate)))
    if single and len(group.records) > 1 and any(group.rates.num >= 2):
        yield (f"{format_count(single, 'trial')} of {len(group.records):,} had a single run and cannot be compared.")
    counts = Counter(record.status for record, _ in group.unmeasured)
    if counts:
        verbs = {"failed": ("failed", "failed"), "skipped": ("was skipped", "were skipped")}
        parts = [f"{format_count(num, 'trial')} {verbs[status][num != 1]}" for status, num in sorted(counts.items())]
        yield f"{format_list(parts)}. The reasons are listed below."


def summarize_headlines(headlines: Sequence[Sequence[str]], most: int = 8) -> list[str]:
    """Return the first sentences of all groups, cut after `most` groups."""
    sentences = [sentence for each in headlines[:most] for sentence in each]
    left = len(headlines[most:])
    if left:
        sentences.append(f"{format_count(left, 'more answer')} below, with the studies.")
    return sentences
