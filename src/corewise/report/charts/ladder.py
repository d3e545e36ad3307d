"""Charts of a tuning: what each knob gave, throughput against latency, and memory."""

from collections.abc import Sequence
from typing import Any

from corewise.report.charts.look import (
    COLOURS,
    Highlight,
    axis_from_0,
    chart_of,
    framed,
    key_of,
    tooltips,
)
from corewise.report.charts.whiskers import whiskers
from corewise.report.charts.words import caption_joined
from corewise.report.model import Chart
from corewise.report.tunings import Raced, Tuned, Tuning
from corewise.report.words import counted, duration, figure, memory, rounded, short, times

ROW_HEIGHT = 34
_LABEL_LETTERS = 48
SETTING, GAIN, LOSS = "measured", "gained by the knob", "lost by the knob"
RACED, OTHERS, SIDES = "raced only", "measured anew", ("default", "by hand", "best")
IN_WORDS = {"by hand": "the hand setting", "best": "the best"}
_SIDE_COLOURS = (COLOURS[1], COLOURS[4], COLOURS[0])
_SIDE_SHAPES = ("square", "diamond", "triangle-up")
INTERVALS = "Whiskers: 95 % intervals over fresh processes."


def tuning_charts(tuning: Tuning) -> list[Chart]:
    """The charts of one tuning, the ladder first; none of what was not measured."""
    found = [_ladder(tuning), _latencies(tuning), _memory(tuning)]
    return [chart for chart in found if chart is not None]


def _ladder(tuning: Tuning) -> Chart | None:
    """Steps from the default to the best, each bar hanging where the one before it ended."""
    if len(tuning.sides) < 2 or not tuning.default.rate or not tuning.default.is_fresh:
        return None
    rows = [_whole("default", tuning.default, None)]
    before = tuning.default.rate
    for rung in tuning.ladder:
        rate, interval = rung.setting.rate, times(rung.gain, rung.low, rung.high)
        series = GAIN if rate >= before else LOSS
        label = short(f"+ {rung.words}", _LABEL_LETTERS)
        rows.append(_row(label, rung.setting, before, series, times(rung.gain)) | {"over": interval})
        before = rate
    for name, setting in tuning.sides[1:]:
        rows.append(_whole(name, setting, *_over_default(tuning, setting)))
    in_full = " and ".join(IN_WORDS[name] for name, _ in tuning.sides[1:])
    gains = ", ".join(f"{short(r.words, 40)} {times(r.gain)}" for r in tuning.ladder)
    return Chart(
        key=key_of(tuning.study, tuning.key[:6], "ladder"),
        title=f"{tuning.work}: what each knob gave",
        spec=_ladder_spec(rows, tuning.unit),
        caption=caption_joined(
            f"Throughput in {tuning.unit} of fresh runs: the default, "
            f"{'then one more knob at a time, ' if tuning.ladder else ''}then {in_full} in full.",
            "Figures beside the bars: over the step before, by the means of the runs; bars are medians.",
            INTERVALS,
        ),
        alt=(
            f"Bars from the default with {figure(tuning.default.rate)} to the best with "
            f"{figure(tuning.best.rate)} {tuning.unit}{f': {gains}' if gains else ''}."
        ),
    )


def _over_default(tuning: Tuning, setting: Tuned) -> tuple[float | None, float | None, float | None]:
    """A setting over the default with its interval, from the comparison that the answer tells, too."""
    if setting.words == tuning.best.words and tuning.verdict == "faster":
        return tuning.speedup, tuning.speedup_low, tuning.speedup_high
    return setting.over_default, setting.over_default_low, setting.over_default_high


def _whole(name: str, setting: Tuned, ratio: float | None, *interval: float | None) -> dict[str, Any]:
    text = "" if ratio is None else f"{times(ratio)} the default"
    over = "" if ratio is None else f"{times(ratio, *interval)} the default"
    return _row(name, setting, 0.0, SETTING, text) | {"over": over or "-"}


def _row(label: str, setting: Tuned, start: float, series: str, text: str) -> dict[str, Any]:
    rate = setting.rate
    return {
        "x": label,
        "start": rounded(start),
        "y": rounded(rate),
        "low": rounded(setting.low),
        "high": rounded(setting.high),
        "end": rounded(max(start, rate, setting.high or 0.0)),
        "series": series,
        "text": text,
        "setting": short(setting.words, 120),
    }


def _ladder_spec(rows: Sequence[dict[str, Any]], unit: str) -> dict[str, Any]:
    import altair as alt

    labels = [row["x"] for row in rows]
    names = [name for name in (SETTING, GAIN, LOSS) if any(row["series"] == name for row in rows)]
    colours = {SETTING: "#999999", GAIN: COLOURS[0], LOSS: COLOURS[1]}
    scale = alt.Scale(domain=names, range=[colours[name] for name in names])
    legend = alt.Legend(orient="top", direction="horizontal") if len(names) > 1 else None
    length = alt.Scale(domain=[0, max(row["end"] for row in rows) * 1.22], nice=False)
    axis = alt.Axis(labelLimit=320, labelOverlap=False, grid=False)
    base = chart_of().encode(y=alt.Y("x:N", sort=labels, axis=axis, title=None))
    along: Any = {"title": unit, "scale": length, "axis": axis_from_0()}
    tips = {
        "setting:N": "setting", "y:Q": unit, "low:Q": "interval from", "high:Q": "to",
        "over:N": "gain",
    }  # fmt: skip
    layers: list[Any] = [
        base.mark_bar(height=18).encode(
            x=alt.X("start:Q", **along),
            x2="y:Q",
            color=alt.Color("series:N", title=None, scale=scale, legend=legend),
            tooltip=tooltips(tips),
        )
    ]
    if any(row["low"] is not None for row in rows):
        low = {"x": alt.X("low:Q", **along), "x2": "high:Q"}
        layers += whiskers(base, low, {"x": alt.X("high:Q", **along)}, True)
    words = base.mark_text(align="left", dx=8).encode(x=alt.X("end:Q", **along), text="text:N")
    layers.append(words)
    return framed(layers, {"rows": rows}, ROW_HEIGHT * len(rows), Highlight(names))


def _latencies(tuning: Tuning) -> Chart | None:
    """Throughput against latency of all that was measured; only inference answers anybody."""
    raced = [each for each in tuning.raced if each.ratio and each.latency_s]
    base = next((each for each in raced if each.outcome == "default"), None)
    if tuning.mode != "infer" or base is None or len(raced) < 2 or not tuning.default.latency_s:
        return None
    fresh = {words: each for words, each in tuning.fresh.items() if each.latency_s}
    roles = {setting.words: name for name, setting in tuning.sides}
    rows = [
        _raced_row(tuning, each, base, _role(tuning, each.words)) for each in raced if each.words not in fresh
    ]
    rows += [_fresh_row(each, roles.get(words, OTHERS)) for words, each in fresh.items()]
    names = [name for name in (RACED, OTHERS, *SIDES) if any(row["series"] == name for row in rows)]
    num_raced = sum(row["measured"] == RACED for row in rows)
    return Chart(
        key=key_of(tuning.study, tuning.key[:6], "latency"),
        title=f"{tuning.work}: throughput against latency",
        spec=_scatter_spec(rows, tuning.unit, names),
        caption=caption_joined(
            "Each point is a setting: up is more throughput, left is a quicker answer.",
            _how_measured(num_raced, len(rows)),
            INTERVALS if num_raced < len(rows) else "",
        ),
        alt=(
            f"{counted(len(rows), 'setting')} by latency and throughput, {num_raced:,} of them only raced; "
            "the default answers in "
            f"{duration(tuning.default.latency_s)}, the best in {duration(tuning.best.latency_s)}."
        ),
    )


def _how_measured(num_raced: int, num: int) -> str:
    raced = "by short samplings of the search, relative to the default"
    if num_raced == num:
        return f"All are measured {raced}: no fresh runs were made."
    hollow = f" Hollow points were only raced: {raced}." if num_raced else ""
    return f"Filled points are measured by fresh runs.{hollow}"


def _role(tuning: Tuning, words: str) -> str:
    """What a setting is that was only raced: without any fresh runs, default and best are of such."""
    own = [name for name, setting in tuning.sides if setting.words == words and not tuning.default.is_fresh]
    return own[0] if own else RACED


def _fresh_row(setting: Tuned, series: str) -> dict[str, Any]:
    return {
        "x": rounded(1e3 * setting.latency_s),
        "y": rounded(setting.rate),
        "low": rounded(setting.low),
        "high": rounded(setting.high),
        "series": series,
        "measured": "fresh runs",
        "setting": short(setting.words, 120),
    }


def _raced_row(tuning: Tuning, each: Raced, base: Raced, series: str) -> dict[str, Any]:
    latency_s = each.latency_s / base.latency_s * tuning.default.latency_s
    return {
        "x": rounded(1e3 * latency_s),
        "y": rounded(each.ratio * tuning.default.rate),
        "low": None,
        "high": None,
        "series": series,
        "measured": RACED,
        "setting": short(each.words, 120),
    }


def _scatter_spec(rows: Sequence[dict[str, Any]], unit: str, names: Sequence[str]) -> dict[str, Any]:
    import altair as alt

    colours = {RACED: "#999999", OTHERS: "#666666", **dict(zip(SIDES, _SIDE_COLOURS, strict=True))}
    shapes = {RACED: "circle", OTHERS: "circle", **dict(zip(SIDES, _SIDE_SHAPES, strict=True))}
    xs, ys = [row["x"] for row in rows], [row[n] for row in rows for n in ("y", "high") if row[n] is not None]
    x_scale = alt.Scale(domain=[0, max(xs) * 1.05], nice=False)
    y_scale = alt.Scale(domain=[0, max(ys) * 1.08], nice=False)
    of_x: Any = alt.X("x:Q", title="latency: median step (ms)", scale=x_scale, axis=alt.Axis(tickCount=8))
    of_y: Any = {"title": unit, "scale": y_scale, "axis": axis_from_0()}
    tips = {
        "setting:N": "setting",
        "y:Q": unit,
        "x:Q": "latency (ms)",
        "low:Q": "interval from",
        "high:Q": "to",
        "measured:N": "measured by",
    }
    base = chart_of().encode(x=of_x)
    whole = base.mark_rule(strokeWidth=1.5).encode(
        y=alt.Y("low:Q", **of_y), y2="high:Q", color=_by_name(names, colours, "color")
    )
    layers = []
    for is_raced in (False, True):
        kept = alt.datum.measured == RACED if is_raced else alt.datum.measured != RACED
        points = base.mark_point(filled=not is_raced, size=70, strokeWidth=1.5).transform_filter(kept)
        layers.append(
            points.encode(
                y=alt.Y("y:Q", **of_y),
                color=_by_name(names, colours, "color"),
                shape=_by_name(names, shapes, "shape"),
                tooltip=tooltips(tips),
            )
        )
    return framed([*layers, whole], {"rows": rows}, highlight=Highlight(names))


def _by_name(names: Sequence[str], values: dict[str, str], channel: str) -> Any:
    import altair as alt

    scale = alt.Scale(domain=list(names), range=[values[name] for name in names])
    legend = alt.Legend(orient="top", direction="horizontal")
    kind: Any = alt.Color if channel == "color" else alt.Shape
    return kind("series:N", title=None, scale=scale, legend=legend)


def _memory(tuning: Tuning) -> Chart | None:
    """Peak memory of the default, the rungs, the hand setting and the best."""
    steps = [(short(f"+ {rung.words}", _LABEL_LETTERS), rung.setting) for rung in tuning.ladder]
    settings = [("default", tuning.default), *steps, *tuning.sides[1:]]
    rows: list[dict[str, Any]] = []
    for label, setting in settings:
        for where, num_bytes in (("host", setting.memory_bytes), ("GPU", setting.gpu_memory_bytes)):
            if num_bytes:
                mib = rounded(num_bytes / 2**20)
                rows.append({"x": label, "y": mib, "series": where, "text": memory(num_bytes)})
    if len(rows) < 2:
        return None
    shared = "each counted whole" if tuning.mode == "script" else "shared pages counted once"
    told = ", ".join(f"{row['x']} {row['text']}" for row in rows)
    return Chart(
        key=key_of(tuning.study, tuning.key[:6], "memory"),
        title=f"{tuning.work}: memory",
        spec=_memory_spec(rows, [label for label, _ in settings]),
        caption=f"Peak memory of all processes of a setting, {shared}; the worst run.",
        alt=f"Bars of memory: {told}.",
    )


def _memory_spec(rows: Sequence[dict[str, Any]], labels: Sequence[str]) -> dict[str, Any]:
    import altair as alt

    names = list(dict.fromkeys(row["series"] for row in rows))
    length = alt.Scale(domain=[0, max(row["y"] for row in rows) * 1.15], nice=False)
    axis = alt.Axis(labelLimit=320, labelOverlap=False, grid=False)
    base = chart_of().encode(
        y=alt.Y("x:N", sort=list(dict.fromkeys(labels)), axis=axis, title=None),
        x=alt.X("y:Q", title="MiB", scale=length),
    )
    if len(names) > 1:
        base = base.encode(yOffset=alt.YOffset("series:N", sort=names))
    legend = alt.Legend(orient="top", direction="horizontal") if len(names) > 1 else None
    scale = alt.Scale(domain=names, range=list(COLOURS[: len(names)]))
    color = alt.Color("series:N", title=None, scale=scale, legend=legend)
    bars = base.mark_bar().encode(color=color, tooltip=tooltips({"x:N": "setting", "text:N": "memory"}))
    words = base.mark_text(align="left", dx=6).encode(text="text:N")
    height = ROW_HEIGHT * len(set(labels)) * len(names)
    return framed([bars, words], {"rows": rows}, height, Highlight(names))
