"""The distribution of samples: each step of a few trials, run by run, nothing averaged away."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from corewise.report.charts.look import (
    COLOURS,
    Highlight,
    chart_of,
    framed,
    is_wide,
    key_of,
    legend,
    tooltips,
)
from corewise.report.charts.words import caption_joined
from corewise.report.groups import WIDTHS, Group
from corewise.report.model import Chart
from corewise.report.phrases import point_words, task_words
from corewise.report.words import counted, duration, rounded, short, shown

MAX_SAMPLES = 1600
RunSamples = Sequence[Sequence[float]]  # of one trial: the samples of each run

_ROW_HEIGHT = 17
_MAX_RUNS = 12  # of one trial
_MANY_NAMES = 3  # more parameters make no label


def samples_chart(group: Group, samples: Mapping[int, RunSamples], roles: Mapping[int, str]) -> Chart | None:
    """Every step of the trials given, one row for each run, relative to the trial's own median."""
    runs = {i: [list(run) for run in each if run][:_MAX_RUNS] for i, each in samples.items()}
    runs = {i: each for i, each in runs.items() if each and _usable(each)}
    total = sum(len(run) for each in runs.values() for run in each)
    if total < 2:
        return None
    labels = _labels(group, list(runs), roles)
    rows, medians = _rows(labels, runs, total)
    spec = _spec(rows, medians, list(labels.values()))
    cut = f"{len(rows):,} of {total:,} samples are drawn, evenly chosen by size, the extremes among them."
    told = "; ".join(f"{labels[i]}: {duration(_middle(each))}" for i, each in runs.items())
    worst = max((max(run) / _middle(each) for each in runs.values() for run in each), default=1.0)
    return Chart(
        key=key_of(group.study, group.workload_name, group.mode, "samples"),
        title=f"{task_words(group)}: distribution of samples",
        spec=spec,
        caption=caption_joined(
            "Each dot is one timed step, each row one run in fresh processes, the upright stroke its median; "
            f"steps are divided by the median over the runs of their trial ({told}).",
            cut if len(rows) < total else "",
        ),
        alt=(
            f"Strips of {counted(total, 'step time')} of {counted(len(runs), 'trial')}, a row for each "
            f"run; the slowest step takes {worst:.2f} times its trial's median."
        ),
    )


def _usable(runs: RunSamples) -> bool:
    return all(isinstance(s, (int, float)) and s > 0 for run in runs for s in run)


def _middle(runs: RunSamples) -> float:
    """The median of the runs' medians, the trial's headline."""
    return statistics.median(statistics.median(run) for run in runs)


def _labels(group: Group, chosen: Sequence[int], roles: Mapping[int, str]) -> dict[int, str]:
    """A label for each trial: what sets it apart from the others chosen, or why it was."""
    points = [group.points[i] for i in chosen]
    names = [name for name in group.varying if len({shown(point.get(name)) for point in points}) > 1]
    if len(names) > _MANY_NAMES:
        return {i: f"{roles[i]} ({group.records[i].trial_id[:8]})" for i in chosen}
    if any(name in WIDTHS for name in names):
        names = [name for name in group.varying if name in names or name in WIDTHS]
    words = [short(point_words({name: point.get(name) for name in names}), 60) for point in points]
    if len(set(words)) < len(words) or not all(words):
        words = [
            f"{word} {group.records[i].trial_id[:8]}".strip() for word, i in zip(words, chosen, strict=True)
        ]
    return dict(zip(chosen, words, strict=True))


def _rows(
    labels: Mapping[int, str], runs: Mapping[int, RunSamples], total: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A row of data for each sample drawn, and one for the median of each run."""
    rows: list[dict[str, Any]] = []
    medians: list[dict[str, Any]] = []
    num_runs = sum(len(each) for each in runs.values())
    most = MAX_SAMPLES // num_runs if total > MAX_SAMPLES else total
    for i, each in runs.items():
        middle, label = _middle(each), labels[i]
        for number, run in enumerate(each, 1):
            place = {"row": f"{label} · {number}", "series": label}
            rows += [{"x": rounded(s / middle, 4), "s": duration(s, 4), **place} for s in _some(run, most)]
            own = statistics.median(run)
            medians.append({"x": rounded(own / middle, 5), "s": duration(own, 4), **place})
    return rows, medians


def _some(run: Sequence[float], most: int) -> list[float]:
    """The samples, or so many of them evenly over their order of size, the least and the largest kept."""
    if len(run) <= most:
        return list(run)
    ordered, most = sorted(run), max(2, most)
    return [ordered[round(k * (len(ordered) - 1) / (most - 1))] for k in range(most)]


def _spec(
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
    rule = chart_of("middle").mark_rule(strokeDash=[5, 4], color="#888888").encode(x="x:Q")
    x = alt.X("x:Q", title="step time over the trial's median", scale=scale, axis=alt.Axis(format="~r"))
    number = "split(datum.label, ' · ')[length(split(datum.label, ' · ')) - 1]"
    y = alt.Y(
        "row:N", title="run", sort=places, axis=alt.Axis(labelExpr=number, labelOverlap=False, grid=False)
    )
    colours = alt.Scale(domain=list(labels), range=list(COLOURS[: len(labels)]))
    colour = alt.Color("series:N", title="trial", scale=colours, legend=legend(labels))
    tips = tooltips({"series:N": "setting", "s:N": "step", "x:Q": "over the median"})
    dots = chart_of().mark_circle(size=26)
    strokes = chart_of("medians").mark_tick(orient="vertical", thickness=3, size=15)
    layers = [
        rule,
        dots.encode(x=x, y=y, color=colour, tooltip=tips),
        strokes.encode(x=x, y=y, color=colour, tooltip=tips),
    ]
    height = _ROW_HEIGHT * len(places)
    data = {"rows": rows, "medians": medians, "middle": [{"x": 1}]}
    return framed(layers, data, max(80, height), Highlight(labels, 0.55, 0.05))
