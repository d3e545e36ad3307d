"""What one parameter does to the throughput, told of the fastest trial and those one step from it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from corewise.report.columns import run_rates
from corewise.report.groups import APART, WIDTHS, Group
from corewise.report.phrases import point_words, shape_words, task_words, value_words
from corewise.report.standing import Standing, efficiencies_of, ends, is_shown, look_level, ratio_between
from corewise.report.words import counted, fraction, memory, share, times
from corewise.spec.axes import AXES
from corewise.stats.diminishing import diminishing_from

_NOT_EFFECTS = (*WIDTHS, *APART)
_MAX_EFFECTS = 5
_MANY_NAMES = 3  # more parameters are not told one by one
_MANY = 30  # more values of one parameter make no sentence


@dataclass(frozen=True)
class _Line:
    """The trials along one kind of width through the fastest, narrowest first."""

    name: str
    trials: Sequence[int]
    top: int  # the fastest
    width: Mapping[int, int]

    def words(self, i: int) -> str:
        return value_words(self.name, self.width[i])


def _lines(group: Group, best: int) -> Iterator[_Line]:
    """The lines long enough to speak of; those with a single run tell nothing."""
    for name in ("threads", "processes"):
        line = [i for i in group.along(best, name) if group.rates.num[i] > 1]
        if name in group.varying and group.is_number(name) and 2 <= len(line) <= _MANY:
            yield _Line(name, line, best, {i: int(group.points[i][name]) for i in line})


def paying_sentence(group: Group, standing: Standing, best: int) -> str:
    """From where on more threads, or more processes, stop paying; or that this is not shown."""
    for line in _lines(group, best):
        return _stops_paying(group, standing, line)
    return ""


def _stops_paying(group: Group, standing: Standing, line: _Line) -> str:
    top, words, what = line.top, line.words, task_words(group)
    at = _at(group, top, line.name).removeprefix(", ")
    at = f"{at}, " if at else ""
    knee = _knee(group, line)
    equal = [i for i in line.trials if line.width[i] < line.width[top] and standing.may_equal_best[i]]
    if equal and (knee is None or line.width[equal[0]] <= knee):
        them = "it" if line.width[equal[0]] == 1 else "them"
        told = f"{words(top)} are not told apart from {them}"
        return f"{at}no gain is shown for {what} beyond {words(equal[0])}: {told}."
    if knee is not None:
        base = line.trials[0]
        fair = f"what {words(base)} gives" if line.width[base] == 1 else f"its share in {words(base)}"
        told = f"on average an added one gives less than half of {fair}"
        return f"{at}more than {value_words(line.name, knee)} hardly {_pay(knee)} for {what}: {told}."
    wider = [i for i in line.trials if line.width[i] > line.width[top]]
    if not wider:
        told = f"{words(top)}, the most tried, are fastest"
        return f"{at}where more {line.name} stop paying for {what} is not shown: {told}."
    ratio = ratio_between(group, wider[-1], top)
    if is_shown(ratio) and not standing.may_equal_best[wider[-1]]:
        told = f"{words(wider[-1])} give {share(*ends(ratio))} of the throughput of {words(top)}"
        return (
            f"{at}more than {words(top)} {'is' if line.width[top] == 1 else 'are'} slower for {what}: {told}."
        )
    return f"{at}no gain is shown for {what} beyond {words(top)}, up to {words(wider[-1])}."


def _pay(num: int) -> str:
    return "pays" if num == 1 else "pay"


def scaling_sentences(group: Group, standing: Standing, best: int) -> Iterator[str]:
    """How throughput grows with threads, or with processes, all else as in the fastest trial."""
    for line in _lines(group, best):
        yield from _growth(group, standing, line)


def _growth(group: Group, standing: Standing, line: _Line) -> Iterator[str]:
    base, top, words = line.trials[0], line.top, line.words
    if base == top:
        return
    speedup, at = ratio_between(group, top, base), _at(group, top, line.name)
    told = times(*ends(speedup))
    if not is_shown(speedup):
        yield f"{capital(words(top))} and {words(base)} are not told apart ({told}){at}."
        return
    efficiency = efficiencies_of(group, (line.name,))
    per_unit = fraction(*(float(x[top]) for x in (efficiency.value, efficiency.low, efficiency.high)))
    yield (
        f"{capital(words(top))} are {told} as fast as {words(base)}, an efficiency of {per_unit}{at}"
        f"{_taken_alone(standing, base, top)}."
    )
    narrower = [i for i in line.trials if base != i and line.width[i] < line.width[top]]
    if narrower:
        ratio, next_to = ratio_between(group, narrower[-1], top), words(narrower[-1])
        if is_shown(ratio):
            yield (
                f"{capital(next_to)} give {share(*ends(ratio))} of the throughput of {words(top)}{at}"
                f"{_taken_alone(standing, narrower[-1], top)}."
            )


def _taken_alone(standing: Standing, other: int, best: int) -> str:
    """What a single comparison must add when it is not shown among as many as were tried."""
    if not standing.may_equal_best[other]:
        return ""
    num = len(standing.tasks[standing.task_of(best)])
    return f"; this is one comparison taken alone: among all {num:,} settings the two are not told apart"


def _knee(group: Group, line: _Line) -> int | None:
    if len(line.trials) < 3:
        return None
    rates = {line.width[i]: run_rates(group.records[i]) for i in line.trials}
    found = diminishing_from(rates, confidence=1 - look_level(group.records[line.trials[0]]))
    return found if found is None or found < max(rates) else None


def shape_sentences(group: Group, standing: Standing, best: int) -> Iterator[str]:
    """How splitting the cores among processes compares with one process on as many."""
    if not all(name in group.varying and group.is_number(name) for name in WIDTHS):
        return
    peers = [i for i in _alike_but(group, best, WIDTHS) if group.rates.num[i] > 1]
    cores = {i: group.points[i]["processes"] * group.points[i]["threads"] for i in peers}
    same = [i for i in peers if cores[i] == cores[best] and i != best]
    if not same:
        return
    single = single_peer(group, best)
    other = single if single in same else max(same, key=lambda i: group.rate[i])
    yield _against(group, standing, best, other)
    slowest = min(same, key=lambda i: group.rate[i])
    if len(same) > 1 and slowest != other:
        ratio = ratio_between(group, slowest, best)
        if is_shown(ratio) and not standing.may_equal_best[slowest]:
            told = f"{share(*ends(ratio))} of the throughput of {_shape(group, best)}"
            yield f"{capital(_shape(group, slowest))} gives least: {told}."


def single_peer(group: Group, best: int) -> int | None:
    """The trial of one process on as many cores as another trial, all else equal."""
    point = dict(group.points[best])
    point["processes"], point["threads"] = 1, point["processes"] * point["threads"]
    found = group.place.get(group.key(point))
    return None if found is None or np.isnan(group.rate[found]) else found


def _against(group: Group, standing: Standing, best: int, other: int) -> str:
    ratio = ratio_between(group, best, other)
    told = times(*ends(ratio))
    if is_shown(ratio):
        alone = _taken_alone(standing, other, best)
        return f"{capital(_shape(group, best))} gives {told} the throughput of {_shape(group, other)}{alone}."
    return f"{capital(_shape(group, best))} and {_shape(group, other)} are not told apart ({told})."


def _shape(group: Group, i: int) -> str:
    return shape_words(group.points[i]["processes"], group.points[i]["threads"])


def _alike_but(group: Group, best: int, names: Sequence[str]) -> list[int]:
    """The trials that differ from one in nothing but these parameters."""
    kinds = group.kinds(without=names)
    return [int(i) for i in np.flatnonzero(kinds == kinds[best])]


def effect_sentences(group: Group, standing: Standing, best: int) -> Iterator[str]:
    """What each other parameter does, all else as in the fastest trial."""
    found: list[tuple[float, list[str]]] = []
    for name in group.axes:
        if name in _NOT_EFFECTS or name.startswith("args."):
            continue
        line = [i for i in group.along(best, name) if group.rates.num[i] > 1]
        words, size = [], 1.0
        if 2 <= len(line) <= _MANY:
            sentence, size = _effect(group, standing, best, name, line)
            words.append(sentence)
        words += _over_all_pairs(group, name)
        found.append((size, words))
    found.sort(key=lambda pair: -pair[0])
    for _, words in found[:_MAX_EFFECTS]:
        yield from words
    if found[_MAX_EFFECTS:]:
        yield f"{counted(len(found) - _MAX_EFFECTS, 'further parameter')} did less: see the table."


def _effect(group: Group, standing: Standing, best: int, name: str, line: Sequence[int]) -> tuple[str, float]:
    """What the best value is worth in words, and as a ratio."""
    other = _reference(group, best, name, line)
    ratio = ratio_between(group, best, other)
    own, its = (value_words(name, group.points[i].get(name)) for i in (best, other))
    told = times(*ends(ratio))
    if is_shown(ratio):
        where = f"{_at(group, best, name)}{_taken_alone(standing, other, best)}"
        return f"With {own} the throughput is {told} that with {its}{where}.", ratio.value
    return f"Trials with {own} and {its} are not told apart ({told}){_at(group, best, name)}.", 1.0


def _reference(group: Group, best: int, name: str, line: Sequence[int]) -> int:
    """What the best value is set against: the axis's default where it is a choice, else the next fastest."""
    others = [i for i in line if i != best]
    axis = AXES.get(name)
    if axis is not None and axis.kind in ("choice", "flag"):
        usual = [i for i in others if group.points[i].get(name) == axis.default]
        if usual:
            return usual[0]
    return max(others, key=lambda i: group.rate[i])


def _over_all_pairs(group: Group, name: str) -> Iterator[str]:
    """The range of the ratio over all settings, for a parameter that has two values."""
    if group.is_number(name) or len(group.values(name)) != 2:
        return
    base, other = pair_of(group, name)
    ratios = [float(group.rate[i] / group.rate[j]) for i, j in pairs_of(group, name, base, other)]
    if len(ratios) > 1:
        words = f"{value_words(name, other)} over {value_words(name, base)}"
        yield (
            f"In the {len(ratios):,} pairs of settings that differ in nothing else, {words} is between "
            f"{times(min(ratios))} and {times(max(ratios))}, in the middle {times(float(np.median(ratios)))}."
        )


def pair_of(group: Group, name: str) -> tuple[Any, Any]:
    """The base and the other value of a parameter that has two: vanilla and off come before vendor and on."""
    values = group.values(name)
    axis = AXES.get(name)
    if name == "math" and "vanilla" in values:
        return "vanilla", next(value for value in values if value != "vanilla")
    if axis is not None and values[1] == axis.default:
        return values[1], values[0]
    return values[0], values[1]


def pairs_of(group: Group, name: str, base: Any, other: Any) -> list[tuple[int, int]]:
    """The trials with the other value, each with the one that differs from it in having the base."""
    codes, kinds = group.columns[name].codes, group.kinds(without=(name,))
    known = ~np.isnan(group.rate)
    base_of = np.full(int(kinds.max(initial=0)) + 1, -1, dtype=np.int64)
    bases = np.flatnonzero((codes == group.columns[name].code(base)) & known)
    base_of[kinds[bases]] = bases
    others = np.flatnonzero((codes == group.columns[name].code(other)) & known)
    return [(int(i), int(base_of[kinds[i]])) for i in others if base_of[kinds[i]] >= 0]


def memory_sentence(group: Group, best: int) -> Iterator[str]:
    """How much memory a larger batch takes, all else as in the fastest trial."""
    if "batch" not in group.varying or not group.is_number("batch"):
        return
    peak = group.metric("peak_memory_bytes")
    line = [i for i in group.along(best, "batch") if not np.isnan(peak[i])]
    if len(line) < 2:
        return
    first, last = line[0], line[-1]
    amounts = [memory(peak[i]) for i in (first, last)]
    batches = [value_words("batch", group.points[i]["batch"]) for i in (first, last)]
    told = f"goes from {amounts[0]} at {batches[0]} to {amounts[1]} at {batches[1]}"
    if amounts[0] == amounts[1]:
        told = f"is {amounts[0]} at {batches[0]} and at {batches[1]} alike"
    yield f"Peak memory {told}{_at(group, best, 'batch')}."


def _at(group: Group, best: int, name: str) -> str:
    """The rest of the point, so that the sentence says where it holds."""
    rest = {
        n: v
        for n, v in group.points[best].items()
        if n != name and n not in APART and not n.startswith("args.")
    }
    if len(rest) > _MANY_NAMES:
        return ", all else as in the fastest"
    words = point_words(rest)
    return f", at {words}" if words.startswith("batch") else f", with {words}" if words else ""


def capital(text: str) -> str:
    """The text as a sentence begins; names such as mine.py or w0 stay as they are."""
    return f"{text[:1].upper()}{text[1:]}" if text.partition(" ")[0].rstrip(",").isalpha() else text
