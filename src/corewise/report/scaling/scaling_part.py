"""The part of a report about scaling over nodes or processes: sentences, charts and a table."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from corewise.analysis.findings.scaling_findings import describe_missing_parts
from corewise.analysis.groups import Group
from corewise.analysis.phrases import describe_point, describe_task, format_axis_title, name_rate_unit
from corewise.analysis.scaling.scaling_curves import ScalingCurve, ScalingPoint
from corewise.analysis.scaling.scaling_sentences import describe_curve
from corewise.analysis.scaling.step_split import StepPart
from corewise.report.report_model import Chart, Column, Table
from corewise.text_format import format_list, round_significant

_PART_KEYS = {part: f"part-{part.name.lower()}" for part in StepPart}


@dataclass(frozen=True)
class ScalingPart:
    """What a report shows about the scaling of one group.

    Attributes:
        units: the parameters that the charts have on their x axes.
    """

    units: Sequence[str]
    sentences: Sequence[str]
    charts: Sequence[Chart]
    tables: Sequence[Table]

    @property
    def headline(self) -> Sequence[str]:
        """The first sentence, if it is about nodes: a study over nodes asks how well they scale."""
        return self.sentences[:1] if self.units[:1] == ["nodes"] else ()


def build_scaling_part(group: Group, curves: Sequence[ScalingCurve]) -> ScalingPart:
    """Build the part of a group's scaling curves."""
    if not curves:
        return ScalingPart((), (), (), ())
    from corewise.report.scaling.scaling_charts import build_efficiency_chart, build_split_chart, build_throughput_chart

    charts: list[Chart | None] = []
    tables = []
    units = list(dict.fromkeys(curve.unit for curve in curves))
    for unit in units:
        own = [curve for curve in curves if curve.unit == unit]
        charts += [
            build_throughput_chart(group, own),
            build_efficiency_chart(group, own),
            build_split_chart(group, own),
        ]
        tables.append(_build_table(group, own))
    sentences = [sentence for curve in curves for sentence in describe_curve(group, curve)]
    return ScalingPart(units, sentences, [chart for chart in charts if chart is not None], tables)


def _build_table(group: Group, curves: Sequence[ScalingCurve]) -> Table:
    unit, rate_unit = curves[0].unit, name_rate_unit(group)
    columns = [
        Column(key="curve", title="setting"),
        Column(key="scaling", title="scaling", hint="weak: constant work per rank; strong: constant work in total"),
        Column(key="count", title=format_axis_title(unit), kind="number"),
        Column(key="rate", title="throughput", kind="number", unit=rate_unit),
        Column(key="efficiency", title="efficiency", kind="number", hint="E = P / (n / b · P of the base b)"),
        Column(key="efficiency-low", title="efficiency from", kind="number", upto="efficiency-high"),
        Column(key="efficiency-high", title="to", kind="number"),
        Column(key="predicted", title="model", kind="number", unit=rate_unit, hint="throughput by the fitted model"),
        Column(key="predicted-low", title="model from", kind="number", unit=rate_unit, upto="predicted-high"),
        Column(key="predicted-high", title="to", kind="number", unit=rate_unit),
        Column(key="step", title="step", kind="seconds"),
        *(Column(key=key, title=part.value, kind="seconds") for part, key in _PART_KEYS.items()),
        Column(key="slowest", title="slowest rank"),
    ]
    rows = [row for curve in curves for row in _build_rows(curve)]
    keep = [k for k in range(len(columns)) if any(row[k] is not None for row in rows)]
    return Table(
        key=f"{group.workload_name} {group.mode} scaling {unit}",
        title=f"{describe_task(group)}: scaling over {format_axis_title(unit)}",
        columns=[columns[k] for k in keep],
        rows=[[row[k] for k in keep] for row in rows],
        caption=describe_split_source(curves),
    )


def _build_rows(curve: ScalingCurve) -> Iterator[list[str | float | int | None]]:
    label = describe_point(curve.point) or "all"
    predicted = {each.count: each for each in curve.predictions}
    measured = {point.count: point for point in curve.points}
    for count in sorted({*measured, *predicted}):
        point, model = measured.get(count), predicted.get(count)
        yield [
            label,
            curve.scaling.value,
            count,
            *_list_figures(point),
            *([None] * 3 if model is None else map(round_significant, (model.rate, model.low, model.high))),
            None if point is None else round_significant(point.step_s),
            *_list_parts(point),
            _name_slowest(point),
        ]


def _list_figures(point: ScalingPoint | None) -> list[float | None]:
    if point is None:
        return [None] * 4
    figures = (point.rate, point.efficiency, point.efficiency_low, point.efficiency_high)
    return [round_significant(value) for value in figures]


def _list_parts(point: ScalingPoint | None) -> list[float | None]:
    parts_s = {} if point is None or point.split is None else point.split.parts_s
    return [round_significant(parts_s.get(part)) for part in StepPart]


def _name_slowest(point: ScalingPoint | None) -> str | None:
    if point is None or point.split is None or point.split.slowest is None:
        return None
    slowest = point.split.slowest
    host = f" ({slowest.host})" if slowest.host else ""
    return f"{slowest.rank} on node {slowest.node}{host}"


def describe_split_source(curves: Sequence[ScalingCurve]) -> str:
    """Describe where the parts of the steps come from, and which are missing."""
    splits = [point.split for curve in curves for point in curve.points if point.split is not None]
    if not splits:
        return "The records hold no figures of the ranks, so the steps are not split."
    notes = ["Parts of a step: means over ranks, medians over runs."]
    if any(split.is_estimated for split in splits):
        notes.append(
            "They are estimated from CPU time: compute is the CPU time of a rank per core, exposed communication the "
            "time in which its CPUs are idle, other the time of other programs on them."
        )
    missing = list(dict.fromkeys(describe_missing_parts(split) for split in splits if split.missing))
    if missing:
        notes.append(f"{format_list(missing, 3)[:1].upper()}{format_list(missing, 3)[1:]}.")
    return " ".join(notes)
