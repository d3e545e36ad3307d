"""The reorder tax: what a framework adds to an operator by reordering its tensors."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from corewise.analysis.groups import Group
from corewise.analysis.phrases import describe_task, format_axis_title, name_rate_unit
from corewise.analysis.ratios import estimate_ratio, is_significant
from corewise.report.report_model import Column, Table
from corewise.stats.estimate import Estimate
from corewise.text_format import format_value, round_significant

REORDERS, LAYOUT = "args.reorders", "memory_format"
PEER_MEAN, PEER_BEST = "benchdnn_avg_s", "benchdnn_min_s"
NO_DIFFERENCE, TOO_FEW = "no significant difference", "too few runs"
TAX_HINT = "added time relative to the kernel: throughput of the kernel alone over that with reorders, minus 1"
PEER_HINT = "oneDNN's benchmark program on the same cores, run just before: the kernel alone"


@dataclass(frozen=True)
class _Pair:
    """A trial with reorders, and one without that is otherwise equal."""

    whole: int
    alone: int


def build_reorder_table(group: Group) -> Table | None:
    """Build the table of reorder taxes, or return None where no pair of trials exists."""
    if REORDERS not in group.columns:
        return None
    others = [name for name in group.varying if name not in (REORDERS, LAYOUT)]
    pairs = list(_find_pairs(group, others))
    if not pairs:
        return None
    columns, cells = [], []
    for column, values in _build_columns(group, others, pairs):
        if any(value is not None for value in values):
            columns.append(column)
            cells.append(values)
    return Table(
        key="reorders",
        title=f"{describe_task(group)}: reorder tax",
        columns=columns,
        rows=[list(row) for row in zip(*cells, strict=True)],
        caption=(
            "Plain tensors are reordered for the kernel, and its result is reordered back. The kernel alone "
            "is an otherwise equal trial with `args.reorders: excluded`: the one with the same memory "
            "format, else every one (picking the fastest would be biased). Each interval is Welch's, for "
            "the one pair, not corrected for the number of pairs. Where it includes 0, no tax is shown."
        ),
    )


def _find_pairs(group: Group, others: Sequence[str]) -> Iterator[_Pair]:
    keys = [column.codes for column in group.columns.values()][::-1]
    known = [i for i in np.lexsort(keys).tolist() if not np.isnan(group.rate[i])]
    alone: dict[tuple[Any, ...], list[int]] = {}
    for i in known:
        if group.points[i][REORDERS] == "excluded":
            alone.setdefault(_build_peer_key(group.points[i], others), []).append(i)
    for i in known:
        if group.points[i][REORDERS] == "included":
            kernels = alone.get(_build_peer_key(group.points[i], others), [])
            equal_layout = [k for k in kernels if _get_value(group, k, LAYOUT) == _get_value(group, i, LAYOUT)]
            yield from (_Pair(i, kernel) for kernel in equal_layout or kernels)


def _build_columns(
    group: Group, others: Sequence[str], pairs: Sequence[_Pair]
) -> Iterator[tuple[Column, Sequence[Any]]]:
    unit, level = name_rate_unit(group), f"{100 * group.confidence:g} %"
    ratios = [estimate_ratio(group, pair.alone, pair.whole) for pair in pairs]
    wholes, alones = [pair.whole for pair in pairs], [pair.alone for pair in pairs]
    for name in others:
        yield (Column(key=name, title=format_axis_title(name)), [format_value(group.points[i][name]) for i in wholes])
    yield Column(key="layout", title="memory format"), _list_layouts(group, wholes)
    yield (
        Column(key="whole", title=f"{unit} with reorders", kind="number", unit=unit),
        [round_significant(float(group.rate[i]), 5) for i in wholes],
    )
    yield (
        Column(key="alone", title=f"{unit} of the kernel alone", kind="number", unit=unit),
        [round_significant(float(group.rate[i]), 5) for i in alones],
    )
    yield Column(key="alone_layout", title="its memory format"), _list_layouts(group, alones)
    yield (Column(key="tax", title="tax", kind="percent", hint=TAX_HINT), [_compute_tax(r.value) for r in ratios])
    yield (
        Column(key="tax_low", title=f"{level} interval", kind="percent", upto="tax_high"),
        [_compute_tax(r.low) for r in ratios],
    )
    yield (
        Column(key="tax_high", title=f"{level} interval, high", kind="percent"),
        [_compute_tax(r.high) for r in ratios],
    )
    yield (
        Column(key="doubt", title="doubt", hint="whether a tax is shown at all"),
        [_describe_doubt(r) for r in ratios],
    )
    yield (
        Column(key="disturbed", title="disturbed", hint="at least one counted run of the pair was disturbed"),
        [bool(group.is_disturbed[p.whole] or group.is_disturbed[p.alone]) or None for p in pairs],
    )
    for key, title in ((PEER_MEAN, "benchdnn, mean"), (PEER_BEST, "benchdnn, best")):
        yield (
            Column(key=key, title=title, kind="number", unit=unit, hint=PEER_HINT),
            [_compute_peer_rate(group, key, i) for i in alones],
        )


def _compute_tax(ratio: float | None) -> float | None:
    return None if ratio is None else round_significant(ratio - 1, 4)


def _describe_doubt(ratio: Estimate) -> str | None:
    if ratio.low is None:
        return TOO_FEW
    return None if is_significant(ratio) else NO_DIFFERENCE


def _compute_peer_rate(group: Group, key: str, i: int) -> float | None:
    """Compute executions per second over all processes; each ran benchdnn on its own cores."""
    seconds = float(group.get_metric(key)[i])
    num_processes = int(_get_value(group, i, "processes") or 1)
    return round_significant(num_processes / seconds, 5) if seconds > 0 else None


def _list_layouts(group: Group, places: Sequence[int]) -> list[str]:
    return [str(_get_value(group, i, LAYOUT)) for i in places]


def _build_peer_key(point: Mapping[str, Any], others: Sequence[str]) -> tuple[Any, ...]:
    return tuple(format_value(point[name]) for name in others)


def _get_value(group: Group, i: int, name: str) -> Any:
    return group.points[i].get(name, group.constant.get(name, ""))
