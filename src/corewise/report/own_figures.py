"""One's own figures of kernels, of the kinds that publications state: bandwidth, rate, scaling."""

from collections.abc import Iterator, Sequence

import numpy as np

from corewise.report.groups import Group
from corewise.report.phrases import value_words
from corewise.report.publications import Published
from corewise.report.standing import ends, is_shown, ratio_between
from corewise.report.words import listed, number, times

TWICE = "twice as many"  # what a published figure of scaling calls itself
_MOST_KINDS = 8
# Unit of a published figure: the metric of ours, and what one of it is in that unit.
_UNITS = {"MB/s": ("gbyte_per_s", 1e3), "GB/s": ("gbyte_per_s", 1.0), "Gflop/s": ("gflop_per_s", 1.0)}
_NOUNS = {"gbyte_per_s": "bytes moved in memory", "gflop_per_s": "rate"}


def kernel_rows(group: Group, laid: Sequence[Published]) -> Iterator[list[str]]:
    """Rows of this machine for each kind of figure laid beside a kernel; none for other workloads."""
    if not np.isfinite(group.metric("gbyte_per_s")).any():
        return
    tops = _fastest_of_kinds(group)
    if any(TWICE in published.what for published in laid):
        for top in tops:
            yield from _twice_as_many_threads(group, top)
    wanted = {published.unit for published in laid if published.quantity in ("bandwidth", "rate")}
    for unit in sorted(wanted & set(_UNITS)):
        metric, scale = _UNITS[unit]
        values = group.metric(metric)
        for top in tops:
            if values[top] > 0:
                told = f"{number(scale * values[top])} {unit}"
                yield [_NOUNS[metric], "this machine", _words(group, top), told, "this report"]


def _fastest_of_kinds(group: Group) -> list[int]:
    """The fastest trial of each kind, threads apart, in the order of the first; the fastest kinds of many."""
    kinds = group.kinds(without=("threads",))
    tops: dict[int, int] = {}
    for i in np.argsort(-group.rate, kind="stable").tolist():
        if group.rate[i] > 0:
            tops.setdefault(int(kinds[i]), i)
    return sorted(list(tops.values())[:_MOST_KINDS], key=lambda i: group.key(group.points[i]))


def _twice_as_many_threads(group: Group, top: int) -> Iterator[list[str]]:
    if "threads" not in group.varying or not group.is_number("threads"):
        return
    line = {int(group.points[i]["threads"]): i for i in group.along(top, "threads")}
    for threads, i in line.items():
        if 2 * threads in line:
            ratio = ratio_between(group, line[2 * threads], i)
            setting = listed([f"{threads} to {2 * threads} threads", *_rest(group, top)], 6)
            told = times(*ends(ratio)) + ("" if is_shown(ratio) else ", not told apart")
            yield [f"throughput with {TWICE} threads", "this machine", setting, told, "this report"]


def _words(group: Group, i: int) -> str:
    threads = group.numbers("threads")[i]
    return listed([value_words("threads", int(threads)), *_rest(group, i)], 6)


def _rest(group: Group, i: int) -> list[str]:
    return [value_words(name, value) for name, value in group.points[i].items() if name != "threads"]
