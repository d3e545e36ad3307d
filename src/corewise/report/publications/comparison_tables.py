"""Published figures next to one's own; captions say where the quantities differ."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from corewise.analysis.effects import choose_pair_values, find_pairs, find_single_process_peer
from corewise.analysis.groups import WIDTHS, Group
from corewise.analysis.phrases import describe_task, describe_value, label_shape
from corewise.analysis.ranking import TrialRanking
from corewise.analysis.ratios import estimate_ratio, is_significant, unpack_estimate
from corewise.report.charts.overlay import build_efficiency_overlay, build_grid_chart
from corewise.report.charts.series import find_node_axis, find_numeric_axes, has_constant_cores
from corewise.report.publications.kernel_figures import build_kernel_rows
from corewise.report.publications.published_figures import Publication, Published, PublishedValue, is_comparable
from corewise.report.report_model import Chart, Column, Table
from corewise.text_format import format_figure, format_list, format_ratio, shorten

_COLUMNS = (
    Column(key="what", title="figure"),
    Column(key="machine", title="machine"),
    Column(key="setting", title="setting"),
    Column(key="value", title="value"),
    Column(key="source", title="source"),
)


@dataclass(frozen=True)
class PublishedComparison:
    """Charts, tables and full citations of the publications that match one group."""

    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    sources: Sequence[str] = ()


def compare_with_published(
    group: Group, standing: TrialRanking, publications: Sequence[Publication]
) -> PublishedComparison:
    """Compare a group with the published figures that match it; own figures come first."""
    if not standing.best:
        return PublishedComparison()
    best = max(standing.best.values(), key=lambda i: group.rate[i])
    charts: list[Chart] = []
    rows: list[list[str]] = []
    listed: list[Published] = []
    used: dict[str, None] = {}
    for publication in publications:
        for published in publication.figures:
            if not is_comparable(published, group.workload, group.mode, group.varying):
                continue
            chart = _build_chart(group, best, publication, published)
            lines = [] if chart else list(_build_rows(group, publication, published))
            if chart is not None:
                charts.append(chart)
            rows += lines
            listed += [published] if lines else []
            if chart is not None or lines:
                used[publication.citation] = None
    return PublishedComparison(charts, _build_tables(group, standing, best, listed, rows), list(used))


def _build_chart(group: Group, best: int, publication: Publication, published: Published) -> Chart | None:
    if published.grid is not None:
        return build_grid_chart(group, publication, published)
    if published.quantity == "efficiency":
        alone = [name for name in find_numeric_axes(group) if name in WIDTHS and not has_constant_cores(group)]
        # Published curves are over nodes. Processes that exchange gradients are nearer to nodes than threads are.
        for name in [*find_node_axis(group), *sorted(alone, key=WIDTHS.index)]:
            chart = build_efficiency_overlay(group, name, best, publication, published)
            if chart is not None:
                return chart
    return None


def _build_rows(group: Group, publication: Publication, published: Published) -> Iterator[list[str]]:
    if published.quantity == "assumption" or published.x == "statistic":
        # The tables on dynamic threads hold these.
        return
    source = f"{publication.short_citation}, {published.where}".rstrip(", ")
    for value in published.values:
        if value.workload in ("", group.workload):
            setting = f"{value.setting} ({value.note})" if value.setting and value.note else value.setting or value.note
            yield [published.what, value.machine, setting, _format_value(published, value), source]
    if published.quantity == "efficiency":
        # An efficiency curve is shown as a chart only; its numbers alone would mislead.
        return
    for line in published.lines:
        if line.workload in ("", group.workload):
            pairs = [f"{_format_x(x)}: {_format_number(y)}" for x, y in zip(line.x, line.y, strict=True)]
            yield [published.what, line.machine, line.setting, ", ".join(pairs), source]


def _format_x(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def _format_number(value: float) -> str:
    return f"{value:,.10g}"


def _format_value(published: Published, value: PublishedValue) -> str:
    if value.text:
        return value.text
    scale, unit = (100, " %") if published.quantity == "share" else (1, "×" if published.quantity == "ratio" else "")
    unit = unit or (f" {published.unit}" if published.unit else "")
    low, high = (None if x is None else _format_number(x * scale) for x in (value.low, value.high))
    if value.value is None:
        if low is None or high is None:
            return f"{'above' if high is None else 'below'} {low or high}{unit}"
        return f"{low} to {high}{unit}"
    span = f" ({low} to {high})" if low is not None and high is not None and low != high else ""
    return f"{_format_number(value.value * scale)}{unit}{span}"


def _build_tables(
    group: Group, standing: TrialRanking, best: int, listed: Sequence[Published], rows: Sequence[Sequence[str]]
) -> list[Table]:
    if not rows:
        return []
    own = [*_build_own_rows(group, standing, best, {row[0] for row in rows}), *build_kernel_rows(group, listed)]
    return [
        Table(
            key="published",
            title=f"{describe_task(group)}: published figures",
            columns=_COLUMNS,
            rows=[*own, *([shorten(cell, 200) for cell in row] for row in rows)],
            caption=(
                "Your figures come first. The others were measured on other machines, with other software "
                "and another protocol; they show what to expect, not what is right." + _describe_differences(listed)
            ),
        )
    ]


def _describe_differences(listed: Sequence[Published]) -> str:
    """Describe what distinguishes published figures from one's own, each difference once."""
    differences = dict.fromkeys(published.differs for published in listed if published.differs)
    return f" These are different quantities: {'; '.join(differences)}." if differences else ""


def _build_own_rows(group: Group, standing: TrialRanking, best: int, wanted: set[str]) -> Iterator[list[str]]:
    """Yield one's own figures for the quantities that were published."""
    if any("vendor" in what for what in wanted) and "math" in group.varying and len(group.list_values("math")) == 2:
        base, other = choose_pair_values(group, "math")
        ratios = [float(group.rate[i] / group.rate[j]) for i, j in find_pairs(group, "math", base, other)]
        if ratios:
            pair = f"{describe_value('math', other)} over {describe_value('math', base)}, {len(ratios)} pairs"
            span = f"{min(ratios):.2f} to {max(ratios):.2f}×" if len(ratios) > 1 else format_ratio(ratios[0])
            yield ["throughput with vendor math over vanilla", "this machine", pair, span, "this report"]
    if all(name in group.varying and group.is_number(name) for name in WIDTHS):
        point = group.points[best]
        rest = [describe_value(n, v) for n, v in point.items() if n not in WIDTHS]
        shape = label_shape(point["processes"], point["threads"])
        equal = [group.points[i] for i in standing.list_best_and_ties(best)[1:]]
        also = list(dict.fromkeys(label_shape(p["processes"], p["threads"]) for p in equal))
        also = [each for each in also if each != shape]
        what = "highest rate, processes × threads" if also else "fastest processes × threads"
        value = f"{shape}, no significant difference from {format_list(also, 4)}" if also else shape
        yield [what, "this machine", format_list(rest, 6), value, "this report"]
        single = find_single_process_peer(group, best)
        if single is not None and single != best:
            ratio = estimate_ratio(group, best, single)
            yield [
                "throughput of that shape over one process",
                "this machine",
                format_list(rest, 6),
                format_ratio(*unpack_estimate(ratio))
                + ("" if is_significant(ratio) else (", no significant difference")),
                "this report",
            ]
    if any("memory" in what for what in wanted):
        peak = group.get_metric("peak_memory_bytes")[best]
        if not np.isnan(peak):
            setting = describe_value("batch", group.points[best].get("batch"))
            yield [
                "main memory of training", "this machine", setting, f"{format_figure(peak / 1e9)} GB",
                "this report",
            ]  # fmt: skip
