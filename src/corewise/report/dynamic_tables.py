"""Tables of changing thread widths: beside published ones, their spread, what they save, and the graph."""

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from corewise.report.dynamic import Dynamic, PublishedGrids
from corewise.report.model import Column, Table
from corewise.report.phrases import task_words
from corewise.report.plans import PlannedTask, PlanShown
from corewise.report.publications import Grid, Line, Publication
from corewise.report.standing import ends, is_shown
from corewise.report.words import counted, duration, figure, rounded, share, short, times

STATISTICS = ("mean", "standard deviation", "coefficient of variation", "margin of error")
_MAX_TASKS = 400
_MAX_NEEDS = 6


def comparison_table(found: Dynamic, plan: PlanShown | None, source: PublishedGrids | None) -> Table:
    """Best against best, the untuned mode against all fixed settings, and the published figures beside."""
    own = _own_figures(found, plan)
    theirs = _their_figures(source) if source is not None else {}
    columns = [Column(key="what", title="figure"), Column(key="yours", title="yours")]
    if source is not None:
        columns.append(Column(key="published", title=source.publication.short_citation))
    rows = [[what, told, *([theirs.get(what, "")] if source is not None else [])] for what, told in own]
    note = (
        f"Published: {source.publication.citation}, {source.fixed.where} and {source.changing.where}, on "
        "another machine; its changing threads had settings too, of which the largest is the untuned one."
        if source is not None
        else ""
    )
    fixed = "A fixed setting counts once, at its best over all else that varied."
    return Table(
        key="dynamic",
        title=f"{task_words(found.group)}: dynamic threads against fixed ones",
        columns=columns,
        rows=rows,
        caption=f"{fixed} {note}".strip(),
    )


def _own_figures(found: Dynamic, plan: PlanShown | None) -> list[tuple[str, str]]:
    def told(i: int) -> str:
        words = found.setting_words(i)
        return f"{duration(found.seconds(i))}{f' ({words})' if words else ''}"

    ratio = found.gain
    rows = [("best fixed setting", told(found.best_fixed)), ("best with changing widths", told(found.best))]
    serial = found.settings.get((1, 1))
    if serial is not None:
        rows.insert(0, ("one thread, 1×1", told(serial)))
    shown = "" if is_shown(ratio) else ", not told apart"
    rows += [
        ("throughput, best over best", times(*ends(ratio)) + shown),
        ("less time, best against best", share(*_saved(found))),
        ("changing widths, untuned", told(found.untuned)),
        (
            "fixed settings beaten by it",
            f"{found.num_beaten} of {len(found.fixed)} ({100 * found.share_beaten:.1f} %)",
        ),
    ]
    if plan is not None and plan.bound_s > 0 and found.seconds(found.best) > 0:
        reached = plan.bound_s / found.seconds(found.best)
        rows.append(
            (
                "of what its tasks allow at best",
                f"{duration(plan.bound_s)}, {share(min(1.0, reached))} reached",
            )
        )
    planning = found.group.metric("planning_s")[found.best]
    if math.isfinite(planning):
        rows.append(("planning, once for a shape", duration(float(planning))))
    return rows


def _their_figures(source: PublishedGrids) -> dict[str, str]:
    fixed, changing = source.fixed.grid, source.changing.grid
    if fixed is None or changing is None:
        return {}
    cells, others = list(_cells(fixed)), list(_cells(changing))
    best, best_changing = (min(each, key=lambda cell: cell.seconds) for each in (cells, others))
    untuned = max(others, key=lambda cell: cell.row * cell.column)
    serial = min(cells, key=lambda cell: cell.row * cell.column)
    beaten = sum(cell.seconds > untuned.seconds for cell in cells)
    stated = [each for each in source.publication.figures if each.key == "settings-beaten"]
    said = [f"; stated: {100 * v.value:.1f} %" for each in stated for v in each.values if v.value is not None]
    return {
        "one thread, 1×1": serial.words,
        "best fixed setting": best.words,
        "best with changing widths": best_changing.words,
        "throughput, best over best": times(best.seconds / best_changing.seconds),
        "less time, best against best": share(1 - best_changing.seconds / best.seconds),
        "changing widths, untuned": untuned.words,
        "fixed settings beaten by it": (
            f"{beaten} of {len(cells)} ({100 * beaten / len(cells):.1f} %) by its tables{''.join(said[:1])}"
        ),
    }


@dataclass(frozen=True)
class _Cell:
    row: float
    column: float
    seconds: float

    @property
    def words(self) -> str:
        return f"{self.seconds:g} s ({self.row:g}×{self.column:g})"


def _cells(grid: Grid) -> Iterator[_Cell]:
    for row, line in zip(grid.rows.values, grid.cells, strict=True):
        for column, seconds in zip(grid.columns.values, line, strict=True):
            yield _Cell(row, column, seconds)


def spread_table(found: Dynamic, source: PublishedGrids | None) -> Table | None:
    """Mean, deviation, coefficient of variation and margin of error over runs, as published."""
    trials = {"best fixed setting": found.best_fixed, "best with changing widths": found.best}
    if (1, 1) in found.settings:
        trials = {"one thread, 1×1": found.settings[1, 1], **trials}
    rows = []
    for what, i in trials.items():
        seconds = found.run_seconds(i)
        if len(seconds) > 1:
            rows.append([f"yours: {what}", *spread(seconds), len(seconds)])
    if not rows:
        return None
    if source is not None:
        rows += [
            [f"{source.publication.short_citation}: {line.setting}", *line.y, 3]
            for line in _lines(source.publication, "repeatability")
        ]
    return Table(
        key="dynamic-spread",
        title=f"{task_words(found.group)}: spread over runs",
        columns=[
            Column(key="what", title="setting"),
            Column(key="mean", title="mean", kind="seconds"),
            Column(
                key="deviation",
                title="deviation",
                kind="seconds",
                hint="over all runs, not one less",
            ),
            Column(key="variation", title="CV", kind="percent", hint="deviation over mean"),
            Column(key="margin", title="margin of error", kind="seconds", hint="deviation over √runs"),
            Column(key="runs", title="runs", kind="number"),
        ],
        rows=rows,
        caption="Of the median step of each run, in fresh processes; published ones are of whole executions.",
    )


def spread(seconds: Sequence[float]) -> tuple[float, float, float, float]:
    """Mean, standard deviation over N, coefficient of variation and margin of error."""
    mean, deviation = statistics.fmean(seconds), statistics.pstdev(seconds)
    return mean, deviation, deviation / mean, deviation / math.sqrt(len(seconds))


def _lines(publication: Publication, key: str) -> Iterator[Line]:
    for each in publication.figures:
        if each.key == key:
            yield from (line for line in each.lines if tuple(line.x) == STATISTICS)


def savings_table(found: Dynamic, source: PublishedGrids | None) -> Table | None:
    """What less time saves in energy, carbon dioxide and money, under the publication's assumptions."""
    if source is None:
        return None
    names = ("cpu-power", "carbon-intensity", "monthly-cost", "carbon-saved", "cost-saved")
    known = {each.key: each.values[0].value for each in source.publication.figures if each.values}
    power, carbon, cost, carbon_saved, cost_saved = (known.get(name) for name in names)
    if power is None or carbon is None or cost is None:
        return None
    saved = _saved(found)

    def scaled(whole: float, unit: str) -> str:
        middle, low, high = saved
        least, most = (None if end is None else whole * end for end in (low, high))
        return figure(whole * middle, least, most, unit)

    rows = [
        ["time", share(*saved), "8 % at the least"],
        ["energy of an hour of a CPU", scaled(power, "Wh"), ""],
        [
            "carbon dioxide of that",
            scaled(power * carbon, "g"),
            f"{carbon_saved:g} g" if carbon_saved else "",
        ],
        ["cost of two machines in a month", scaled(cost, "USD"), f"{cost_saved:g} USD" if cost_saved else ""],
    ]
    doubt = "" if is_shown(found.gain) else " The two are not told apart: nothing is shown to be saved."
    return Table(
        key="dynamic-savings",
        title=f"{task_words(found.group)}: what changing widths save",
        columns=[
            Column(key="what", title="saved"),
            Column(key="yours", title="yours"),
            Column(key="published", title=source.publication.short_citation),
        ],
        rows=rows,
        caption=(
            f"Against the best fixed setting. Assumed, as in {source.publication.citation}: a CPU at work "
            f"takes {power:g} W, electricity costs {carbon:g} g of carbon dioxide per Wh, and a company pays "
            f"{cost:,g} USD a month for two machines of 128 CPUs; nothing of this was measured here.{doubt}"
        ),
    )


def _saved(found: Dynamic) -> tuple[float, float | None, float | None]:
    """The share of time saved against the best fixed setting, with its interval."""
    value, low, high = ends(found.gain)
    return 1 - 1 / value, None if low is None else 1 - 1 / low, None if high is None else 1 - 1 / high


def graph_table(found: Dynamic, plan: PlanShown | None) -> Table | None:
    """The tasks of the graph in order, each with what it waits for, its cores and its time at every width."""
    if plan is None or not plan.tasks:
        return None
    widths = sorted({width for task in plan.tasks for width in task.seconds_at})
    ran = {bar.task: bar for bar in plan.bars if not bar.is_backward}
    columns = [
        Column(key="task", title="task", kind="number"),
        Column(key="name", title="operators"),
        Column(key="needs", title="waits for", hint="tasks that must have ended"),
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
                task.number, short(task.name, 80), _needs(task), task.width,
                rounded(bar.start_s) if bar else None, rounded(bar.end_s - bar.start_s) if bar else None,
                *(rounded(task.seconds_at.get(width)) for width in widths),
            ]
        )  # fmt: skip
    left = len(plan.tasks) - len(rows)
    cut = f" {counted(left, 'further task')} are left out." if left else ""
    runs = "which runs" if plan.chosen == "plain" else f"of which {plan.chosen} runs"
    helps = f", {plan.other_helps}" if plan.other_helps else ""
    return Table(
        key="dynamic-graph",
        title=f"{task_words(found.group)}: the graph with its widths",
        columns=columns,
        rows=rows,
        caption=(
            f"{counted(sum(task.num_operators for task in plan.tasks), 'operator')} in "
            f"{counted(len(plan.tasks), 'task')}{helps}; began and took: in the step drawn; "
            "alone at N: measured on N cores while planning. "
            f"Candidates timed in turns: {_candidates(plan)}, {runs}.{cut}"
        ),
    )


def _needs(task: PlannedTask) -> str:
    shown = ", ".join(map(str, task.needs[:_MAX_NEEDS]))
    more = len(task.needs) - _MAX_NEEDS
    return f"{shown} and {more} more" if more > 0 else shown


def _candidates(plan: PlanShown) -> str:
    in_order = sorted(plan.candidates_s.items(), key=lambda pair: pair[1])
    return "; ".join(f"{name} {duration(seconds)}" for name, seconds in in_order) or "plain execution alone"
