"""Thread widths that change as a model runs against all fixed settings measured beside them."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from corewise.report.columns import largest_each, number_or_nan
from corewise.report.groups import Group
from corewise.report.model import Chart, Table
from corewise.report.phrases import point_words, task_words, value_words
from corewise.report.plans import PlanShown, plan_of
from corewise.report.publications import Publication, Published
from corewise.report.standing import Standing, ends, is_shown, ratio_between
from corewise.report.words import counted, duration, times
from corewise.stats.estimate import Estimate

CHANGING = "malleable"
GRID_KEYS = ("static-grid", "dynamic-grid")  # of published figures
Setting = tuple[int, int]  # inter-op × intra-op threads


@dataclass(frozen=True)
class Dynamic:
    """The two sides of one task; trials are places in the group."""

    group: Group
    fixed: Sequence[int]  # the fastest of each setting, whatever else was varied
    best_fixed: int
    best: int  # of those whose widths change
    untuned: int  # of those the one with most threads
    settings: Mapping[Setting, int] = field(default_factory=dict)  # of the fixed ones, where both vary

    @property
    def gain(self) -> Estimate:
        """Throughput of changing widths over that of the best fixed setting."""
        return ratio_between(self.group, self.best, self.best_fixed)

    @property
    def num_beaten(self) -> int:
        """Fixed settings whose throughput is below that of changing widths without any tuning."""
        return sum(bool(self.group.rate[i] < self.group.rate[self.untuned]) for i in self.fixed)

    @property
    def share_beaten(self) -> float:
        return self.num_beaten / len(self.fixed)

    def seconds(self, i: int) -> float:
        """The median step of a trial."""
        return float(self.group.metric("step_s")[i])

    def run_seconds(self, i: int) -> list[float]:
        """The median step of each run of a trial that counts."""
        runs = [run for run in self.group.records[i].runs if run.get("status", "ok") in ("ok", "")]
        found = [number_or_nan((run.get("metrics") or {}).get("step_s")) for run in runs]
        return [seconds for seconds in found if seconds > 0]

    def setting_words(self, i: int) -> str:
        """A trial's setting: 4×8 with wait policy passive, or 16 threads."""
        setting = _setting(self.group, i)
        point = dict(self.group.points[i])
        if setting is None or point.get("execution") == CHANGING:
            return point_words(point, without=("execution", "interop_threads", "wait_policy"))
        rest = point_words(point, without=("execution", "interop_threads", "threads"))
        return f"{setting[0]}×{setting[1]}{f', {rest}' if rest else ''}"


@dataclass(frozen=True)
class DynamicPart:
    """What a report says and shows of it."""

    sentences: Sequence[str] = ()
    settings: Chart | None = None  # the map of fixed settings
    timeline: Chart | None = None
    tables: Sequence[Table] = ()

    def among(self, charts: Sequence[Chart]) -> list[Chart]:
        """Its charts before the others of the group, published maps beside one's own."""
        maps = [chart for chart in charts if chart.key.endswith(tuple(f"-{key}" for key in GRID_KEYS))]
        own = [chart for chart in (self.settings, *maps, self.timeline) if chart is not None]
        return [*own, *(chart for chart in charts if chart not in maps)]


def dynamic_of(group: Group, standing: Standing) -> Dynamic | None:
    """Changing widths and fixed ones of the task with the fastest trial; None where one side is missing."""
    if "execution" not in group.varying or not standing.best:
        return None
    tasks = sorted(standing.tasks.values(), key=lambda places: -float(np.nanmax([0, *group.rate[places]])))
    for places in tasks:
        known = [int(i) for i in places if not math.isnan(group.rate[i])]
        changing = [i for i in known if group.points[i]["execution"] == CHANGING]
        others = np.array([i for i in known if i not in set(changing)], dtype=np.int64)
        if not changing or not others.size:
            continue
        fixed = _fastest_of_settings(group, others)
        threads = group.numbers("threads")
        changing = [i for i in changing if threads[i] != 1] or changing  # on one core no width can change
        return Dynamic(
            group=group,
            fixed=fixed,
            best_fixed=max(fixed, key=lambda i: group.rate[i]),
            best=max(changing, key=lambda i: group.rate[i]),
            untuned=max(changing, key=lambda i: (threads[i], group.rate[i])),
            settings=_settings(group, fixed),
        )
    return None


def dynamic_part(group: Group, standing: Standing, publications: Sequence[Publication]) -> DynamicPart:
    """The section on changing widths; empty where they were not measured beside fixed ones."""
    found = dynamic_of(group, standing)
    if found is None:
        return DynamicPart()
    from corewise.report.charts.widths import settings_chart, timeline_chart
    from corewise.report.dynamic_tables import comparison_table, graph_table, savings_table, spread_table

    plan = plan_of(group, found.best)
    source = published_grids(publications)
    tables = [
        comparison_table(found, plan, source),
        spread_table(found, source),
        savings_table(found, source),
    ]
    tables.append(graph_table(found, plan))
    return DynamicPart(
        sentences=list(_sentences(found, plan)),
        settings=settings_chart(found),
        timeline=timeline_chart(found, plan),
        tables=[table for table in tables if table is not None],
    )


@dataclass(frozen=True)
class PublishedGrids:
    """A publication that measured fixed and changing threads over one grid."""

    publication: Publication
    fixed: Published
    changing: Published


def published_grids(publications: Sequence[Publication]) -> PublishedGrids | None:
    """The first publication with both grids."""
    for publication in publications:
        grids = {figure.key: figure for figure in publication.figures if figure.grid is not None}
        if set(GRID_KEYS) <= set(grids):
            return PublishedGrids(publication, *(grids[key] for key in GRID_KEYS))
    return None


def _fastest_of_settings(group: Group, places: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> list[int]:
    """The fastest trial of each fixed setting of threads and execution, over waiting and the like."""
    names = [n for n in ("processes", "threads", "interop_threads", "execution") if n in group.varying]
    rates = np.full(len(group.records), np.nan)
    rates[places] = group.rate[places]
    return [int(i) for i in largest_each(group.together(names), rates)]


def _settings(group: Group, fixed: Sequence[int]) -> dict[Setting, int]:
    if not {"interop_threads", "threads"} <= set(group.varying):
        return {}
    found = {_setting(group, i): i for i in fixed}
    return {setting: i for setting, i in found.items() if setting is not None}


def _setting(group: Group, i: int) -> Setting | None:
    """Inter-op × intra-op threads of a trial; None where branches do not run side by side."""
    point = {**group.constant, **group.points[i]}
    inter, threads = point.get("interop_threads"), point.get("threads")
    if not isinstance(inter, int) or not isinstance(threads, int) or inter < 1:
        return None
    return inter, max(1, threads // inter)


def _sentences(found: Dynamic, plan: PlanShown | None) -> Iterator[str]:
    what, ratio = task_words(found.group), found.gain
    fixed, best = found.setting_words(found.best_fixed), found.setting_words(found.best)
    with_best, with_fixed = (f" ({words})" if words else "" for words in (best, fixed))
    if is_shown(ratio):
        yield (
            f"{what} with widths that change as it runs{with_best} takes "
            f"{duration(found.seconds(found.best))} a step, {times(*ends(ratio))} the throughput of the best "
            f"fixed setting{with_fixed}."
        )
    else:
        yield (
            f"{what} with widths that change as it runs{with_best} is not told apart from the best fixed "
            f"setting{with_fixed}: {times(*ends(ratio))} its throughput."
        )
    if len(found.fixed) > 1:
        whole = value_words("threads", int(found.group.numbers("threads")[found.untuned]))
        yield (
            f"Without any tuning, on {whole}, changing widths are faster than {found.num_beaten} of "
            f"{counted(len(found.fixed), 'fixed setting')} ({100 * found.share_beaten:.0f} %)."
        )
    if plan is not None and plan.chosen == "plain":
        why = f": {plan.reason}" if plan.reason else ", which nothing planned beat by enough"
        yield f"The plan for it is plain execution{why}."
    elif plan is not None and plan.other_helps:
        yield f"Not by widths alone: it also runs {plan.other_helps}, which fixed settings do not."
