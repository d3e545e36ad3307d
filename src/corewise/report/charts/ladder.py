"""Charts of a tuning: the gain of each knob, throughput against latency, and memory."""

from collections.abc import Sequence
from typing import Any

from corewise.analysis.tuning_results import RacedSetting, SettingResult, StoredTuning, get_ends
from corewise.report.charts.chart_labels import join_sentences
from corewise.report.charts.chart_theme import (
    COLOURS,
    Highlight,
    build_axis_from_0,
    build_key,
    build_layered_spec,
    build_tooltips,
    create_chart,
)
from corewise.report.charts.whiskers import build_whiskers
from corewise.report.report_model import Chart
from corewise.text_format import (
    format_count,
    format_duration,
    format_figure,
    format_memory,
    format_ratio,
    round_significant,
    shorten,
)

ROW_HEIGHT = 34
_LABEL_CHARACTERS = 48
SETTING, GAIN, LOSS = "measured", "gained by the knob", "lost by the knob"
RACED, OTHERS, SIDES = "raced only", "fresh runs", ("default", "by hand", "best")
SIDE_NAMES = {"by hand": "the hand setting", "best": "the best"}
_SIDE_COLOURS = (COLOURS[1], COLOURS[4], COLOURS[0])
_SIDE_SHAPES = ("square", "diamond", "triangle-up")
INTERVALS = "Whiskers: 95 % intervals over fresh processes."


def build_tuning_charts(tuning: StoredTuning) -> list[Chart]:
    """Build the charts of one tuning, the ladder first; charts without data are left out."""
    charts = [_build_ladder_chart(tuning), _build_latency_chart(tuning), _build_memory_chart(tuning)]
    return [chart for chart in charts if chart is not None]


def _build_ladder_chart(tuning: StoredTuning) -> Chart | None:
    """Build the steps from the default to the best; each bar starts where the previous one ended."""
    if len(tuning.sides) < 2 or not tuning.default.throughput or not tuning.default.is_fresh:
        return None
    rows = [_build_total_row("default", tuning.default, None)]
    before = tuning.default.throughput
    for rung in tuning.ladder:
        rate, interval = rung.side.throughput, format_ratio(rung.gain, *get_ends(rung.gain_interval))
        series = GAIN if rate >= before else LOSS
        label = shorten(f"+ {rung.label}", _LABEL_CHARACTERS)
        rows.append(_build_row(label, rung.side, before, series, format_ratio(rung.gain)) | {"over": interval})
        before = rate
    for name, setting in tuning.sides[1:]:
        rows.append(_build_total_row(name, setting, *_compare_with_default(tuning, setting)))
    in_full = " and ".join(SIDE_NAMES[name] for name, _ in tuning.sides[1:])
    gains = ", ".join(f"{shorten(r.label, 40)} {format_ratio(r.gain)}" for r in tuning.ladder)
    return Chart(
        key=build_key(tuning.study, tuning.key[:6], "ladder"),
        title=f"{tuning.work}: what each knob gave",
        spec=_build_ladder_spec(rows, tuning.unit),
        caption=join_sentences(
            f"Throughput in {tuning.unit} of fresh runs: the default, "
            f"{'then one more knob at a time, ' if tuning.ladder else ''}then {in_full} in full.",
            "Bars are geometric means of the runs. Figures next to them are ratios of these means: to the "
            "previous step, or to the default.",
            INTERVALS,
        ),
        alt=(
            f"Bars from the default with {format_figure(tuning.default.throughput)} to the best with "
            f"{format_figure(tuning.best.throughput)} {tuning.unit}{f': {gains}' if gains else ''}."
        ),
    )


def _compare_with_default(tuning: StoredTuning, setting: SettingResult) -> tuple[float | None, ...]:
    """Return a setting's ratio to the default with its interval, from the comparison in the answer."""
    if setting.label == tuning.best.label and tuning.verdict == "faster":
        return tuning.speedup, *get_ends(tuning.speedup_interval)
    return setting.over_default, *get_ends(setting.over_default_interval)


def _build_total_row(name: str, setting: SettingResult, ratio: float | None, *interval: float | None) -> dict[str, Any]:
    text = "" if ratio is None else f"{format_ratio(ratio)} the default"
    over = "" if ratio is None else f"{format_ratio(ratio, *interval)} the default"
    return _build_row(name, setting, 0.0, SETTING, text) | {"over": over or "-"}


def _build_row(label: str, setting: SettingResult, start: float, series: str, text: str) -> dict[str, Any]:
    rate, (low, high) = setting.throughput, get_ends(setting.interval)
    return {
        "x": label,
        "start": round_significant(start),
        "y": round_significant(rate),
        "low": round_significant(low),
        "high": round_significant(high),
        "end": round_significant(max(start, rate, high or 0.0)),
        "series": series,
        "text": text,
        "setting": shorten(setting.label, 120),
    }


def _build_ladder_spec(rows: Sequence[dict[str, Any]], unit: str) -> dict[str, Any]:
    import altair as alt

    labels = [row["x"] for row in rows]
    names = [name for name in (SETTING, GAIN, LOSS) if any(row["series"] == name for row in rows)]
    colours = {SETTING: "#999999", GAIN: COLOURS[0], LOSS: COLOURS[1]}
    scale = alt.Scale(domain=names, range=[colours[name] for name in names])
    legend = alt.Legend(orient="top", direction="horizontal") if len(names) > 1 else None
    length = alt.Scale(domain=[0, max(row["end"] for row in rows) * 1.22], nice=False)
    axis = alt.Axis(labelLimit=320, labelOverlap=False, grid=False)
    base = create_chart().encode(y=alt.Y("x:N", sort=labels, axis=axis, title=None))
    along: Any = {"title": unit, "scale": length, "axis": build_axis_from_0()}
    tips = {
        "setting:N": "setting", "y:Q": unit, "low:Q": "interval from", "high:Q": "to",
        "over:N": "gain",
    }  # fmt: skip
    layers: list[Any] = [
        base.mark_bar(height=18).encode(
            x=alt.X("start:Q", **along),
            x2="y:Q",
            color=alt.Color("series:N", title=None, scale=scale, legend=legend),
            tooltip=build_tooltips(tips),
        )
    ]
    if any(row["low"] is not None for row in rows):
        low = {"x": alt.X("low:Q", **along), "x2": "high:Q"}
        layers += build_whiskers(base, low, {"x": alt.X("high:Q", **along)}, True)
    texts = base.mark_text(align="left", dx=8).encode(x=alt.X("end:Q", **along), text="text:N")
    layers.append(texts)
    return build_layered_spec(layers, {"rows": rows}, ROW_HEIGHT * len(rows), Highlight(names))


def _build_latency_chart(tuning: StoredTuning) -> Chart | None:
    """Build throughput against latency of all settings; only inference has a latency."""
    raced = [each for each in tuning.tried if each.ratio and each.latency_s]
    base = next((each for each in raced if each.outcome == "default"), None)
    if tuning.mode != "infer" or base is None or len(raced) < 2 or not tuning.default.latency_s:
        return None
    fresh = {label: each for label, each in tuning.fresh.items() if each.latency_s}
    roles = {setting.label: name for name, setting in tuning.sides}
    rows = [
        _build_raced_row(tuning, each, base, _find_role(tuning, each.label))
        for each in raced
        if each.label not in fresh
    ]
    rows += [_build_fresh_row(each, roles.get(label, OTHERS)) for label, each in fresh.items()]
    names = [name for name in (RACED, OTHERS, *SIDES) if any(row["series"] == name for row in rows)]
    num_raced = sum(row["measured"] == RACED for row in rows)
    return Chart(
        key=build_key(tuning.study, tuning.key[:6], "latency"),
        title=f"{tuning.work}: throughput against latency",
        spec=_build_scatter_spec(rows, tuning.unit, names),
        caption=join_sentences(
            "Each point is a setting: higher is more throughput, further left is lower latency.",
            _describe_measurement(num_raced, len(rows)),
            INTERVALS if num_raced < len(rows) else "",
        ),
        alt=(
            f"{format_count(len(rows), 'setting')} by latency and throughput, {num_raced:,} of them only "
            f"raced; the default answers in {format_duration(tuning.default.latency_s)}, the best in "
            f"{format_duration(tuning.best.latency_s)}."
        ),
    )


def _describe_measurement(num_raced: int, num: int) -> str:
    raced = "by short samples of the search, relative to the default"
    if num_raced == num:
        return f"All points are measured {raced}; there were no fresh runs."
    hollow = f" Hollow points are measured {raced}." if num_raced else ""
    return f"Filled points are measured in fresh runs.{hollow}"


def _find_role(tuning: StoredTuning, label: str) -> str:
    """Return the role of a raced setting; without fresh runs, default and best were only raced too."""
    own = [name for name, setting in tuning.sides if setting.label == label and not tuning.default.is_fresh]
    return own[0] if own else RACED


def _build_fresh_row(setting: SettingResult, series: str) -> dict[str, Any]:
    low, high = get_ends(setting.interval)
    return {
        "x": round_significant(1e3 * setting.latency_s),
        "y": round_significant(setting.throughput),
        "low": round_significant(low),
        "high": round_significant(high),
        "series": series,
        "measured": "fresh runs",
        "setting": shorten(setting.label, 120),
    }


def _build_raced_row(tuning: StoredTuning, each: RacedSetting, base: RacedSetting, series: str) -> dict[str, Any]:
    latency_s = each.latency_s / base.latency_s * tuning.default.latency_s
    return {
        "x": round_significant(1e3 * latency_s),
        "y": round_significant(each.ratio * tuning.default.throughput),
        "low": None,
        "high": None,
        "series": series,
        "measured": RACED,
        "setting": shorten(each.label, 120),
    }


def _build_scatter_spec(rows: Sequence[dict[str, Any]], unit: str, names: Sequence[str]) -> dict[str, Any]:
    import altair as alt

    colours = {RACED: "#999999", OTHERS: "#666666", **dict(zip(SIDES, _SIDE_COLOURS, strict=True))}
    shapes = {RACED: "circle", OTHERS: "circle", **dict(zip(SIDES, _SIDE_SHAPES, strict=True))}
    xs, ys = [row["x"] for row in rows], [row[n] for row in rows for n in ("y", "high") if row[n] is not None]
    x_scale = alt.Scale(domain=[0, max(xs) * 1.05], nice=False)
    y_scale = alt.Scale(domain=[0, max(ys) * 1.08], nice=False)
    of_x: Any = alt.X("x:Q", title="latency: median step (ms)", scale=x_scale, axis=alt.Axis(tickCount=8))
    of_y: Any = {"title": unit, "scale": y_scale, "axis": build_axis_from_0()}
    tips = {
        "setting:N": "setting",
        "y:Q": unit,
        "x:Q": "latency (ms)",
        "low:Q": "interval from",
        "high:Q": "to",
        "measured:N": "measured by",
    }
    base = create_chart().encode(x=of_x)
    whole = base.mark_rule(strokeWidth=1.5).encode(
        y=alt.Y("low:Q", **of_y), y2="high:Q", color=_encode_by_name(names, colours, "color")
    )
    layers = []
    for is_raced in (False, True):
        is_drawn = alt.datum.measured == RACED if is_raced else alt.datum.measured != RACED
        points = base.mark_point(filled=not is_raced, size=70, strokeWidth=1.5).transform_filter(is_drawn)
        layers.append(
            points.encode(
                y=alt.Y("y:Q", **of_y),
                color=_encode_by_name(names, colours, "color"),
                shape=_encode_by_name(names, shapes, "shape"),
                tooltip=build_tooltips(tips),
            )
        )
    return build_layered_spec([*layers, whole], {"rows": rows}, highlight=Highlight(names))


def _encode_by_name(names: Sequence[str], values: dict[str, str], channel: str) -> Any:
    import altair as alt

    scale = alt.Scale(domain=list(names), range=[values[name] for name in names])
    legend = alt.Legend(orient="top", direction="horizontal")
    encoding: Any = alt.Color if channel == "color" else alt.Shape
    return encoding("series:N", title=None, scale=scale, legend=legend)


def _build_memory_chart(tuning: StoredTuning) -> Chart | None:
    """Build peak memory of the default, the steps, the hand setting and the best."""
    steps = [(shorten(f"+ {rung.label}", _LABEL_CHARACTERS), rung.side) for rung in tuning.ladder]
    settings = [("default", tuning.default), *steps, *tuning.sides[1:]]
    rows: list[dict[str, Any]] = []
    for label, setting in settings:
        for where, num_bytes in (("host", setting.memory_bytes), ("GPU", setting.gpu_memory_bytes)):
            if num_bytes:
                mib = round_significant(num_bytes / 2**20)
                rows.append({"x": label, "y": mib, "series": where, "text": format_memory(num_bytes)})
    if len(rows) < 2:
        return None
    shared = "each counted in full" if tuning.mode == "script" else "shared pages counted once"
    amounts = ", ".join(f"{row['x']} {row['text']}" for row in rows)
    return Chart(
        key=build_key(tuning.study, tuning.key[:6], "memory"),
        title=f"{tuning.work}: memory",
        spec=_build_memory_spec(rows, [label for label, _ in settings]),
        caption=f"Peak memory of all processes of a setting, {shared}; the largest over runs.",
        alt=f"Bars of memory: {amounts}.",
    )


def _build_memory_spec(rows: Sequence[dict[str, Any]], labels: Sequence[str]) -> dict[str, Any]:
    import altair as alt

    names = list(dict.fromkeys(row["series"] for row in rows))
    length = alt.Scale(domain=[0, max(row["y"] for row in rows) * 1.15], nice=False)
    axis = alt.Axis(labelLimit=320, labelOverlap=False, grid=False)
    base = create_chart().encode(
        y=alt.Y("x:N", sort=list(dict.fromkeys(labels)), axis=axis, title=None),
        x=alt.X("y:Q", title="MiB", scale=length),
    )
    if len(names) > 1:
        base = base.encode(yOffset=alt.YOffset("series:N", sort=names))
    legend = alt.Legend(orient="top", direction="horizontal") if len(names) > 1 else None
    scale = alt.Scale(domain=names, range=list(COLOURS[: len(names)]))
    color = alt.Color("series:N", title=None, scale=scale, legend=legend)
    bars = base.mark_bar().encode(color=color, tooltip=build_tooltips({"x:N": "setting", "text:N": "memory"}))
    texts = base.mark_text(align="left", dx=6).encode(text="text:N")
    height = ROW_HEIGHT * len(set(labels)) * len(names)
    return build_layered_spec([bars, texts], {"rows": rows}, height, Highlight(names))
