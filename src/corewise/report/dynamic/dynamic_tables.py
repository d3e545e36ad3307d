"""Tables of changing thread widths: published figures, spread, savings and the graph."""

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from corewise.analysis.phrases import describe_task
from corewise.analysis.ratios import is_significant, unpack_estimate
from corewise.analysis.thread_plans import PlannedTask, ThreadPlan
from corewise.report.dynamic.dynamic_part import DynamicTrials, PublishedGrids
from corewise.report.publications.published_figures import Publication, PublishedGrid, PublishedLine
from corewise.report.report_model import Column, Table
from corewise.text_format import (
    format_count,
    format_duration,
    format_figure,
    format_ratio,
    format_share,
    round_significant,
    shorten,
)

STATISTICS = ("mean", "standard deviation", "coefficient of variation", "margin of error")
_MAX_TASKS = 400
_MAX_NEEDS = 6


def build_comparison_table(trials: DynamicTrials, plan: ThreadPlan | None, source: PublishedGrids | None) -> Table:
    """Compare best with best and untuned with all fixed settings, next to the published figures."""
    own = _list_own_figures(trials, plan)
    theirs = _list_published_figures(source) if source is not None else {}
    columns = [Column(key="what", title="figure"), Column(key="yours", title="yours")]
    if source is not None:
        columns.append(Column(key="published", title=source.publication.short_citation))
    rows = [[what, value, *([theirs.get(what, "")] if source is not None else [])] for what, value in own]
    note = (
        f"Published: {source.publication.citation}, {source.fixed.where} and {source.changing.where}, on "
        "another machine; its changing threads had settings too; the largest one is listed as untuned."
        if source is not None
        else ""
    )
    fixed = "A fixed setting counts once, at its best over all other parameters."
    return Table(
        key="dynamic",
        title=f"{describe_task(trials.group)}: dynamic threads against fixed ones",
        columns=columns,
        rows=rows,
        caption=f"{fixed} {note}".strip(),
    )


def _list_own_figures(trials: DynamicTrials, plan: ThreadPlan | None) -> list[tuple[str, str]]:
    def format_trial(i: int) -> str:
        setting = trials.describe_setting(i)
        return f"{format_duration(trials.get_step_s(i))}{f' ({setting})' if setting else ''}"

    ratio = trials.gain
    rows = [
        ("best fixed setting", format_trial(trials.best_fixed)),
        ("best with changing widths", format_trial(trials.best)),
    ]
    serial = trials.settings.get((1, 1))
    if serial is not None:
        rows.insert(0, ("one thread, 1×1", format_trial(serial)))
    shown = "" if is_significant(ratio) else ", no significant difference"
    rows += [
        ("throughput, best over best", format_ratio(*unpack_estimate(ratio)) + shown),
        ("less time, best against best", format_share(*_compute_saving(trials))),
        ("changing widths, untuned", format_trial(trials.untuned)),
        (
            "fixed settings beaten by it",
            f"{trials.num_beaten} of {len(trials.fixed)} ({100 * trials.share_beaten:.1f} %)",
        ),
    ]
    if plan is not None and plan.bound_s > 0 and trials.get_step_s(trials.best) > 0:
        reached = plan.bound_s / trials.get_step_s(trials.best)
        rows.append(
            ("lower bound of its tasks", f"{format_duration(plan.bound_s)}, {format_share(min(1.0, reached))} reached")
        )
    planning = trials.group.get_metric("planning_s")[trials.best]
    if math.isfinite(planning):
        rows.append(("planning, once for a shape", format_duration(float(planning))))
    return rows


def _list_published_figures(source: PublishedGrids) -> dict[str, str]:
    fixed, changing = source.fixed.grid, source.changing.grid
    if fixed is None or changing is None:
        return {}
    cells, others = list(_iterate_cells(fixed)), list(_iterate_cells(changing))
    best, best_changing = (min(each, key=lambda cell: cell.seconds) for each in (cells, others))
    untuned = max(others, key=lambda cell: cell.row * cell.column)
    serial = min(cells, key=lambda cell: cell.row * cell.column)
    beaten = sum(cell.seconds > untuned.seconds for cell in cells)
    stated = [each for each in source.publication.figures if each.key == "settings-beaten"]
    stated_share = [f"; stated: {100 * v.value:.1f} %" for each in stated for v in each.values if v.value is not None]
    return {
        "one thread, 1×1": serial.text,
        "best fixed setting": best.text,
        "best with changing widths": best_changing.text,
        "throughput, best over best": format_ratio(best.seconds / best_changing.seconds),
        "less time, best against best": format_share(1 - best_changing.seconds / best.seconds),
        "changing widths, untuned": untuned.text,
        "fixed settings beaten by it": (
            f"{beaten} of {len(cells)} ({100 * beaten / len(cells):.1f} %) by its tables{''.join(stated_share[:1])}"
        ),
    }


@dataclass(frozen=True)
class _Cell:
    row: float
    column: float
    seconds: float

    @property
    def text(self) -> str:
        return f"{self.seconds:g} s ({self.row:g}×{self.column:g})"


def _iterate_cells(grid: PublishedGrid) -> Iterator[_Cell]:
    for row, line in zip(grid.rows.values, grid.cells, strict=True):
        for column, seconds in zip(grid.columns.values, line, strict=True):
            yield _Cell(row, column, seconds)


def build_spread_table(dynamic: DynamicTrials, source: PublishedGrids | None) -> Table | None:
    """Build mean, deviation, coefficient of variation and margin of error over runs, as published."""
    trials = {"best fixed setting": dynamic.best_fixed, "best with changing widths": dynamic.best}
    if (1, 1) in dynamic.settings:
        trials = {"one thread, 1×1": dynamic.settings[1, 1], **trials}
    rows = []
    for label, i in trials.items():
        seconds = dynamic.list_run_steps_s(i)
        if len(seconds) > 1:
            rows.append([f"yours: {label}", *compute_spread(seconds), len(seconds)])
    if not rows:
        return None
    if source is not None:
        rows += [
            [f"{source.publication.short_citation}: {line.setting}", *line.y, 3]
            for line in _find_lines(source.publication, "repeatability")
        ]
    return Table(
        key="dynamic-spread",
        title=f"{describe_task(dynamic.group)}: spread over runs",
        columns=[
            Column(key="what", title="setting"),
            Column(key="mean", title="mean", kind="seconds"),
            Column(
                key="deviation",
                title="deviation",
                kind="seconds",
                hint="divided by the number of runs, not by one less",
            ),
            Column(key="variation", title="CV", kind="percent", hint="deviation over mean"),
            Column(key="margin", title="margin of error", kind="seconds", hint="deviation over √runs"),
            Column(key="runs", title="runs", kind="number"),
        ],
        rows=rows,
        caption=("For the median step of each run, in fresh processes; published figures are for whole executions."),
    )


def compute_spread(seconds: Sequence[float]) -> tuple[float, float, float, float]:
    """Return mean, population standard deviation, coefficient of variation and margin of error."""
    mean, deviation = statistics.fmean(seconds), statistics.pstdev(seconds)
    return mean, deviation, deviation / mean, deviation / math.sqrt(len(seconds))


def _find_lines(publication: Publication, key: str) -> Iterator[PublishedLine]:
    for each in publication.figures:
        if each.key == key:
            yield from (line for line in each.lines if tuple(line.x) == STATISTICS)


def build_savings_table(trials: DynamicTrials, source: PublishedGrids | None) -> Table | None:
    """Build what shorter runs save in energy, CO₂ and money, under the publication's assumptions."""
    if source is None:
        return None
    names = ("cpu-power", "carbon-intensity", "monthly-cost", "carbon-saved", "cost-saved")
    known = {each.key: each.values[0].value for each in source.publication.figures if each.values}
    power, carbon, cost, carbon_saved, cost_saved = (known.get(name) for name in names)
    if power is None or carbon is None or cost is None:
        return None
    saved = _compute_saving(trials)

    def scale_saving(whole: float, unit: str) -> str:
        middle, low, high = saved
        least, most = (None if end is None else whole * end for end in (low, high))
        return format_figure(whole * middle, least, most, unit)

    rows = [
        ["time", format_share(*saved), "8 % at the least"],
        ["energy of an hour of a CPU", scale_saving(power, "Wh"), ""],
        ["carbon dioxide of that", scale_saving(power * carbon, "g"), f"{carbon_saved:g} g" if carbon_saved else ""],
        ["cost of two machines in a month", scale_saving(cost, "USD"), f"{cost_saved:g} USD" if cost_saved else ""],
    ]
    doubt = "" if is_significant(trials.gain) else " The difference is not significant, so no saving is shown."
    return Table(
        key="dynamic-savings",
        title=f"{describe_task(trials.group)}: what changing widths save",
        columns=[
            Column(key="what", title="saved"),
            Column(key="yours", title="yours"),
            Column(key="published", title=source.publication.short_citation),
        ],
        rows=rows,
        caption=(
            f"Against the best fixed setting. Assumed, as in {source.publication.citation}: a CPU at work "
            f"takes {power:g} W, electricity costs {carbon:g} g of carbon dioxide per Wh, and a company pays "
            f"{cost:,g} USD a month for two machines of 128 CPUs; none of this was measured here.{doubt}"
        ),
    )


def _compute_saving(trials: DynamicTrials) -> tuple[float, float | None, float | None]:
    """Return the share of time saved against the best fixed setting, with its interval."""
    value, low, high = unpack_estimate(trials.gain)
    return 1 - 1 / value, None if low is None else 1 - 1 / low, None if high is None else 1 - 1 / high


def build_graph_table(trials: DynamicTrials, plan: ThreadPlan | None) -> Table | None:
    """List the tasks of the graph in order: dependencies, cores, and time at every width."""
    if plan is None or not plan.tasks:
        return None
    widths = sorted({width for task in plan.tasks for width in task.seconds_at})
    ran = {bar.task: bar for bar in plan.bars if not bar.is_backward}
    columns = [
        Column(key="task", title="task", kind="number"),
        Column(key="name", title="operators"),
        Column(key="needs", title="waits for", hint="tasks that must have finished"),
        Column(key="cores", title="cores", kind="number", hint="the width it has in the plan"),
        Column(key="began", title="began", kind="seconds"),
        Column(key="took", title="took", kind="seconds"),
        *(Column(key=f"at-{width}", title=f"alone at {width}", kind="seconds") for width in widths),
    ]
    rows = []
    for task in plan.tasks[:_MAX_TASKS]:
        bar = ran.get(task.number)
        rows.append(
            [
                task.number,
                shorten(task.name, 80),
                _format_needs(task),
                task.width,
                round_significant(bar.start_s) if bar else None,
                round_significant(bar.end_s - bar.start_s) if bar else None,
                *(round_significant(task.seconds_at.get(width)) for width in widths),
            ]
        )
    left = len(plan.tasks) - len(rows)
    cut = f" {format_count(left, 'further task')} are not shown." if left else ""
    runs = "which runs" if plan.chosen == "plain" else f"of which {plan.chosen} runs"
    helps = f", {plan.other_speedups}" if plan.other_speedups else ""
    return Table(
        key="dynamic-graph",
        title=f"{describe_task(trials.group)}: the graph with its widths",
        columns=columns,
        rows=rows,
        caption=(
            f"{format_count(sum(task.num_operators for task in plan.tasks), 'operator')} in "
            f"{format_count(len(plan.tasks), 'task')}{helps}; began and took: in the plotted step; "
            "alone at N: measured on N cores while planning. "
            f"Candidates, timed interleaved: {_describe_candidates(plan)}, {runs}.{cut}"
        ),
    )


def _format_needs(task: PlannedTask) -> str:
    shown = ", ".join(map(str, task.needs[:_MAX_NEEDS]))
    more = len(task.needs) - _MAX_NEEDS
    return f"{shown} and {more} more" if more > 0 else shown


def _describe_candidates(plan: ThreadPlan) -> str:
    in_order = sorted(plan.candidates_s.items(), key=lambda pair: pair[1])
    return "; ".join(f"{name} {format_duration(seconds)}" for name, seconds in in_order) or "plain execution alone"
