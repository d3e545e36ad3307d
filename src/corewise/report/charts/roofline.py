"""The roofline: flop rate against flops per byte, trials below the lines of what their machine attains.

After S. Williams, A. Waterman and D. Patterson, "Roofline: an insightful visual performance model for
multicore architectures" (2009).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from corewise.report.charts.look import (
    COLOURS,
    DASHES,
    GREY,
    Highlight,
    chart_of,
    colour,
    framed,
    key_of,
    log_ticks,
    shape,
    tooltips,
    y_axis,
)
from corewise.report.charts.words import caption_joined
from corewise.report.columns import number_or_nan
from corewise.report.groups import Group
from corewise.report.machines import machine_key, machine_labels
from corewise.report.method import busy_words
from corewise.report.model import Chart
from corewise.report.phrases import axis_title, point_words, task_words, usual_point, value_words
from corewise.report.words import counted, figure, listed, number, rounded, short
from corewise.spec.rate_format import SAME_RATE, rate_format
from corewise.spec.record import Record

MAX_POINTS = 600
MAX_ROOFS = 12
HEIGHT = 360
_NEEDED = (
    *("gflop_per_s", "flops_per_byte", "fraction_of_ceiling"),
    *("ceiling_gflop_per_s", "ceiling_gbyte_per_s"),
)
_LIGHT = 0.4  # opacity of roofs of fewer threads
_APART = 0.12  # in powers of ten: labels nearer to each other would overlap
_ABOVE = 0.05  # of the height: room for the words of the highest roof
_ROOM, _ROOM_FOR_LABELS = 3.0, 10.0  # beyond the outermost points and ridges, as factors


@dataclass(frozen=True)
class Roof:
    """The ceiling over trials of one machine, precision and width."""

    machine: str
    device: str
    precision: str  # whose rate it is: the one measured, where several formats have the same
    width: int  # threads, or GPUs
    gflop_per_s: float
    gbyte_per_s: float

    @property
    def ridge(self) -> float:
        """The flops per byte from which on computing limits."""
        return self.gflop_per_s / self.gbyte_per_s


@dataclass(frozen=True)
class Dot:
    """A trial under its roof."""

    group: Group
    i: int
    roof: Roof
    flops_per_byte: float
    gflop_per_s: float
    fraction: float
    format: str  # whose rate bounds the trial


def roofline_chart(study: str, title: str, groups: Sequence[Group]) -> Chart | None:
    """The trials of a study under the ceilings of their machines; None where no ceiling is known."""
    dots = dots_of(groups)
    if not dots:
        return None
    drawn = _thinned(dots)
    roofs = _chosen([dot.roof for dot in drawn])
    best = max(drawn, key=lambda dot: dot.fraction)
    limits = {"memory" if dot.flops_per_byte < dot.roof.ridge else "computing" for dot in drawn}
    return Chart(
        key=key_of(study, "roofline"),
        title=f"{title}: roofline",
        spec=_spec(drawn, roofs),
        caption=caption_joined(
            "Median flop rate over runs against flops per byte of least traffic. Lines: what the machine "
            "attains there, as `corewise doctor --ceilings` measured it: bandwidth × flops per byte up to "
            "the peak; lighter ones of fewer threads.",
            busy_words([dot.group.records[dot.i] for dot in drawn]),
            _left_out(groups, dots, drawn, roofs),
        ),
        alt=(
            f"Roofline of {counted(len(drawn), 'trial')}, limited by {listed(sorted(limits))}; the nearest "
            f"to its roof reaches {100 * best.fraction:.0f} % of it: {figure(best.gflop_per_s)} Gflop/s at "
            f"{number(best.flops_per_byte)} flops per byte."
        ),
    )


def dots_of(groups: Sequence[Group]) -> list[Dot]:
    """The trials whose work and whose ceilings are known."""
    labels = machine_labels([record for group in groups for record in group.records])
    found = []
    for group in groups:
        for i, record in enumerate(group.records):
            figures = [number_or_nan(record.metrics.get(name)) for name in _NEEDED]
            if not all(value > 0 for value in figures):  # NaN too
                continue
            rate, intensity, fraction, peak, bandwidth = figures
            machine = labels[machine_key(record)] if len(labels) > 1 else ""
            precision, (device, width) = rate_format(record.params), _width(record)
            roof = Roof(machine, device, SAME_RATE.get(precision, precision), width, peak, bandwidth)
            found.append(Dot(group, i, roof, intensity, rate, fraction, precision))
    return found


def _width(record: Record) -> tuple[str, int]:
    """Device of a trial and how much of it: GPUs or threads."""
    params = record.params
    processes, threads = (number_or_nan(params.get(name)) for name in ("processes", "threads"))
    device = str(params.get("device", "cpu"))
    width = processes if device == "cuda" else processes * threads
    return device, int(width) if math.isfinite(width) else 1


def _chosen(roofs: Sequence[Roof]) -> list[Roof]:
    """The different roofs, or where they are many those of the widest trials, each precision in turn."""
    found = sorted(set(roofs), key=lambda roof: (-roof.width, roof.precision, -roof.gflop_per_s))
    return found[:MAX_ROOFS]


def _thinned(dots: Sequence[Dot]) -> list[Dot]:
    """The dots, or where there are too many so many of them evenly over their rates."""
    if len(dots) <= MAX_POINTS:
        return list(dots)
    in_order = sorted(dots, key=lambda dot: dot.gflop_per_s)
    return [in_order[round(k * (len(dots) - 1) / (MAX_POINTS - 1))] for k in range(MAX_POINTS)]


def _left_out(
    groups: Sequence[Group], dots: Sequence[Dot], drawn: Sequence[Dot], roofs: Sequence[Roof]
) -> str:
    num = sum(len(group.records) for group in groups)
    words = []
    if num > len(dots):
        words.append(f"{counted(num - len(dots), 'trial')} without flops or without a ceiling are not drawn")
    if len(dots) > len(drawn):
        words.append(f"{len(drawn):,} of {len(dots):,} trials are drawn")
    num_roofs = len({dot.roof for dot in drawn})
    if num_roofs > len(roofs):
        words.append(f"{len(roofs)} of {num_roofs} ceilings are drawn")
    text = "; ".join(words)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _spec(dots: Sequence[Dot], roofs: Sequence[Roof]) -> dict[str, Any]:
    import altair as alt

    xs = [*(dot.flops_per_byte for dot in dots), *(roof.ridge for roof in roofs)]
    low, high = min(xs) / _ROOM, max(xs) * _ROOM_FOR_LABELS
    ys = [*(dot.gflop_per_s for dot in dots), *(roof.gflop_per_s for roof in roofs)]
    ys += [min(max(roof.gbyte_per_s * low, min(ys) / _ROOM) for roof in roofs)]
    ys += [max(ys) * (max(ys) / min(ys)) ** _ABOVE]
    x = alt.X(
        "x:Q",
        title="flops per byte of least traffic",
        scale=alt.Scale(type="log", domain=[low, high], nice=False),
        axis=alt.Axis(values=log_ticks([low, high]), format=",~r", grid=False),
    )
    y = y_axis("Gflop/s", ys, log=True, fmt=",~r")
    words_of = _roof_words(dots)
    lines = _roof_rows(roofs, words_of, low, high, min(ys) * 0.85)
    kinds = list(dict.fromkeys(row["precision"] for row in lines))
    dash = alt.Scale(domain=kinds, range=[DASHES[k % len(DASHES)] for k in range(len(kinds))])
    faint = alt.Opacity("weight:Q", scale=None, legend=None)
    roof = chart_of("roofs").mark_line(strokeWidth=1.8, color=GREY, clip=True)
    words = chart_of("roofs").mark_text(align="right", dx=-2, dy=-7, fontSize=10, color=GREY)
    rows, names, title = _rows(dots, words_of)
    tips = {
        "point:N": "setting", "y:Q": "Gflop/s", "x:Q": "flops per byte", "share:N": "of the attainable",
        "limit:N": "limited by", "roof:N": "under", "trial:N": "trial",
    }  # fmt: skip
    points = chart_of().mark_point(filled=True, size=75).encode(
        x=x, y=y, color=colour(title, names), shape=shape("series", title, names), tooltip=tooltips(tips)
    )  # fmt: skip
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
        words.encode(x="x:Q", y="y:Q", text="text:N"),
        points,
    ]
    return framed(layers, {"rows": rows, "roofs": lines}, HEIGHT, Highlight(names))


def _roof_rows(
    roofs: Sequence[Roof], words_of: Mapping[Roof, str], low: float, high: float, floor: float
) -> list[dict[str, Any]]:
    """Three points of each roof, its words at the right end where no other's stand already."""
    widest = {(roof.machine, roof.device, roof.precision): roof.width for roof in reversed(roofs)}
    rows: list[dict[str, Any]] = []
    labelled: list[float] = []
    for roof in roofs:
        start = max(low, floor / roof.gbyte_per_s)
        place = math.log10(roof.gflop_per_s)
        free = all(abs(place - other) > _APART for other in labelled)
        if free:
            labelled.append(place)
        is_widest = roof.width == widest[roof.machine, roof.device, roof.precision]
        label = words_of[roof]
        for x in (start, roof.ridge, high):
            rows.append(
                {
                    "x": rounded(x), "y": rounded(min(roof.gflop_per_s, roof.gbyte_per_s * x)),
                    "label": label, "text": label if free and x == high else "",
                    "precision": roof.precision, "weight": 1.0 if is_widest else _LIGHT,
                }
            )  # fmt: skip
    return rows


def _roof_words(dots: Sequence[Dot]) -> dict[Roof, str]:
    """The label of each roof, with all formats of the trials below it."""
    formats: dict[Roof, dict[str, None]] = {}
    for dot in dots:
        formats.setdefault(dot.roof, {})[dot.format] = None
    in_order = {roof: sorted(each, key=lambda name: name in SAME_RATE) for roof, each in formats.items()}
    return {roof: _words(roof, listed(each)) for roof, each in in_order.items()}


def _words(roof: Roof, formats: str) -> str:
    """A roof as its label: float32, 16 threads: 1,230 Gflop/s, 96 GB/s."""
    width = counted(roof.width, "GPU") if roof.device == "cuda" else value_words("threads", roof.width)
    where = f"{short(roof.machine)}, " if roof.machine else ""
    rates = f"{figure(roof.gflop_per_s)} Gflop/s, {figure(roof.gbyte_per_s)} GB/s"
    return f"{where}{formats}, {width}: {rates}"


def _series(dots: Sequence[Dot]) -> tuple[str, list[str]]:
    """What tells the points apart by colour, and its value for each: workloads, else the first axis."""
    if len({id(dot.group) for dot in dots}) > 1:
        return "workload", [task_words(dot.group) for dot in dots]
    for name in (*dots[0].group.axes, *dots[0].group.varying):
        values = [value_words(name, dot.group.points[dot.i].get(name)) for dot in dots]
        if len(set(values)) > 1:
            return axis_title(name), values
    return "precision", [dot.format for dot in dots]


def _rows(dots: Sequence[Dot], words_of: Mapping[Roof, str]) -> tuple[list[dict[str, Any]], list[str], str]:
    """The data, the names of the series in order, and what they are."""
    several = len({id(dot.group) for dot in dots}) > 1
    title, names = _series(dots)
    known = list(dict.fromkeys(names))
    if len(known) > len(COLOURS):
        kept = known[: len(COLOURS) - 1]
        names = [name if name in kept else "others" for name in names]
        known = [*kept, "others"]
    rows = []
    for dot, name in zip(dots, names, strict=True):
        record = dot.group.records[dot.i]
        own = point_words(dot.group.points[dot.i]) or point_words(usual_point(record))
        rows.append(
            {
                "x": rounded(dot.flops_per_byte), "y": rounded(dot.gflop_per_s), "series": name,
                "point": f"{task_words(dot.group)}, {own}" if several else own,
                "share": f"{100 * dot.fraction:.3g} %", "roof": words_of[dot.roof],
                "limit": "memory" if dot.flops_per_byte < dot.roof.ridge else "computing",
                "trial": record.trial_id[:8],
            }
        )  # fmt: skip
    return rows, known, title
