"""What the figures of a group say, in sentences that are true of them; the most important first."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from corewise.report.columns import number_or_nan, run_rates
from corewise.report.effects import (
    capital,
    effect_sentences,
    memory_sentence,
    paying_sentence,
    scaling_sentences,
    shape_sentences,
)
from corewise.report.groups import APART, Group
from corewise.report.phrases import machine_rate, point_words, rate_unit, task_words, usual_point, value_words
from corewise.report.standing import Standing, looks_of
from corewise.report.words import counted, figure, listed, short, times
from corewise.stats.occasions import compare_occasions

MAX_TASKS = 4  # told in full
_MAX_NAMED = 3


def answers_of(group: Group, standing: Standing) -> list[str]:
    """The sentences of one study, workload and mode."""
    if not standing.best:
        return [nothing_measured(group)]
    tasks = list(standing.best)
    found: list[str] = []
    for task in tasks[:MAX_TASKS]:
        found += _task_sentences(group, standing, task)
    if tasks[MAX_TASKS:]:
        names = listed([short(name.removeprefix("args.").replace("_", " ")) for name in _task_names(group)])
        found.append(f"{counted(len(tasks) - MAX_TASKS, 'further task')} ({names} differ): see the table.")
    found += _between_tasks(group, standing)
    found += _doubts(group)
    return found


def headlines_of(group: Group, standing: Standing) -> list[str]:
    """The first sentences of a group, which stand in the summary of the whole report."""
    for task in standing.best:
        return list(_lead(group, standing, task))
    return [nothing_measured(group)]


def nothing_measured(group: Group) -> str:
    """Why there is no answer."""
    if group.records:
        return f"Nothing can be said of {task_words(group)}: no trial gave a throughput."
    reasons = Counter(record.reason or "no reason was recorded" for record, _ in group.unmeasured)
    if not reasons:
        return f"Nothing was measured of {task_words(group)}."
    [(reason, num)] = reasons.most_common(1)
    often = "" if len(reasons) == 1 else f" in {num} of {len(group.unmeasured)} cases"
    what = counted(len(group.unmeasured), "trial")
    why = f"{what} gave no number, because{often} {short(reason, 160)}"
    return f"Nothing was measured of {task_words(group)}: {why}."


def _task_sentences(group: Group, standing: Standing, task: int) -> Iterator[str]:
    best = standing.best[task]
    yield from _lead(group, standing, task)
    if group.rates.num[best] < 2:
        return
    yield from shape_sentences(group, standing, best)
    yield from scaling_sentences(group, standing, best)
    yield from effect_sentences(group, standing, best)
    yield from memory_sentence(group, best)


def _lead(group: Group, standing: Standing, task: int) -> Iterator[str]:
    """What is fastest, where more stops paying, and what casts doubt on it."""
    best = standing.best[task]
    where = _where(group, standing, best)
    sentences = [_fastest(group, standing, task)]
    if group.rates.num[best] > 1:
        sentences.append(paying_sentence(group, standing, best))
    sentences.append(_caveat(group, best))
    yield from (f"{where}{each}" if where else capital(each) for each in sentences if each)


def _fastest(group: Group, standing: Standing, task: int) -> str:
    best = standing.best[task]
    others = [int(i) for i in standing.tasks[task] if i != best and not math.isnan(group.rate[i])]
    what = task_words(group)
    words = point_words(group.points[best], without=_task_names(group))
    rate = figure(float(group.rate[best]), float(group.low[best]), float(group.high[best]), rate_unit(group))
    of_machine = machine_rate(group, best)
    rate += f" = {of_machine}" if of_machine else ""
    if not others:
        words = words or point_words(usual_point(group.records[best]))
        return f"{what} gives {rate}{f' with {words}' if words else ''}{_sure(group, best)}."
    comparable = [i for i in others if group.rates.num[i] > 1]
    if group.rates.num[best] < 2 or not comparable:
        runs = ", in a single run" if group.rates.num[best] < 2 else ""
        return (
            f"the highest throughput of {what} was seen with {words}: {rate}{runs}. "
            "Nothing can be said about which setting is fastest until each has at least two runs."
        )
    left = len(others) - len(comparable)
    among = f", among the {len(comparable) + 1:,} settings with two runs or more" if left else ""
    alike = [i for i in comparable if standing.may_equal_best[i]]
    if not alike:
        return f"{what} is fastest with {words}: {rate}{among}."
    if len(alike) == len(comparable):
        other = "the other is not" if len(alike) == 1 else f"none of the {len(alike):,} others is"
        return (
            f"no setting of {what} is shown to be fastest{among}: the highest rate was {rate} with {words}, "
            f"and {other} told apart from it."
        )
    alike.sort(key=lambda i: -group.rate[i])
    named = [point_words(_differences(group, i, best), without=_task_names(group)) for i in alike]
    also = f"not told apart from it: {listed(named, _MAX_NAMED)}"
    return f"{what} ran fastest with {words}: {rate}{among}; {also}."


def _caveat(group: Group, best: int) -> str:
    """What a reader must know of the figure before believing it, in one sentence; empty without any doubt."""
    record, doubts = group.records[best], []
    if group.is_disturbed[best]:
        again = " even when repeated" if record.disturbed else ""
        doubts.append(f"its runs were disturbed by other load{again}")
    target = number_or_nan(record.protocol.get("target_interval"))
    spread = float((group.high[best] - group.low[best]) / 2 / group.rate[best])
    if spread > target > 0:
        decimals = 1 if round(100 * spread) <= 100 * target else 0
        reached = f"{100 * spread:.{decimals}f}"
        doubts.append(f"its interval is ±{reached} %, not the ±{100 * target:g} % asked for")
    return f"read this figure of {task_words(group)} with care: {', and '.join(doubts)}." if doubts else ""


def _sure(group: Group, i: int) -> str:
    return "" if group.rates.num[i] > 1 else ", from a single run: nothing says how sure that is"


def _differences(group: Group, i: int, best: int) -> Mapping[str, Any]:
    """What a point has otherwise than the best one; all of processes and threads when one of them differs."""
    own, other = group.points[i], group.points[best]
    differ = {name for name in group.varying if own.get(name) != other.get(name)}
    if differ & {"processes", "threads"}:
        differ |= {name for name in ("processes", "threads") if name in own}
    return {name: own.get(name) for name in group.varying if name in differ}


def _task_names(group: Group) -> list[str]:
    return [name for name in group.varying if name.startswith("args.") or name in APART]


def _where(group: Group, standing: Standing, i: int) -> str:
    """On which machine, with which version, at which size: where there are several of them."""
    words = []
    for name in _task_names(group):
        word = value_words(name, group.points[i].get(name))
        words.append(f"on {word}" if name == "machine" else f"in {word}" if name == "store" else f"at {word}")
    text = ", ".join(words)
    return f"{text[:1].upper()}{text[1:]}: " if text else ""


def _between_tasks(group: Group, standing: Standing) -> Iterator[str]:
    """How the best of machines, stores or versions compare, where nothing else keeps them apart."""
    names = _task_names(group)
    if len(standing.best) < 2 or any(name not in ("machine", "store", "version") for name in names):
        return
    ranked = sorted(standing.best.values(), key=lambda i: -group.rate[i])[:MAX_TASKS]
    first = ranked[0]
    for other in ranked[1:]:
        a, b = ([1 / rate for rate in run_rates(group.records[i])] for i in (first, other))
        if min(len(a), len(b)) < 2:
            continue
        found = compare_occasions(a, b, looks=looks_of(group.records[first]))
        above, below = (point_words({n: group.points[i].get(n) for n in names}) for i in (first, other))
        value = float(group.rate[first] / group.rate[other])
        ratio = times(value)
        if found.interval is not None and found.interval.low is not None and found.interval.high is not None:
            ratio = times(value, min(found.interval.low, value), max(found.interval.high, value))
        if found.verdict == "slower":
            yield f"At its best, {above} gives {ratio} the throughput of {below} at its best."
        else:
            yield f"At their best, {above} and {below} are not told apart ({ratio})."


def _doubts(group: Group) -> Iterator[str]:
    """What the sentences above leave out."""
    single = int(np.sum((group.rates.num < 2) & ~np.isnan(group.rate)))
    if single and len(group.records) > 1 and any(group.rates.num >= 2):
        yield f"{counted(single, 'trial')} of {len(group.records):,} had a single run and cannot be compared."
    counts = Counter(record.status for record, _ in group.unmeasured)
    if counts:
        told = [f"{counted(num, 'trial')} {'was' if num == 1 else 'were'} {status}" if status == "skipped"
                else f"{counted(num, 'trial')} failed" for status, num in sorted(counts.items())]  # fmt: skip
        yield f"{listed(told)}: the reasons stand below."


def summary_of(headlines: Sequence[Sequence[str]], most: int = 8) -> list[str]:
    """The first sentences of all groups, cut where there are many groups."""
    found = [sentence for each in headlines[:most] for sentence in each]
    left = len(headlines[most:])
    if left:
        verb = "stands" if left == 1 else "stand"
        found.append(f"{counted(left, 'more answer')} {verb} with the studies below.")
    return found
