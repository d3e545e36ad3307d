"""The distribution of samples: every step of a few trials, run by run, without averaging."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from corewise.analysis.groups import WIDTHS, Group
from corewise.analysis.phrases import describe_point, describe_task
from corewise.report.charts.chart_labels import join_sentences
from corewise.report.charts.chart_theme import (
    COLOURS,
    Highlight,
    build_key,
    build_layered_spec,
    build_legend,
    build_tooltips,
    create_chart,
    is_wide,
)
from corewise.report.report_model import Chart
from corewise.text_format import format_count, format_duration, format_value, round_significant, shorten

MAX_SAMPLES = 1600
# The samples of each run of one trial.
RunSamples = Sequence[Sequence[float]]

_ROW_HEIGHT = 17
# Runs shown per trial.
_MAX_RUNS = 12
# A label lists at most this many parameters.
_MAX_NAMES = 3


def build_samples_chart(group: Group, samples: Mapping[int, RunSamples], roles: Mapping[int, str]) -> Chart | None:
    """Build every step of the given trials, one row per run, relative to the trial's median."""
    runs = {i: [list(run) for run in each if run][:_MAX_RUNS] for i, each in samples.items()}
    runs = {i: each for i, each in runs.items() if each and _is_usable(each)}
    total = sum(len(run) for each in runs.values() for run in each)
    if total < 2:
        return None
    labels = _label_trials(group, list(runs), roles)
    rows, medians = _build_rows(labels, runs, total)
    spec = _build_spec(rows, medians, list(labels.values()))
    cut = f"Showing {len(rows):,} of {total:,} samples, evenly chosen by size, including the extremes."
    medians_text = "; ".join(f"{labels[i]}: {format_duration(_compute_median(each))}" for i, each in runs.items())
    worst = max((max(run) / _compute_median(each) for each in runs.values() for run in each), default=1.0)
    return Chart(
        key=build_key(group.study, group.workload_name, group.mode, "samples"),
        title=f"{describe_task(group)}: distribution of samples",
        spec=spec,
        caption=join_sentences(
            "Each dot is one timed step, each row one run in fresh processes, the vertical stroke its "
            f"median; steps are divided by the median over the runs of their trial ({medians_text}).",
            cut if len(rows) < total else "",
        ),
        alt=(
            f"Strips of {format_count(total, 'step time')} of {format_count(len(runs), 'trial')}, a row for "
            f"each run; the slowest step takes {worst:.2f} times its trial's median."
        ),
    )


def _is_usable(runs: RunSamples) -> bool:
    return all(isinstance(s, (int, float)) and s > 0 for run in runs for s in run)


def _compute_median(runs: RunSamples) -> float:
    """Return the median of the runs' medians, which is the trial's headline figure."""
    return statistics.median(statistics.median(run) for run in runs)


def _label_trials(group: Group, chosen: Sequence[int], roles: Mapping[int, str]) -> dict[int, str]:
    """Label each trial by what differs from the other chosen ones, or by why it was chosen."""
    points = [group.points[i] for i in chosen]
    names = [name for name in group.varying if len({format_value(point.get(name)) for point in points}) > 1]
    if len(names) > _MAX_NAMES:
        return {i: f"{roles[i]} ({group.records[i].trial_id[:8]})" for i in chosen}
    if any(name in WIDTHS for name in names):
        names = [name for name in group.varying if name in names or name in WIDTHS]
    labels = [shorten(describe_point({name: point.get(name) for name in names}), 60) for point in points]
    if len(set(labels)) < len(labels) or not all(labels):
        labels = [f"{label} {group.records[i].trial_id[:8]}".strip() for label, i in zip(labels, chosen, strict=True)]
    return dict(zip(chosen, labels, strict=True))


def _build_rows(
    labels: Mapping[int, str], runs: Mapping[int, RunSamples], total: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return one row of data per plotted sample, and one per median of a run."""
    rows: list[dict[str, Any]] = []
    medians: list[dict[str, Any]] = []
    num_runs = sum(len(each) for each in runs.values())
    most = MAX_SAMPLES // num_runs if total > MAX_SAMPLES else total
    for i, each in runs.items():
        middle, label = _compute_median(each), labels[i]
        for number, run in enumerate(each, 1):
            place = {"row": f"{label} · {number}", "series": label}
            rows += [
                {"x": round_significant(s / middle, 4), "s": format_duration(s, 4), **place}
                for s in _sample_evenly(run, most)
            ]
            own = statistics.median(run)
            medians.append({"x": round_significant(own / middle, 5), "s": format_duration(own, 4), **place})
    return rows, medians


def _sample_evenly(run: Sequence[float], most: int) -> list[float]:
    """Return the samples, or `most` of them spread evenly by size, including the extremes."""
    if len(run) <= most:
        return list(run)
    ordered, most = sorted(run), max(2, most)
    return [ordered[round(k * (len(ordered) - 1) / (most - 1))] for k in range(most)]


def _build_spec(
    rows: Sequence[dict[str, Any]], medians: Sequence[dict[str, Any]], labels: Sequence[str]
) -> dict[str, Any]:
    import altair as alt

    places = list(dict.fromkeys(row["row"] for row in medians))
    xs = [row["x"] for row in rows]
    low, high = min([*xs, 0.98]), max([*xs, 1.02])
    if is_wide(xs, 3):
        scale = alt.Scale(type="log", domain=[low * 0.97, high * 1.03], nice=False)
    else:
        pad = (high - low) * 0.04
        scale = alt.Scale(domain=[low - pad, high + pad], nice=False, zero=False)
    rule = create_chart("middle").mark_rule(strokeDash=[5, 4], color="#888888").encode(x="x:Q")
    x = alt.X("x:Q", title="step time over the trial's median", scale=scale, axis=alt.Axis(format="~r"))
    number = "split(datum.label, ' · ')[length(split(datum.label, ' · ')) - 1]"
    y = alt.Y("row:N", title="run", sort=places, axis=alt.Axis(labelExpr=number, labelOverlap=False, grid=False))
    colours = alt.Scale(domain=list(labels), range=list(COLOURS[: len(labels)]))
    colour = alt.Color("series:N", title="trial", scale=colours, legend=build_legend(labels))
    tips = build_tooltips({"series:N": "setting", "s:N": "step", "x:Q": "over the median"})
    dots = create_chart().mark_circle(size=26)
    strokes = create_chart("medians").mark_tick(orient="vertical", thickness=3, size=15)
    layers = [
        rule,
        dots.encode(x=x, y=y, color=colour, tooltip=tips),
        strokes.encode(x=x, y=y, color=colour, tooltip=tips),
    ]
    height = _ROW_HEIGHT * len(places)
    data = {"rows": rows, "medians": medians, "middle": [{"x": 1}]}
    return build_layered_spec(layers, data, max(80, height), Highlight(labels, 0.55, 0.05))
