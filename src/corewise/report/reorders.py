"""What a framework adds to an operator by reordering its tensors: the kernel alone beside the whole step."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from corewise.report.groups import Group
from corewise.report.model import Column, Table
from corewise.report.phrases import axis_title, rate_unit, task_words
from corewise.report.standing import is_shown, ratio_between
from corewise.report.words import rounded, shown
from corewise.stats.estimate import Estimate

REORDERS, LAYOUT = "args.reorders", "memory_format"
PEER_MEAN, PEER_BEST = "benchdnn_avg_s", "benchdnn_min_s"
NOT_APART, TOO_FEW = "not told apart", "too few runs"
TAX_HINT = "time added, of the kernel's own: throughput of the kernel alone over that with reorders, less 1"
PEER_HINT = "oneDNN's own program on the same cores, just before: the kernel alone"


@dataclass(frozen=True)
class _Pair:
    """A trial with reorders and one like it without."""

    whole: int
    alone: int


def reorder_table(group: Group) -> Table | None:
    """The tax of each trial with reorders, against those like it without; None where there is none."""
    if REORDERS not in group.columns:
        return None
    others = [name for name in group.varying if name not in (REORDERS, LAYOUT)]
    pairs = list(_pairs(group, others))
    if not pairs:
        return None
    columns, cells = [], []
    for column, values in _cells(group, others, pairs):
        if any(value is not None for value in values):
            columns.append(column)
            cells.append(values)
    return Table(
        key="reorders",
        title=f"{task_words(group)}: reorder tax",
        columns=columns,
        rows=[list(row) for row in zip(*cells, strict=True)],
        caption=(
            "Tensors that come plain are reordered for the kernel, and its result back. The kernel alone is "
            "a trial like it with `args.reorders: excluded`: that of the same memory format where there is "
            "one, else each in turn, for the fastest of several would be flattered by having been picked. "
            "Each interval is Welch's, of that pair taken alone; where it holds 0, no tax is shown."
        ),
    )


def _pairs(group: Group, others: Sequence[str]) -> Iterator[_Pair]:
    keys = [column.codes for column in group.columns.values()][::-1]
    known = [i for i in np.lexsort(keys).tolist() if not np.isnan(group.rate[i])]
    alone: dict[tuple[Any, ...], list[int]] = {}
    for i in known:
        if group.points[i][REORDERS] == "excluded":
            alone.setdefault(_like(group.points[i], others), []).append(i)
    for i in known:
        if group.points[i][REORDERS] == "included":
            kernels = alone.get(_like(group.points[i], others), [])
            same = [k for k in kernels if _value(group, k, LAYOUT) == _value(group, i, LAYOUT)]
            yield from (_Pair(i, kernel) for kernel in same or kernels)


def _cells(
    group: Group, others: Sequence[str], pairs: Sequence[_Pair]
) -> Iterator[tuple[Column, Sequence[Any]]]:
    unit, level = rate_unit(group), f"{100 * group.confidence:g} %"
    ratios = [ratio_between(group, pair.alone, pair.whole) for pair in pairs]
    wholes, alones = [pair.whole for pair in pairs], [pair.alone for pair in pairs]
    for name in others:
        yield Column(key=name, title=axis_title(name)), [shown(group.points[i][name]) for i in wholes]
    yield Column(key="layout", title="memory format"), _layouts(group, wholes)
    yield (
        Column(key="whole", title=f"{unit} with reorders", kind="number", unit=unit),
        [rounded(float(group.rate[i]), 5) for i in wholes],
    )
    yield (
        Column(key="alone", title=f"{unit} of the kernel alone", kind="number", unit=unit),
        [rounded(float(group.rate[i]), 5) for i in alones],
    )
    yield Column(key="alone_layout", title="its memory format"), _layouts(group, alones)
    yield Column(key="tax", title="tax", kind="percent", hint=TAX_HINT), [_tax(r.value) for r in ratios]
    yield (
        Column(key="tax_low", title=f"{level} interval", kind="percent", upto="tax_high"),
        [_tax(r.low) for r in ratios],
    )
    yield (
        Column(key="tax_high", title=f"{level} interval, high", kind="percent"),
        [_tax(r.high) for r in ratios],
    )
    yield (
        Column(key="doubt", title="doubt", hint="whether a tax is shown at all"),
        [_doubt(r) for r in ratios],
    )
    yield (
        Column(key="disturbed", title="disturbed", hint="a run of either that counts was disturbed"),
        [bool(group.is_disturbed[p.whole] or group.is_disturbed[p.alone]) or None for p in pairs],
    )
    for key, title in ((PEER_MEAN, "benchdnn, mean"), (PEER_BEST, "benchdnn, best")):
        yield (
            Column(key=key, title=title, kind="number", unit=unit, hint=PEER_HINT),
            [_peer_rate(group, key, i) for i in alones],
        )


def _tax(ratio: float | None) -> float | None:
    return None if ratio is None else rounded(ratio - 1, 4)


def _doubt(ratio: Estimate) -> str | None:
    if ratio.low is None:
        return TOO_FEW
    return None if is_shown(ratio) else NOT_APART


def _peer_rate(group: Group, key: str, i: int) -> float | None:
    """Executions a second in all processes, each of which asked benchdnn on its own cores."""
    seconds = float(group.metric(key)[i])
    num_processes = int(_value(group, i, "processes") or 1)
    return rounded(num_processes / seconds, 5) if seconds > 0 else None


def _layouts(group: Group, places: Sequence[int]) -> list[str]:
    return [str(_value(group, i, LAYOUT)) for i in places]


def _like(point: Mapping[str, Any], others: Sequence[str]) -> tuple[Any, ...]:
    return tuple(shown(point[name]) for name in others)


def _value(group: Group, i: int, name: str) -> Any:
    return group.points[i].get(name, group.constant.get(name, ""))
