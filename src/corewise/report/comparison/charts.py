"""Charts of a comparison: ratios with intervals, and the distribution of all ratios."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from corewise.analysis.comparison.comparison_model import ComparedTrial, StoreComparison
from corewise.analysis.comparison.verdicts import PER_SAMPLE
from corewise.report.charts.chart_theme import GREY, build_tooltips
from corewise.report.comparison.sentences import describe_disturbances
from corewise.report.report_model import Chart
from corewise.text_format import format_count, format_list, format_ratio, round_significant, shorten

MAX_ROWS = 50
CANNOT_TELL = "cannot tell"
# Okabe and Ito's colour-blind safe palette, and a shape for each verdict.
_LOOKS = {
    "slower": ("#D55E00", "triangle-right"),
    "faster": ("#0072B2", "triangle-left"),
    "same": ("#009E73", "circle"),
    CANNOT_TELL: (GREY, "square"),
}
_LONGEST_NAME = 64
# A whisker is cut at this multiple of the ratio.
_MAX_WHISKER_RATIO = 1.5
# Open arrows, which differ from the shapes of all verdicts.
_ARROWS = {"low": "M0.5,-1L-0.5,0L0.5,1", "high": "M-0.5,-1L0.5,0L-0.5,1"}
_NUM_BINS = 60


def build_comparison_charts(comparison: StoreComparison) -> list[Chart]:
    """Build the ratios of the worst trials and, if not all are shown, the distribution of all."""
    compared = [trial for trial in comparison.trials if trial.ratio is not None]
    if not compared:
        return []
    charts = [_build_forest_chart(comparison, compared[:MAX_ROWS], len(compared))]
    if len(compared) > MAX_ROWS:
        charts.append(_build_spread_chart(comparison, compared))
    return charts


def describe_verdict(trial: ComparedTrial) -> str:
    """Return the verdict as charts show it; "cannot tell" is a verdict there."""
    return CANNOT_TELL if trial.undecided else trial.verdict


def describe_time(comparison: StoreComparison) -> str:
    """Name the compared quantity."""
    return "time per sample" if comparison.rule.metric == PER_SAMPLE else "time per step"


def _build_forest_chart(comparison: StoreComparison, trials: Sequence[ComparedTrial], num_all: int) -> Chart:
    import altair as alt

    low, high = _compute_axis_range(trials, comparison.rule.threshold)
    rows = _build_forest_rows(trials, low, high)
    title = f"{describe_time(comparison)}, B over A (1 = no difference)"
    scale = alt.Scale(type="log", domain=[low, high], nice=False)
    x = alt.X("ratio:Q", title=title, scale=scale, axis=alt.Axis(values=_compute_ticks(low, high), format="~r"))
    y = alt.Y("name:N", title=None, sort=[row["name"] for row in rows], axis=alt.Axis(labelLimit=420))
    base = alt.Chart(alt.InlineData(values=rows))
    tips = build_tooltips(
        {
            "trial:N": "trial",
            "verdict:N": "verdict",
            "ratio:Q": "ratio",
            "low:Q": "from",
            "high:Q": "to",
            "disturbed:N": "disturbed",
        }
    )
    colour, shape = _encode_colour(), _encode_shape()
    whiskers = base.mark_rule(clip=True, strokeWidth=2).encode(
        y=y, x=alt.X("start:Q", scale=scale, title=title), x2="end:Q", color=colour, tooltip=tips
    )
    points = base.mark_point(filled=True, size=70, opacity=1, clip=True).encode(
        x=x, y=y, color=colour, shape=shape, tooltip=tips
    )
    layers = _draw_line_at(1.0, scale) + whiskers + points
    for end, place in (("low", low), ("high", high)):
        cut_rows = [{**row, "at": round_significant(place)} for row in rows if row[f"{end}_is_cut"]]
        if cut_rows:
            arrow = alt.Chart(alt.InlineData(values=cut_rows)).mark_point(
                shape=_ARROWS[end], filled=False, size=70, strokeWidth=2, opacity=1
            )
            layers += arrow.encode(x=alt.X("at:Q", scale=scale, title=title), y=y, color=colour, tooltip=tips)
    spec = _build_spec(layers, {"step": 18})
    num_cut = sum(row["low_is_cut"] or row["high_is_cut"] for row in rows)
    arrows = (
        f" Arrow: the interval continues beyond the axis ({_describe_cut_intervals(num_cut, rows)})." if num_cut else ""
    )
    disturbed = " ~: in doubt, because other load disturbed the runs." if any(t.in_doubt for t in trials) else ""
    cut = f" Showing the {len(trials)} worst of {num_all:,} trials." if num_all > len(trials) else ""
    return Chart(
        key="ratios",
        title="B against A, trial by trial",
        spec=spec,
        caption=(
            f"{describe_time(comparison).capitalize()} of B over that of A, on a logarithmic scale: "
            f"to the right of 1, B is slower. Whiskers: {100 * comparison.rule.confidence:g} % intervals "
            f"over processes, each for a single comparison; verdicts are corrected for the number of trials."
            f"{arrows}{disturbed}{cut}"
        ),
        alt=_describe_forest(trials, num_cut),
    )


def _build_forest_rows(trials: Sequence[ComparedTrial], least: float, most: float) -> list[dict[str, Any]]:
    names = [shorten(trial.name, _LONGEST_NAME) for trial in trials]
    several = {name for name, num in Counter(names).items() if num > 1}
    return [
        {
            "name": (f"{name} {trial.b_trial_id[:8]}" if name in several else name) + (" ~" if trial.in_doubt else ""),
            "trial": trial.name,
            "disturbed": describe_disturbances(trial) or "none",
            "low_is_cut": trial.low is not None and trial.low < least,
            "high_is_cut": trial.high is not None and trial.high > most,
            "verdict": describe_verdict(trial),
            "ratio": round_significant(trial.ratio),
            "low": round_significant(trial.low),
            "high": round_significant(trial.high),
            # A whisker ends with the axis.
            "start": round_significant(max(trial.low or trial.ratio or 1.0, least)),
            "end": round_significant(min(trial.high or trial.ratio or 1.0, most)),
        }
        for name, trial in zip(names, trials, strict=True)
    ]


def _describe_cut_intervals(num_cut: int, rows: Sequence[Mapping[str, Any]]) -> str:
    """Name the intervals that are cut with their true ends, or count them if there are many."""
    named = [
        f"{row['name']}: {_format_end(row['low'])} to {_format_end(row['high'])}"
        for row in rows
        if row["low_is_cut"] or row["high_is_cut"]
    ]
    return format_list(named) if num_cut <= 3 else format_count(num_cut, "trial")


def _format_end(ratio: float) -> str:
    return f"{ratio:.3g}"


def _describe_forest(trials: Sequence[ComparedTrial], num_cut: int) -> str:
    counts = Counter(describe_verdict(trial) for trial in trials)
    parts = ", ".join(f"{counts[verdict]} {verdict}" for verdict in _LOOKS if counts[verdict])
    ratios = [trial.ratio for trial in trials if trial.ratio is not None]
    beyond = f" {format_count(num_cut, 'interval')} beyond the ends of the axis." if num_cut else ""
    return (
        f"Ratios of {format_count(len(trials), 'trial')} with their intervals: {parts}; "
        f"from {format_ratio(min(ratios))} to {format_ratio(max(ratios))}.{beyond}"
    )


def _build_spread_chart(comparison: StoreComparison, trials: Sequence[ComparedTrial]) -> Chart:
    import altair as alt

    rows, (low, high) = _bin_ratios(trials)
    scale = alt.Scale(type="log", domain=[low, high], nice=False)
    title = f"{describe_time(comparison)}, B over A"
    bars = (
        alt.Chart(alt.InlineData(values=rows))
        .mark_rect()
        .encode(
            x=alt.X("low:Q", title=title, scale=scale, axis=alt.Axis(values=_compute_ticks(low, high), format="~r")),
            x2="high:Q",
            y=alt.Y("from:Q", title="trials"),
            y2="to:Q",
            color=_encode_colour(),
            tooltip=build_tooltips({"verdict:N": "verdict", "num:Q": "trials", "low:Q": "from", "high:Q": "to"}),
        )
    )
    return Chart(
        key="spread",
        title="All trials",
        spec=_build_spec(_draw_line_at(1.0, scale) + bars, 300),
        caption=(
            f"The ratios of all {format_count(len(trials), 'trial')} by verdict; the outermost bars include "
            "ratios beyond the ends."
        ),
        alt=(
            f"A histogram of {format_count(len(trials), 'ratio')} between {format_ratio(low)} and {format_ratio(high)}."
        ),
    )


def _bin_ratios(trials: Sequence[ComparedTrial]) -> tuple[list[dict[str, Any]], tuple[float, float]]:
    """Stack bars by verdict; binning here keeps 100,000 ratios out of the page."""
    ratios = np.array([trial.ratio for trial in trials], dtype=np.float64)
    low, high = np.quantile(ratios, [0.001, 0.999])
    low, high = min(float(low), 0.99), max(float(high), 1.01)
    edges = np.geomspace(low, high, _NUM_BINS + 1)
    below = np.zeros(_NUM_BINS, dtype=np.int64)
    verdicts = np.array([describe_verdict(trial) for trial in trials])
    rows = []
    for verdict in _LOOKS:
        counts, _ = np.histogram(np.clip(ratios[verdicts == verdict], low, high), bins=edges)
        for i in np.flatnonzero(counts).tolist():
            row = {
                "verdict": verdict,
                "low": round_significant(float(edges[i])),
                "high": round_significant(float(edges[i + 1])),
            }
            rows.append({**row, "from": int(below[i]), "to": int(below[i] + counts[i]), "num": int(counts[i])})
        below += counts
    return rows, (low, high)


def _build_spec(chart: Any, height: int | dict[str, int]) -> dict[str, Any]:
    """Convert the chart to a specification that fills its width and takes the page's text colours."""
    spec: dict[str, Any] = chart.properties(width="container").to_dict()
    spec["height"] = height
    spec["config"] = {"legend": {"orient": "top", "direction": "horizontal", "symbolLimit": 0}}
    spec["autosize"] = {"type": "fit-x", "contains": "padding"}
    return spec


def _draw_line_at(ratio: float, scale: Any) -> Any:
    import altair as alt

    data = alt.InlineData(values=[{"at": ratio}])
    return alt.Chart(data).mark_rule(color=GREY, strokeDash=[4, 3]).encode(x=alt.X("at:Q", scale=scale))


def _encode_colour() -> Any:
    import altair as alt

    scale = alt.Scale(domain=list(_LOOKS), range=[colour for colour, _ in _LOOKS.values()])
    return alt.Color("verdict:N", title="B is", scale=scale)


def _encode_shape() -> Any:
    import altair as alt

    scale = alt.Scale(domain=list(_LOOKS), range=[shape for _, shape in _LOOKS.values()])
    return alt.Shape("verdict:N", title="B is", scale=scale)


def _compute_axis_range(trials: Sequence[ComparedTrial], threshold: float) -> tuple[float, float]:
    """Return the range of the axis: every ratio, and its whiskers unless they are extremely long."""
    lows, highs = [1 / (1 + threshold)], [1 + threshold]
    for trial in trials:
        ratio = trial.ratio or 1.0
        lows.append(max(trial.low if trial.low is not None else ratio, ratio / _MAX_WHISKER_RATIO))
        highs.append(min(trial.high or ratio, ratio * _MAX_WHISKER_RATIO))
    return min(lows) * 0.98, max(highs) * 1.02


def _compute_ticks(low: float, high: float) -> list[float]:
    """Return round ratios between the ends, including 1."""
    for step in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5):
        ticks = [round(step * i, 2) for i in range(math.ceil(low / step), math.floor(high / step) + 1)]
        if len(ticks) <= 12:
            return [tick for tick in ticks if tick > 0]
    powers = range(math.floor(math.log2(low)), math.ceil(math.log2(high)) + 1)
    step = max(1, len(powers) // 12 + 1)
    return [2.0**power for power in powers if power % step == 0 and low <= 2.0**power <= high]
