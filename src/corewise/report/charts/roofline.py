"""The roofline chart: flop rate against arithmetic intensity, with the machine's measured ceilings.

After S. Williams, A. Waterman and D. Patterson, "Roofline: an insightful visual performance model for
multicore architectures" (2009).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from corewise.analysis.columns import parse_number
from corewise.analysis.groups import Group
from corewise.analysis.machines import get_machine_key, label_machines
from corewise.analysis.phrases import (
    describe_point,
    describe_task,
    describe_value,
    format_axis_title,
    select_main_params,
)
from corewise.machine.ceilings.rate_format import SAME_RATE, find_rate_format
from corewise.report.charts.chart_labels import join_sentences
from corewise.report.charts.chart_theme import (
    COLOURS,
    DASHES,
    GREY,
    Highlight,
    build_key,
    build_layered_spec,
    build_tooltips,
    build_y_axis,
    compute_log_ticks,
    create_chart,
    encode_colour,
    encode_shape,
)
from corewise.report.method import warn_of_busy_ceilings
from corewise.report.report_model import Chart
from corewise.study.record import Record
from corewise.text_format import format_count, format_figure, format_list, format_number, round_significant, shorten

MAX_POINTS = 600
MAX_ROOFS = 12
HEIGHT = 360
_NEEDED = (*("gflop_per_s", "flops_per_byte", "fraction_of_ceiling"), *("ceiling_gflop_per_s", "ceiling_gbyte_per_s"))
# Opacity of the ceilings of fewer threads.
_FAINT_OPACITY = 0.4
# Labels closer than this, in powers of ten, would overlap.
_MIN_LABEL_DISTANCE = 0.12
# Share of the height for the label of the highest ceiling.
_HEADROOM = 0.05
# Factors of space beyond the outermost points and ridges.
_ROOM, _ROOM_FOR_LABELS = 3.0, 10.0


@dataclass(frozen=True)
class RooflineCeiling:
    """The ceiling for trials of one machine, precision and width (threads or GPUs).

    Where several formats have the same rate, the precision is the one that was measured.
    """

    machine: str
    device: str
    precision: str
    width: int
    gflop_per_s: float
    gbyte_per_s: float

    @property
    def ridge(self) -> float:
        """The flops per byte from which on computing is the limit."""
        return self.gflop_per_s / self.gbyte_per_s


@dataclass(frozen=True)
class RooflineDot:
    """A trial below its ceiling; the format is the one whose rate bounds it."""

    group: Group
    i: int
    roof: RooflineCeiling
    flops_per_byte: float
    gflop_per_s: float
    fraction: float
    format: str


def build_roofline_chart(study: str, title: str, groups: Sequence[Group]) -> Chart | None:
    """Build the roofline of a study, or return None where no ceiling is known."""
    dots = find_dots(groups)
    if not dots:
        return None
    drawn = _sample_dots(dots)
    roofs = _choose_roofs([dot.roof for dot in drawn])
    best = max(drawn, key=lambda dot: dot.fraction)
    limits = {"memory" if dot.flops_per_byte < dot.roof.ridge else "computing" for dot in drawn}
    return Chart(
        key=build_key(study, "roofline"),
        title=f"{title}: roofline",
        spec=_build_spec(drawn, roofs),
        caption=join_sentences(
            "Median flop rate over runs against flops per byte of minimum traffic. Lines: the attainable "
            "rate measured by `corewise doctor --ceilings`, bandwidth × flops per byte up to the peak; "
            "lighter lines are for fewer threads.",
            warn_of_busy_ceilings([dot.group.records[dot.i] for dot in drawn]),
            _describe_omissions(groups, dots, drawn, roofs),
        ),
        alt=(
            f"Roofline of {format_count(len(drawn), 'trial')}, limited by {format_list(sorted(limits))}; "
            f"the closest to its ceiling reaches {100 * best.fraction:.0f} % of it: "
            f"{format_figure(best.gflop_per_s)} Gflop/s at {format_number(best.flops_per_byte)} flops per "
            "byte."
        ),
    )


def find_dots(groups: Sequence[Group]) -> list[RooflineDot]:
    """Find the trials with known work and known ceilings."""
    labels = label_machines([record for group in groups for record in group.records])
    dots = []
    for group in groups:
        for i, record in enumerate(group.records):
            figures = [parse_number(record.metrics.get(name)) for name in _NEEDED]
            # This also excludes NaN.
            if not all(value > 0 for value in figures):
                continue
            rate, intensity, fraction, peak, bandwidth = figures
            machine = labels[get_machine_key(record.machine)] if len(labels) > 1 else ""
            precision, (device, width) = find_rate_format(record.params), _find_width(record)
            roof = RooflineCeiling(machine, device, SAME_RATE.get(precision, precision), width, peak, bandwidth)
            dots.append(RooflineDot(group, i, roof, intensity, rate, fraction, precision))
    return dots


def _find_width(record: Record) -> tuple[str, int]:
    """Return the device of a trial and how many GPUs or threads it uses."""
    params = record.params
    processes, threads = (parse_number(params.get(name)) for name in ("processes", "threads"))
    device = str(params.get("device", "cpu"))
    width = processes if device == "cuda" else processes * threads
    return device, int(width) if math.isfinite(width) else 1


def _choose_roofs(roofs: Sequence[RooflineCeiling]) -> list[RooflineCeiling]:
    """Return the distinct ceilings; of many, those of the widest trials."""
    distinct = sorted(set(roofs), key=lambda roof: (-roof.width, roof.precision, -roof.gflop_per_s))
    return distinct[:MAX_ROOFS]


def _sample_dots(dots: Sequence[RooflineDot]) -> list[RooflineDot]:
    """Return the dots, or MAX_POINTS of them spread evenly over their rates."""
    if len(dots) <= MAX_POINTS:
        return list(dots)
    in_order = sorted(dots, key=lambda dot: dot.gflop_per_s)
    return [in_order[round(k * (len(dots) - 1) / (MAX_POINTS - 1))] for k in range(MAX_POINTS)]


def _describe_omissions(
    groups: Sequence[Group], dots: Sequence[RooflineDot], drawn: Sequence[RooflineDot], roofs: Sequence[RooflineCeiling]
) -> str:
    num = sum(len(group.records) for group in groups)
    notes = []
    if num > len(dots):
        notes.append(f"not shown: {format_count(num - len(dots), 'trial')} without flops or without a ceiling")
    if len(dots) > len(drawn):
        notes.append(f"{len(drawn):,} of {len(dots):,} trials are shown")
    num_roofs = len({dot.roof for dot in drawn})
    if num_roofs > len(roofs):
        notes.append(f"{len(roofs)} of {num_roofs} ceilings are shown")
    text = "; ".join(notes)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _build_spec(dots: Sequence[RooflineDot], roofs: Sequence[RooflineCeiling]) -> dict[str, Any]:
    import altair as alt

    xs = [*(dot.flops_per_byte for dot in dots), *(roof.ridge for roof in roofs)]
    low, high = min(xs) / _ROOM, max(xs) * _ROOM_FOR_LABELS
    ys = [*(dot.gflop_per_s for dot in dots), *(roof.gflop_per_s for roof in roofs)]
    ys += [min(max(roof.gbyte_per_s * low, min(ys) / _ROOM) for roof in roofs)]
    ys += [max(ys) * (max(ys) / min(ys)) ** _HEADROOM]
    x = alt.X(
        "x:Q",
        title="flops per byte of minimum traffic",
        scale=alt.Scale(type="log", domain=[low, high], nice=False),
        axis=alt.Axis(values=compute_log_ticks([low, high]), format=",~r", grid=False),
    )
    y = build_y_axis("Gflop/s", ys, log=True, fmt=",~r")
    labels = _label_roofs(dots)
    lines = _build_roof_rows(roofs, labels, low, high, min(ys) * 0.85)
    precisions = list(dict.fromkeys(row["precision"] for row in lines))
    dash = alt.Scale(domain=precisions, range=[DASHES[k % len(DASHES)] for k in range(len(precisions))])
    faint = alt.Opacity("weight:Q", scale=None, legend=None)
    roof = create_chart("roofs").mark_line(strokeWidth=1.8, color=GREY, clip=True)
    text_layer = create_chart("roofs").mark_text(align="right", dx=-2, dy=-7, fontSize=10, color=GREY)
    rows, names, title = _build_rows(dots, labels)
    tips = {
        "point:N": "setting", "y:Q": "Gflop/s", "x:Q": "flops per byte", "share:N": "share of attainable",
        "limit:N": "limited by", "roof:N": "under", "trial:N": "trial",
    }  # fmt: skip
    points = (
        create_chart()
        .mark_point(filled=True, size=75)
        .encode(
            x=x,
            y=y,
            color=encode_colour(title, names),
            shape=encode_shape("series", title, names),
            tooltip=build_tooltips(tips),
        )
    )
    layers = [
        roof.encode(
            x=x,
            y=y,
            detail="label:N",
            opacity=faint,
            order="x:Q",
            strokeDash=alt.StrokeDash("precision:N", scale=dash, legend=None),
            tooltip=alt.Tooltip("label:N", title="ceiling"),
        ),
        text_layer.encode(x="x:Q", y="y:Q", text="text:N"),
        points,
    ]
    return build_layered_spec(layers, {"rows": rows, "roofs": lines}, HEIGHT, Highlight(names))


def _build_roof_rows(
    roofs: Sequence[RooflineCeiling], labels: Mapping[RooflineCeiling, str], low: float, high: float, floor: float
) -> list[dict[str, Any]]:
    """Return three points of each ceiling, labelled at the right end where there is room."""
    widest = {(roof.machine, roof.device, roof.precision): roof.width for roof in reversed(roofs)}
    rows: list[dict[str, Any]] = []
    labelled: list[float] = []
    for roof in roofs:
        start = max(low, floor / roof.gbyte_per_s)
        place = math.log10(roof.gflop_per_s)
        free = all(abs(place - other) > _MIN_LABEL_DISTANCE for other in labelled)
        if free:
            labelled.append(place)
        is_widest = roof.width == widest[roof.machine, roof.device, roof.precision]
        label = labels[roof]
        for x in (start, roof.ridge, high):
            rows.append(
                {
                    "x": round_significant(x),
                    "y": round_significant(min(roof.gflop_per_s, roof.gbyte_per_s * x)),
                    "label": label,
                    "text": label if free and x == high else "",
                    "precision": roof.precision,
                    "weight": 1.0 if is_widest else _FAINT_OPACITY,
                }
            )
    return rows


def _label_roofs(dots: Sequence[RooflineDot]) -> dict[RooflineCeiling, str]:
    """Return the label of each ceiling, with all formats of the trials below it."""
    formats: dict[RooflineCeiling, dict[str, None]] = {}
    for dot in dots:
        formats.setdefault(dot.roof, {})[dot.format] = None
    in_order = {roof: sorted(each, key=lambda name: name in SAME_RATE) for roof, each in formats.items()}
    return {roof: _format_roof(roof, format_list(each)) for roof, each in in_order.items()}


def _format_roof(roof: RooflineCeiling, formats: str) -> str:
    """Format a ceiling as its label: float32, 16 threads: 1,230 Gflop/s, 96 GB/s."""
    width = format_count(roof.width, "GPU") if roof.device == "cuda" else describe_value("threads", roof.width)
    where = f"{shorten(roof.machine)}, " if roof.machine else ""
    rates = f"{format_figure(roof.gflop_per_s)} Gflop/s, {format_figure(roof.gbyte_per_s)} GB/s"
    return f"{where}{formats}, {width}: {rates}"


def _name_series(dots: Sequence[RooflineDot]) -> tuple[str, list[str]]:
    """Return what the colours stand for, and its value for each dot: workloads, else the first axis."""
    if len({id(dot.group) for dot in dots}) > 1:
        return "workload", [describe_task(dot.group) for dot in dots]
    for name in (*dots[0].group.axes, *dots[0].group.varying):
        values = [describe_value(name, dot.group.points[dot.i].get(name)) for dot in dots]
        if len(set(values)) > 1:
            return format_axis_title(name), values
    return "precision", [dot.format for dot in dots]


def _build_rows(
    dots: Sequence[RooflineDot], labels: Mapping[RooflineCeiling, str]
) -> tuple[list[dict[str, Any]], list[str], str]:
    """Return the data, the names of the series in order, and their title."""
    several = len({id(dot.group) for dot in dots}) > 1
    title, names = _name_series(dots)
    known = list(dict.fromkeys(names))
    if len(known) > len(COLOURS):
        named = known[: len(COLOURS) - 1]
        names = [name if name in named else "others" for name in names]
        known = [*named, "others"]
    rows = []
    for dot, name in zip(dots, names, strict=True):
        record = dot.group.records[dot.i]
        own = describe_point(dot.group.points[dot.i]) or describe_point(select_main_params(record))
        rows.append(
            {
                "x": round_significant(dot.flops_per_byte), "y": round_significant(dot.gflop_per_s),
                "series": name, "point": f"{describe_task(dot.group)}, {own}" if several else own,
                "share": f"{100 * dot.fraction:.3g} %", "roof": labels[dot.roof],
                "limit": "memory" if dot.flops_per_byte < dot.roof.ridge else "computing",
                "trial": record.trial_id[:8],
            }
        )  # fmt: skip
    return rows, known, title
