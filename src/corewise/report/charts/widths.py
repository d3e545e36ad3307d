"""Changing thread widths drawn: the fixed settings they compete with, and one step, core by core."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from corewise.report.charts.look import COLOURS, chart_of, framed, key_of, legend, tooltips
from corewise.report.charts.overlay import grid_spec
from corewise.report.charts.words import caption_joined
from corewise.report.dynamic import Dynamic
from corewise.report.model import Chart
from corewise.report.phrases import task_words
from corewise.report.plans import MAX_BARS, Bar, PlanShown
from corewise.report.words import counted, duration, listed, rounded, share, short, times

_ROW_HEIGHT = 26
_LEAST_HEIGHT, _MOST_HEIGHT = 90, 640
_NAMED_SHARE = 0.07  # of a step; shorter bars have no room for their name
_MAX_KINDS = len(COLOURS) - 1
OTHERS = "others"


def settings_chart(found: Dynamic) -> Chart | None:
    """A heat map of the fixed settings as speed-ups over one thread, as the published one is drawn."""
    group, settings = found.group, found.settings
    if len({inter for inter, _ in settings}) < 2 or len({intra for _, intra in settings}) < 2:
        return None
    base = min(settings, key=lambda pair: (pair[0] * pair[1], pair))
    gains = {pair: float(group.rate[i] / group.rate[settings[base]]) for pair, i in settings.items()}
    top = max(gains.values())
    rows = [
        {
            "x": f"{intra}", "y": f"{inter}", "gain": rounded(gain, 4), "text": f"{gain:.1f}×",
            "seconds": rounded(found.seconds(settings[inter, intra])),
            "time": duration(found.seconds(settings[inter, intra])),
            "bright": gain > 0.55 * top, "best": gain == top,
        }
        for (inter, intra), gain in gains.items()
    ]  # fmt: skip
    changing = float(group.rate[found.untuned] / group.rate[settings[base]])
    at = f"{base[0]}×{base[1]} ({duration(found.seconds(settings[base]))})"
    best = max(gains, key=lambda pair: gains[pair])
    return Chart(
        key=key_of(group.study, group.workload_name, group.mode, "fixed", "settings"),
        title=f"{task_words(group)}: fixed inter-op × intra-op threads",
        spec=grid_spec(rows, "intra-op threads", "inter-op threads", "s"),
        caption=caption_joined(
            f"Speed-up over {at} and time of a step; frame: the highest.",
            "Of all else that varied the fastest is drawn.",
            f"Widths that change as the model runs, without any setting: {times(changing)}.",
        ),
        alt=(
            "Heat map of speed-ups of fixed settings with intra-op threads across and inter-op threads "
            f"upward; the highest is {gains[best]:.1f} at {best[0]} × {best[1]}, against {changing:.1f} with "
            "widths that change."
        ),
    )


def timeline_chart(found: Dynamic, plan: PlanShown | None) -> Chart | None:
    """One step: a row for each core, a bar for each task on the cores it had."""
    if plan is None or not plan.bars:
        return None
    bars = sorted(plan.bars, key=lambda bar: bar.start_s - bar.end_s)[:MAX_BARS]
    kinds = _kinds(plan)
    rows = [row for bar in bars for row in _rows(plan, bar, kinds)]
    group = found.group
    words = found.setting_words(found.best)
    left = len(plan.bars) - len(bars)
    return Chart(
        key=key_of(group.study, group.workload_name, group.mode, "timeline"),
        title=f"{task_words(group)}: one step, core by core",
        spec=_timeline_spec(rows, plan.cpus, kinds),
        caption=caption_joined(
            f"A step after warm-up{f' with {words}' if words else ''}: each row a core, each bar a task on "
            f"the cores it had; gaps are cores without a task. {share(plan.busy_share)} of their time is "
            f"covered; the plan ({plan.chosen}, {plan.executor} executor) could end after "
            f"{duration(plan.bound_s)} at best.",
            _passes_drawn(plan) if group.mode == "train" else "",
            f"The shortest {counted(left, 'task')} are not drawn." if left else "",
        ),
        alt=(
            f"Timeline of {counted(len({bar.task for bar in plan.bars}), 'task')} on "
            f"{counted(len(plan.cpus), 'core')} over {duration(plan.total_s)}: {listed(kinds, 4)}."
        ),
    )


def _passes_drawn(plan: PlanShown) -> str:
    both = any(bar.is_backward for bar in plan.bars)
    return "Forward and backward pass are drawn." if both else "In training the forward pass is drawn."


def _kinds(plan: PlanShown) -> list[str]:
    """The kinds of tasks that took most of the cores' time, the rest as one."""
    taken: Counter[str] = Counter()
    for bar in plan.bars:
        taken[plan.tasks[bar.task].kind] += int(1e9 * len(bar.cpus) * (bar.end_s - bar.start_s))
    found = [kind for kind, _ in taken.most_common()]
    return found if len(found) <= _MAX_KINDS + 1 else [*found[:_MAX_KINDS], OTHERS]


def _rows(plan: PlanShown, bar: Bar, kinds: Sequence[str]) -> Iterator[dict[str, Any]]:
    """A rectangle for each run of neighbouring rows."""
    task, begin = plan.tasks[bar.task], min(each.start_s for each in plan.bars)
    kind = task.kind if task.kind in kinds else OTHERS
    places = sorted(plan.cpus.index(cpu) for cpu in bar.cpus)
    is_long = bar.end_s - bar.start_s > _NAMED_SHARE * plan.total_s
    for first, last in _runs(places):
        yield {
            "start": rounded(1e3 * (bar.start_s - begin)), "end": rounded(1e3 * (bar.end_s - begin)),
            "middle": rounded(1e3 * ((bar.start_s + bar.end_s) / 2 - begin)),
            "first": first, "last": last + 1, "centre": (first + last + 1) / 2,
            "series": kind, "width": len(bar.cpus),
            "task": short(task.name, 60) + (", backward" if bar.is_backward else ""),
            "took": rounded(1e3 * (bar.end_s - bar.start_s)), "label": short(kind, 18) if is_long else "",
        }  # fmt: skip


def _runs(places: Sequence[int]) -> Iterator[tuple[int, int]]:
    first = previous = places[0]
    for place in places[1:]:
        if place != previous + 1:
            yield first, previous
            first = place
        previous = place
    yield first, previous


def _timeline_spec(
    rows: Sequence[dict[str, Any]], cpus: Sequence[int], kinds: Sequence[str]
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
    scale = alt.Scale(domain=list(kinds), range=list(COLOURS[: len(kinds)]))
    colour = alt.Color("series:N", title="costliest operator", scale=scale, legend=legend(kinds))
    tips = {
        "task:N": "task", "width:Q": "cores", "start:Q": "from (ms)", "end:Q": "to (ms)",
        "took:Q": "took (ms)",
    }  # fmt: skip
    bars = chart_of().mark_rect(stroke="white", strokeWidth=0.6)
    names = chart_of().mark_text(fontSize=11, color="white", clip=True)
    layers = [
        bars.encode(x=x, x2="end:Q", y=y, y2="last:Q", color=colour, tooltip=tooltips(tips)),
        names.encode(x=alt.X("middle:Q", title=""), y=alt.Y("centre:Q", title=""), text="label:N"),
    ]
    height = min(_MOST_HEIGHT, max(_LEAST_HEIGHT, _ROW_HEIGHT * num))
    return framed(layers, {"rows": rows}, height)
