"""Charts of changing thread widths: the fixed settings they compete with, and one step, core by core."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from corewise.analysis.phrases import describe_task
from corewise.analysis.thread_plans import MAX_BARS, TaskBar, ThreadPlan
from corewise.report.charts.chart_labels import join_sentences
from corewise.report.charts.chart_theme import (
    COLOURS,
    build_key,
    build_layered_spec,
    build_legend,
    build_tooltips,
    create_chart,
)
from corewise.report.charts.overlay import build_grid_spec
from corewise.report.dynamic.dynamic_part import DynamicTrials
from corewise.report.report_model import Chart
from corewise.text_format import (
    format_count,
    format_duration,
    format_list,
    format_ratio,
    format_share,
    round_significant,
    shorten,
)

_ROW_HEIGHT = 26
_LEAST_HEIGHT, _MOST_HEIGHT = 90, 640
# Bars shorter than this share of a step have no room for a label.
_NAMED_SHARE = 0.07
_MAX_OPERATORS = len(COLOURS) - 1
OTHERS = "others"


def build_settings_chart(trials: DynamicTrials) -> Chart | None:
    """Build a heat map of the fixed settings as speed-ups over one thread, like the published one."""
    group, settings = trials.group, trials.settings
    if len({inter for inter, _ in settings}) < 2 or len({intra for _, intra in settings}) < 2:
        return None
    base = min(settings, key=lambda pair: (pair[0] * pair[1], pair))
    gains = {pair: float(group.rate[i] / group.rate[settings[base]]) for pair, i in settings.items()}
    top = max(gains.values())
    rows = [
        {
            "x": f"{intra}", "y": f"{inter}", "gain": round_significant(gain, 4), "text": f"{gain:.1f}×",
            "seconds": round_significant(trials.get_step_s(settings[inter, intra])),
            "time": format_duration(trials.get_step_s(settings[inter, intra])),
            "bright": gain > 0.55 * top, "best": gain == top,
        }
        for (inter, intra), gain in gains.items()
    ]  # fmt: skip
    changing = float(group.rate[trials.untuned] / group.rate[settings[base]])
    at = f"{base[0]}×{base[1]} ({format_duration(trials.get_step_s(settings[base]))})"
    best = max(gains, key=lambda pair: gains[pair])
    return Chart(
        key=build_key(group.study, group.workload_name, group.mode, "fixed", "settings"),
        title=f"{describe_task(group)}: fixed inter-op × intra-op threads",
        spec=build_grid_spec(rows, "intra-op threads", "inter-op threads", "s"),
        caption=join_sentences(
            f"Speed-up over {at} and time of a step; frame: the highest.",
            "Showing the fastest over all other parameters.",
            f"Widths that change as the model runs, without tuning: {format_ratio(changing)}.",
        ),
        alt=(
            "Heat map of speed-ups of fixed settings with intra-op threads across and inter-op threads "
            f"upward; the highest is {gains[best]:.1f} at {best[0]} × {best[1]}, against {changing:.1f} with "
            "widths that change."
        ),
    )


def build_timeline_chart(trials: DynamicTrials, plan: ThreadPlan | None) -> Chart | None:
    """Build one step: a row for each core, a bar for each task on its cores."""
    if plan is None or not plan.bars:
        return None
    bars = sorted(plan.bars, key=lambda bar: bar.start_s - bar.end_s)[:MAX_BARS]
    operators = _list_operators(plan)
    rows = [row for bar in bars for row in _build_rows(plan, bar, operators)]
    group = trials.group
    setting = trials.describe_setting(trials.best)
    left = len(plan.bars) - len(bars)
    return Chart(
        key=build_key(group.study, group.workload_name, group.mode, "timeline"),
        title=f"{describe_task(group)}: one step, core by core",
        spec=_build_timeline_spec(rows, plan.cpus, operators),
        caption=join_sentences(
            f"A step after warm-up{f' with {setting}' if setting else ''}: each row is a core, each bar a "
            f"task on its cores; gaps are idle cores. {format_share(plan.busy_share)} of their time is "
            f"busy; the plan ({plan.chosen}, {plan.executor} executor) needs at least "
            f"{format_duration(plan.bound_s)}.",
            _describe_passes(plan) if group.mode == "train" else "",
            f"The shortest {format_count(left, 'task')} are not shown." if left else "",
        ),
        alt=(
            f"Timeline of {format_count(len({bar.task for bar in plan.bars}), 'task')} on "
            f"{format_count(len(plan.cpus), 'core')} over {format_duration(plan.total_s)}: "
            f"{format_list(operators, 4)}."
        ),
    )


def _describe_passes(plan: ThreadPlan) -> str:
    both = any(bar.is_backward for bar in plan.bars)
    return "Showing forward and backward pass." if both else "Showing the forward pass of training."


def _list_operators(plan: ThreadPlan) -> list[str]:
    """Return the operators with the largest core time; the others are combined."""
    taken: Counter[str] = Counter()
    for bar in plan.bars:
        taken[plan.tasks[bar.task].main_operator] += int(1e9 * len(bar.cpus) * (bar.end_s - bar.start_s))
    operators = [operator for operator, _ in taken.most_common()]
    return operators if len(operators) <= _MAX_OPERATORS + 1 else [*operators[:_MAX_OPERATORS], OTHERS]


def _build_rows(plan: ThreadPlan, bar: TaskBar, operators: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield a rectangle for each group of neighbouring rows."""
    task, begin = plan.tasks[bar.task], min(each.start_s for each in plan.bars)
    operator = task.main_operator if task.main_operator in operators else OTHERS
    places = sorted(plan.cpus.index(cpu) for cpu in bar.cpus)
    is_long = bar.end_s - bar.start_s > _NAMED_SHARE * plan.total_s
    for first, last in _group_neighbours(places):
        yield {
            "start": round_significant(1e3 * (bar.start_s - begin)),
            "end": round_significant(1e3 * (bar.end_s - begin)),
            "middle": round_significant(1e3 * ((bar.start_s + bar.end_s) / 2 - begin)), "first": first,
            "last": last + 1, "centre": (first + last + 1) / 2, "series": operator, "width": len(bar.cpus),
            "task": shorten(task.name, 60) + (", backward" if bar.is_backward else ""),
            "took": round_significant(1e3 * (bar.end_s - bar.start_s)),
            "label": shorten(operator, 18) if is_long else "",
        }  # fmt: skip


def _group_neighbours(places: Sequence[int]) -> Iterator[tuple[int, int]]:
    first = previous = places[0]
    for place in places[1:]:
        if place != previous + 1:
            yield first, previous
            first = place
        previous = place
    yield first, previous


def _build_timeline_spec(
    rows: Sequence[dict[str, Any]], cpus: Sequence[int], operators: Sequence[str]
) -> dict[str, Any]:
    import altair as alt

    num = len(cpus)
    labels = f"'CPU ' + {list(cpus)}[floor(datum.value)]"
    every = max(1, num // 32)
    axis = alt.Axis(
        values=[place + 0.5 for place in range(0, num, every)],
        labelExpr=labels,
        labelOverlap=False,
        grid=False,
        ticks=False,
        domain=False,
    )
    y = alt.Y("first:Q", title="", scale=alt.Scale(domain=[0, num], reverse=True, nice=False), axis=axis)
    end = max(row["end"] for row in rows)
    x = alt.X("start:Q", title="ms from the first task", scale=alt.Scale(domain=[0, end], nice=False))
    scale = alt.Scale(domain=list(operators), range=list(COLOURS[: len(operators)]))
    colour = alt.Color("series:N", title="costliest operator", scale=scale, legend=build_legend(operators))
    tips = {
        "task:N": "task", "width:Q": "cores", "start:Q": "from (ms)", "end:Q": "to (ms)",
        "took:Q": "took (ms)",
    }  # fmt: skip
    bars = create_chart().mark_rect(stroke="white", strokeWidth=0.6)
    names = create_chart().mark_text(fontSize=11, color="white", clip=True)
    layers = [
        bars.encode(x=x, x2="end:Q", y=y, y2="last:Q", color=colour, tooltip=build_tooltips(tips)),
        names.encode(x=alt.X("middle:Q", title=""), y=alt.Y("centre:Q", title=""), text="label:N"),
    ]
    height = min(_MOST_HEIGHT, max(_LEAST_HEIGHT, _ROW_HEIGHT * num))
    return build_layered_spec(layers, {"rows": rows}, height)
