"""What one parameter does to the throughput, told of the fastest trial and those one step from it."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from corewise.report.columns import run_rates
from corewise.report.groups import APART, WIDTHS, Group
from corewise.report.phrases import point_words, shape_words, value_words
from corewise.report.standing import efficiencies_of, ends, is_shown, look_level, ratio_between
from corewise.report.words import counted, fraction, memory, share, times
from corewise.spec.axes import AXES
from corewise.stats.diminishing import diminishing_from

_NOT_EFFECTS = (*WIDTHS, *APART)
_MAX_EFFECTS = 5
_MANY_NAMES = 3  # more parameters are not told one by one
_MANY = 30  # more values of one parameter make no sentence


def scaling_sentences(group: Group, best: int) -> Iterator[str]:
    """How throughput grows with threads, or with processes, all else as in the fastest trial."""
    for name in WIDTHS:
        line = [i for i in group.along(best, name) if not np.isnan(group.rate[i])]
        if name in group.varying and group.is_number(name) and 2 <= len(line) <= _MANY:
            yield from _growth(group, best, name, line)


def _growth(group: Group, best: int, name: str, line: Sequence[int]) -> Iterator[str]:
    width = {i: int(group.points[i][name]) for i in line}
    base, top = line[0], best
    words = {i: value_words(name, width[i]) for i in line}
    if base != top:
        speedup = ratio_between(group, top, base)
        efficiency = efficiencies_of(group, (name,))
        told = fraction(*(float(x[top]) for x in (efficiency.value, efficiency.low, efficiency.high)))
        yield (
            f"{_capital(words[top])} are {times(*ends(speedup))} as fast as {words[base]}, an efficiency of "
            f"{told}{_at(group, best, name)}."
        )
        yield from _less_will_do(group, top, [i for i in line if width[i] < width[top]], words)
    wider = [i for i in line if width[i] > width[top]]
    if wider:
        ratio = ratio_between(group, wider[-1], top)
        if is_shown(ratio):
            yield f"More is slower: {words[wider[-1]]} give {share(*ends(ratio))} of that."
        else:
            yield f"Beyond {words[top]} no gain is shown, up to {words[wider[-1]]}."
    knee = _knee(group, line, width)
    if knee is not None:
        one = value_words(name, width[base])
        unit = name.removesuffix("es") if name == "processes" else name.removesuffix("s")
        fair = f"what {one} gives" if width[base] == 1 else f"its share of what {one} give"
        yield f"From {value_words(name, knee)} on, each added {unit} gives less than half of {fair}."


def _less_will_do(group: Group, top: int, narrower: Sequence[int], words: dict[int, str]) -> Iterator[str]:
    """What the next narrower trial gives, and the narrowest one that is not told from the top."""
    if not narrower:
        return
    equal = [i for i in narrower if not is_shown(ratio_between(group, top, i)) and group.rates.num[i] > 1]
    if equal:
        least = _capital(words[equal[0]])
        yield f"{least} are not told apart from {words[top]}: no gain is shown beyond them."
        return
    if len(narrower) > 1:
        ratio = ratio_between(group, narrower[-1], top)
        yield (
            f"{_capital(words[narrower[-1]])} give {share(*ends(ratio))} of the throughput of {words[top]}."
        )


def _knee(group: Group, line: Sequence[int], width: dict[int, int]) -> int | None:
    if len(line) < 3:
        return None
    rates = {width[i]: run_rates(group.records[i]) for i in line}
    found = diminishing_from(rates, confidence=1 - look_level(group.records[line[0]]))
    return found if found is None or found < max(width.values()) else None


def shape_sentences(group: Group, best: int) -> Iterator[str]:
    """How splitting the cores among processes compares with one process on as many."""
    if not all(name in group.varying and group.is_number(name) for name in WIDTHS):
        return
    peers = [i for i in _alike_but(group, best, WIDTHS) if not np.isnan(group.rate[i])]
    cores = {i: group.points[i]["processes"] * group.points[i]["threads"] for i in peers}
    same = [i for i in peers if cores[i] == cores[best] and i != best]
    if not same:
        return
    single = single_peer(group, best)
    other = single if single is not None and single != best else max(same, key=lambda i: group.rate[i])
    yield _against(group, best, other)
    slowest = min(same, key=lambda i: group.rate[i])
    if len(same) > 1 and slowest != other:
        ratio = ratio_between(group, slowest, best)
        yield f"{_capital(_shape(group, slowest))} gives least: {share(*ends(ratio))} of that."


def single_peer(group: Group, best: int) -> int | None:
    """The trial of one process on as many cores as another trial, all else equal."""
    point = dict(group.points[best])
    point["processes"], point["threads"] = 1, point["processes"] * point["threads"]
    found = group.place.get(group.key(point))
    return None if found is None or np.isnan(group.rate[found]) else found


def _against(group: Group, best: int, other: int) -> str:
    ratio = ratio_between(group, best, other)
    told = times(*ends(ratio))
    if is_shown(ratio):
        return f"{_capital(_shape(group, best))} gives {told} the throughput of {_shape(group, other)}."
    return f"{_capital(_shape(group, best))} and {_shape(group, other)} are not told apart ({told})."


def _shape(group: Group, i: int) -> str:
    return shape_words(group.points[i]["processes"], group.points[i]["threads"])


def _alike_but(group: Group, best: int, names: Sequence[str]) -> list[int]:
    """The trials that differ from one in nothing but these parameters."""
    kinds = group.kinds(without=names)
    return [int(i) for i in np.flatnonzero(kinds == kinds[best])]


def effect_sentences(group: Group, best: int) -> Iterator[str]:
    """What each other parameter does, all else as in the fastest trial."""
    found: list[tuple[float, list[str]]] = []
    for name in group.axes:
        if name in _NOT_EFFECTS or name.startswith("args."):
            continue
        line = [i for i in group.along(best, name) if not np.isnan(group.rate[i])]
        words, size = [], 1.0
        if 2 <= len(line) <= _MANY:
            sentence, size = _effect(group, best, name, line)
            words.append(sentence)
        words += _over_all_pairs(group, name)
        found.append((size, words))
    found.sort(key=lambda pair: -pair[0])
    for _, words in found[:_MAX_EFFECTS]:
        yield from words
    if found[_MAX_EFFECTS:]:
        yield f"{counted(len(found) - _MAX_EFFECTS, 'further parameter')} did less: see the table."


def _effect(group: Group, best: int, name: str, line: Sequence[int]) -> tuple[str, float]:
    """What the best value is worth in words, and as a ratio."""
    other = _reference(group, best, name, line)
    ratio = ratio_between(group, best, other)
    own, its = (value_words(name, group.points[i].get(name)) for i in (best, other))
    told = times(*ends(ratio))
    if is_shown(ratio):
        return f"With {own} the throughput is {told} that with {its}{_at(group, best, name)}.", ratio.value
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
    told = [f"{memory(peak[i])} at {value_words('batch', group.points[i]['batch'])}" for i in (first, last)]
    yield f"Peak memory goes from {told[0]} to {told[1]}{_at(group, best, 'batch')}."


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


def _capital(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"
