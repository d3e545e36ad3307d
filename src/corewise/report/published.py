"""Published figures laid beside one's own; where they are another quantity, that is said."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from corewise.report.charts.overlay import efficiency_overlay, grid_chart
from corewise.report.effects import pair_of, pairs_of, single_peer
from corewise.report.groups import WIDTHS, Group
from corewise.report.model import Chart, Column, Table
from corewise.report.own_figures import kernel_rows
from corewise.report.phrases import shape_label, task_words, value_words
from corewise.report.publications import Publication, Published, Value, matching
from corewise.report.series import across, fixes_cores
from corewise.report.standing import Standing, ends, is_shown, ratio_between
from corewise.report.words import figure, listed, short, times

_COLUMNS = (
    Column(key="what", title="figure"),
    Column(key="machine", title="machine"),
    Column(key="setting", title="setting"),
    Column(key="value", title="value"),
    Column(key="source", title="source"),
)


@dataclass(frozen=True)
class Beside:
    """What of the publications stands beside one group."""

    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    sources: Sequence[str] = ()  # citations in full


def beside(group: Group, standing: Standing, publications: Sequence[Publication]) -> Beside:
    """The published figures that may stand beside a group's own, own figures first."""
    if not standing.best:
        return Beside()
    best = max(standing.best.values(), key=lambda i: group.rate[i])
    charts: list[Chart] = []
    rows: list[list[str]] = []
    laid: list[Published] = []  # those in rows
    used: dict[str, None] = {}
    for publication in publications:
        for published in publication.figures:
            if not matching(published, group.workload, group.mode, group.varying):
                continue
            chart = _chart(group, best, publication, published)
            lines = [] if chart else list(_rows(group, publication, published))
            if chart is not None:
                charts.append(chart)
            rows += lines
            laid += [published] if lines else []
            if chart is not None or lines:
                used[publication.citation] = None
    return Beside(charts, _tables(group, standing, best, laid, rows), list(used))


def _chart(group: Group, best: int, publication: Publication, published: Published) -> Chart | None:
    if published.grid is not None:
        return grid_chart(group, publication, published)
    if published.quantity == "efficiency":
        alone = [name for name in across(group) if name in WIDTHS and not fixes_cores(group)]
        # Processes that exchange gradients are nearer to nodes than threads are.
        for name in sorted(alone, key=WIDTHS.index):
            chart = efficiency_overlay(group, name, best, publication, published)
            if chart is not None:
                return chart
    return None


def _rows(group: Group, publication: Publication, published: Published) -> Iterator[list[str]]:
    if published.quantity == "assumption" or published.x == "statistic":
        return  # the tables on dynamic threads have them
    source = f"{publication.short_citation}, {published.where}".rstrip(", ")
    for value in published.values:
        if value.workload in ("", group.workload):
            told = (
                f"{value.setting} ({value.note})"
                if value.setting and value.note
                else value.setting or value.note
            )
            yield [published.what, value.machine, told, _value_words(published, value), source]
    if published.quantity == "efficiency":
        return  # a curve of efficiency is drawn or left out: its numbers alone would mislead
    for line in published.lines:
        if line.workload in ("", group.workload):
            pairs = [f"{_x(x)}: {_number(y)}" for x, y in zip(line.x, line.y, strict=True)]
            yield [published.what, line.machine, line.setting, ", ".join(pairs), source]


def _x(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def _number(value: float) -> str:
    return f"{value:,.10g}"


def _value_words(published: Published, value: Value) -> str:
    if value.text:
        return value.text
    scale, unit = (
        (100, " %") if published.quantity == "share" else (1, "×" if published.quantity == "ratio" else "")
    )
    unit = unit or (f" {published.unit}" if published.unit else "")
    low, high = (None if x is None else _number(x * scale) for x in (value.low, value.high))
    if value.value is None:
        if low is None or high is None:
            return f"{'above' if high is None else 'below'} {low or high}{unit}"
        return f"{low} to {high}{unit}"
    span = f" ({low} to {high})" if low is not None and high is not None and low != high else ""
    return f"{_number(value.value * scale)}{unit}{span}"


def _tables(
    group: Group, standing: Standing, best: int, laid: Sequence[Published], rows: Sequence[Sequence[str]]
) -> list[Table]:
    if not rows:
        return []
    own = [*_own_rows(group, standing, best, {row[0] for row in rows}), *kernel_rows(group, laid)]
    return [
        Table(
            key="published",
            title=f"{task_words(group)}: beside published figures",
            columns=_COLUMNS,
            rows=[*own, *([short(cell, 200) for cell in row] for row in rows)],
            caption=(
                "Yours first, from this machine. The others were measured on other machines, with other "
                "software and another protocol: they show what to expect, not what is right."
                + _differences(laid)
            ),
        )
    ]


def _differences(laid: Sequence[Published]) -> str:
    """What sets published figures apart from one's own, each said once."""
    told = dict.fromkeys(published.differs for published in laid if published.differs)
    return f" These are not the same quantity: {'; '.join(told)}." if told else ""


def _own_rows(group: Group, standing: Standing, best: int, wanted: set[str]) -> Iterator[list[str]]:
    """One's own figures of the kinds that the published ones have."""
    if (
        any("vendor" in what for what in wanted)
        and "math" in group.varying
        and len(group.values("math")) == 2
    ):
        base, other = pair_of(group, "math")
        ratios = [float(group.rate[i] / group.rate[j]) for i, j in pairs_of(group, "math", base, other)]
        if ratios:
            words = f"{value_words('math', other)} over {value_words('math', base)}, {len(ratios)} pairs"
            span = f"{min(ratios):.2f} to {max(ratios):.2f}×" if len(ratios) > 1 else times(ratios[0])
            yield ["throughput with vendor math over vanilla", "this machine", words, span, "this report"]
    if all(name in group.varying and group.is_number(name) for name in WIDTHS):
        point = group.points[best]
        rest = [value_words(n, v) for n, v in point.items() if n not in WIDTHS]
        shape = shape_label(point["processes"], point["threads"])
        equal = [group.points[i] for i in standing.with_equals(best)[1:]]
        also = list(dict.fromkeys(shape_label(p["processes"], p["threads"]) for p in equal))
        also = [each for each in also if each != shape]
        what = "highest rate, processes × threads" if also else "fastest processes × threads"
        told = f"{shape}, not told apart from {listed(also, 4)}" if also else shape
        yield [what, "this machine", listed(rest, 6), told, "this report"]
        single = single_peer(group, best)
        if single is not None and single != best:
            ratio = ratio_between(group, best, single)
            yield [
                "throughput of that shape over one process", "this machine", listed(rest, 6),
                times(*ends(ratio)) + ("" if is_shown(ratio) else ", not told apart"), "this report",
            ]  # fmt: skip
    if any("memory" in what for what in wanted):
        peak = group.metric("peak_memory_bytes")[best]
        if not np.isnan(peak):
            setting = value_words("batch", group.points[best].get("batch"))
            yield [
                "main memory of training",
                "this machine",
                setting,
                f"{figure(peak / 1e9)} GB",
                "this report",
            ]
