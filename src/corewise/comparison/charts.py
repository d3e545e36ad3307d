"""Charts of a comparison: the ratios with their intervals, and how all ratios are spread."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from corewise.comparison.model import ComparedTrial, Comparison
from corewise.comparison.verdicts import PER_SAMPLE
from corewise.comparison.words import disturbed_words
from corewise.report.model import Chart
from corewise.report.words import counted, listed, rounded, short, times

MAX_ROWS = 50
CANNOT_TELL = "cannot tell"
GREY = "#888888"  # readable on white and on black
# Okabe and Ito's colours, which every reader can tell apart, and shapes beside them.
_LOOKS = {
    "slower": ("#D55E00", "triangle-right"),
    "faster": ("#0072B2", "triangle-left"),
    "same": ("#009E73", "circle"),
    CANNOT_TELL: (GREY, "square"),
}
_LONGEST_NAME = 64
_WIDEST = 1.5  # a whisker is cut off where it is so many times the ratio
_ARROWS = {"low": "M0.5,-1L-0.5,0L0.5,1", "high": "M-0.5,-1L0.5,0L-0.5,1"}  # open: no verdict looks so
_NUM_BINS = 60


def charts_of(comparison: Comparison) -> list[Chart]:
    """The ratios of the worst trials and, when there are more than can be drawn, the spread of all."""
    drawn = [trial for trial in comparison.trials if trial.ratio is not None]
    if not drawn:
        return []
    charts = [_forest(comparison, drawn[:MAX_ROWS], len(drawn))]
    if len(drawn) > MAX_ROWS:
        charts.append(_spread(comparison, drawn))
    return charts


def standing(trial: ComparedTrial) -> str:
    """The verdict as it is drawn: what the data cannot tell is set apart."""
    return CANNOT_TELL if trial.undecided else trial.verdict


def time_word(comparison: Comparison) -> str:
    """What is compared, in words."""
    return "time per sample" if comparison.rule.metric == PER_SAMPLE else "time per step"


def _forest(comparison: Comparison, trials: Sequence[ComparedTrial], num_all: int) -> Chart:
    import altair as alt

    low, high = _span(trials, comparison.rule.threshold)
    rows = _forest_rows(trials, low, high)
    title = f"{time_word(comparison)}, B over A (1 = no difference)"
    scale = alt.Scale(type="log", domain=[low, high], nice=False)
    x = alt.X("ratio:Q", title=title, scale=scale, axis=alt.Axis(values=_ticks(low, high), format="~r"))
    y = alt.Y("name:N", title=None, sort=[row["name"] for row in rows], axis=alt.Axis(labelLimit=420))
    base = alt.Chart(alt.InlineData(values=rows))
    told = _tooltips(
        {
            "trial:N": "trial",
            "verdict:N": "verdict",
            "ratio:Q": "ratio",
            "low:Q": "from",
            "high:Q": "to",
            "disturbed:N": "disturbed",
        }
    )
    colour, shape = _colour(), _shape()
    whiskers = base.mark_rule(clip=True, strokeWidth=2).encode(
        y=y, x=alt.X("start:Q", scale=scale, title=title), x2="end:Q", color=colour, tooltip=told
    )
    points = base.mark_point(filled=True, size=70, opacity=1, clip=True).encode(
        x=x, y=y, color=colour, shape=shape, tooltip=told
    )
    layers = _line_at(1.0, scale) + whiskers + points
    for end, place in (("low", low), ("high", high)):
        gone = [{**row, "at": rounded(place)} for row in rows if row[f"{end}_is_cut"]]
        if gone:
            arrow = alt.Chart(alt.InlineData(values=gone)).mark_point(
                shape=_ARROWS[end], filled=False, size=70, strokeWidth=2, opacity=1
            )
            layers += arrow.encode(x=alt.X("at:Q", scale=scale, title=title), y=y, color=colour, tooltip=told)
    spec = _framed(layers, {"step": 18})
    num_cut = sum(row["low_is_cut"] or row["high_is_cut"] for row in rows)
    arrows = f" An arrow: the interval goes on beyond the axis ({_these(num_cut, rows)})." if num_cut else ""
    disturbed = " ~: in doubt, for others disturbed the runs." if any(t.in_doubt for t in trials) else ""
    cut = f" The first {len(trials)} of {num_all:,} trials, worst first." if num_all > len(trials) else ""
    return Chart(
        key="ratios",
        title="B against A, trial by trial",
        spec=spec,
        caption=(
            f"{time_word(comparison).capitalize()} of B over that of A, on a logarithmic scale: to the right "
            f"of 1, B is slower. Whiskers: {100 * comparison.rule.confidence:g} % intervals over processes, "
            f"each for its trial alone; verdicts are corrected for the number of trials."
            f"{arrows}{disturbed}{cut}"
        ),
        alt=_forest_alt(trials, num_cut),
    )


def _forest_rows(trials: Sequence[ComparedTrial], least: float, most: float) -> list[dict[str, Any]]:
    names = [short(trial.name, _LONGEST_NAME) for trial in trials]
    several = {name for name, num in Counter(names).items() if num > 1}
    return [
        {
            "name": (f"{name} {trial.b_trial_id[:8]}" if name in several else name)
            + (" ~" if trial.in_doubt else ""),
            "trial": trial.name,
            "disturbed": disturbed_words(trial) or "none",
            "low_is_cut": trial.low is not None and trial.low < least,
            "high_is_cut": trial.high is not None and trial.high > most,
            "verdict": standing(trial),
            "ratio": rounded(trial.ratio),
            "low": rounded(trial.low),
            "high": rounded(trial.high),
            "start": rounded(max(trial.low or trial.ratio or 1.0, least)),  # a whisker ends with the axis
            "end": rounded(min(trial.high or trial.ratio or 1.0, most)),
        }
        for name, trial in zip(names, trials, strict=True)
    ]


def _these(num_cut: int, rows: Sequence[Mapping[str, Any]]) -> str:
    """Which intervals are cut, with their true ends as far as a caption can hold them."""
    named = [
        f"{row['name']}: {_end(row['low'])} to {_end(row['high'])}"
        for row in rows
        if row["low_is_cut"] or row["high_is_cut"]
    ]
    return listed(named) if num_cut <= 3 else counted(num_cut, "trial")


def _end(ratio: float) -> str:
    return f"{ratio:.3g}"


def _forest_alt(trials: Sequence[ComparedTrial], num_cut: int) -> str:
    counts = Counter(standing(trial) for trial in trials)
    parts = ", ".join(f"{counts[word]} {word}" for word in _LOOKS if counts[word])
    ratios = [trial.ratio for trial in trials if trial.ratio is not None]
    beyond = f" {counted(num_cut, 'interval')} beyond the ends of the axis." if num_cut else ""
    return (
        f"Ratios of {counted(len(trials), 'trial')} with their intervals: {parts}; "
        f"from {times(min(ratios))} to {times(max(ratios))}.{beyond}"
    )


def _spread(comparison: Comparison, trials: Sequence[ComparedTrial]) -> Chart:
    import altair as alt

    rows, (low, high) = _binned(trials)
    scale = alt.Scale(type="log", domain=[low, high], nice=False)
    title = f"{time_word(comparison)}, B over A"
    bars = (
        alt.Chart(alt.InlineData(values=rows))
        .mark_rect()
        .encode(
            x=alt.X("low:Q", title=title, scale=scale, axis=alt.Axis(values=_ticks(low, high), format="~r")),
            x2="high:Q",
            y=alt.Y("from:Q", title="trials"),
            y2="to:Q",
            color=_colour(),
            tooltip=_tooltips({"verdict:N": "verdict", "num:Q": "trials", "low:Q": "from", "high:Q": "to"}),
        )
    )
    return Chart(
        key="spread",
        title="All trials",
        spec=_framed(_line_at(1.0, scale) + bars, 300),
        caption=(
            f"The ratios of all {counted(len(trials), 'trial')} by verdict; those beyond the ends count "
            "in the outermost bars."
        ),
        alt=f"A histogram of {counted(len(trials), 'ratio')} between {times(low)} and {times(high)}.",
    )


def _binned(trials: Sequence[ComparedTrial]) -> tuple[list[dict[str, Any]], tuple[float, float]]:
    """Bars stacked by verdict, computed here: a page need not hold 100,000 ratios."""
    ratios = np.array([trial.ratio for trial in trials], dtype=np.float64)
    low, high = np.quantile(ratios, [0.001, 0.999])
    low, high = min(float(low), 0.99), max(float(high), 1.01)
    edges = np.geomspace(low, high, _NUM_BINS + 1)
    below = np.zeros(_NUM_BINS, dtype=np.int64)
    words = np.array([standing(trial) for trial in trials])
    rows = []
    for word in _LOOKS:
        counts, _ = np.histogram(np.clip(ratios[words == word], low, high), bins=edges)
        for i in np.flatnonzero(counts).tolist():
            row = {"verdict": word, "low": rounded(float(edges[i])), "high": rounded(float(edges[i + 1]))}
            rows.append(
                {**row, "from": int(below[i]), "to": int(below[i] + counts[i]), "num": int(counts[i])}
            )
        below += counts
    return rows, (low, high)


def _framed(chart: Any, height: int | dict[str, int]) -> dict[str, Any]:
    """The chart as a specification that fills the width it is given; text takes the page's colours."""
    spec: dict[str, Any] = chart.properties(width="container").to_dict()
    spec["height"] = height
    spec["config"] = {"legend": {"orient": "top", "direction": "horizontal", "symbolLimit": 0}}
    spec["autosize"] = {"type": "fit-x", "contains": "padding"}
    return spec


def _tooltips(titles: Mapping[str, str]) -> list[Any]:
    import altair as alt

    return [
        alt.Tooltip(name, title=title)
        if name.endswith(":N")
        else alt.Tooltip(name, title=title, format=",.5~g")
        for name, title in titles.items()
    ]


def _line_at(ratio: float, scale: Any) -> Any:
    import altair as alt

    data = alt.InlineData(values=[{"at": ratio}])
    return alt.Chart(data).mark_rule(color=GREY, strokeDash=[4, 3]).encode(x=alt.X("at:Q", scale=scale))


def _colour() -> Any:
    import altair as alt

    scale = alt.Scale(domain=list(_LOOKS), range=[colour for colour, _ in _LOOKS.values()])
    return alt.Color("verdict:N", title="B is", scale=scale)


def _shape() -> Any:
    import altair as alt

    scale = alt.Scale(domain=list(_LOOKS), range=[shape for _, shape in _LOOKS.values()])
    return alt.Shape("verdict:N", title="B is", scale=scale)


def _span(trials: Sequence[ComparedTrial], threshold: float) -> tuple[float, float]:
    """What the axis covers: every ratio, and its whiskers unless they reach absurdly far."""
    lows, highs = [1 / (1 + threshold)], [1 + threshold]
    for trial in trials:
        ratio = trial.ratio or 1.0
        lows.append(max(trial.low if trial.low is not None else ratio, ratio / _WIDEST))
        highs.append(min(trial.high or ratio, ratio * _WIDEST))
    return min(lows) * 0.98, max(highs) * 1.02


def _ticks(low: float, high: float) -> list[float]:
    """Round ratios between the ends, 1 among them."""
    for step in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5):
        ticks = [round(step * i, 2) for i in range(math.ceil(low / step), math.floor(high / step) + 1)]
        if len(ticks) <= 12:
            return [tick for tick in ticks if tick > 0]
    powers = range(math.floor(math.log2(low)), math.ceil(math.log2(high)) + 1)
    step = max(1, len(powers) // 12 + 1)
    return [2.0**power for power in powers if power % step == 0 and low <= 2.0**power <= high]
