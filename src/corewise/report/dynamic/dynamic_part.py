"""Compares thread widths that change while a model runs with all fixed settings of the same study."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from corewise.analysis.columns import find_largest_each, parse_number
from corewise.analysis.groups import Group
from corewise.analysis.phrases import describe_point, describe_task, describe_value
from corewise.analysis.ranking import TrialRanking
from corewise.analysis.ratios import estimate_ratio, is_significant, unpack_estimate
from corewise.analysis.thread_plans import ThreadPlan, find_thread_plan
from corewise.report.publications.published_figures import Publication, Published
from corewise.report.report_model import Chart, Table
from corewise.stats.estimate import Estimate
from corewise.text_format import format_count, format_duration, format_ratio

CHANGING = "malleable"
# Keys of the two published grids.
GRID_KEYS = ("static-grid", "dynamic-grid")
# Inter-op × intra-op threads.
Setting = tuple[int, int]


@dataclass(frozen=True)
class DynamicTrials:
    """Trials of one task with fixed and with changing widths, as indices into the group.

    Attributes:
        fixed: The fastest trial of each fixed setting.
        best: The fastest trial with changing widths.
        untuned: The trial with changing widths and the most threads.
        settings: The fixed trials by setting, where both thread counts vary.
    """

    group: Group
    fixed: Sequence[int]
    best_fixed: int
    best: int
    untuned: int
    settings: Mapping[Setting, int] = field(default_factory=dict)

    @property
    def gain(self) -> Estimate:
        """Throughput of changing widths over that of the best fixed setting."""
        return estimate_ratio(self.group, self.best, self.best_fixed)

    @property
    def num_beaten(self) -> int:
        """The number of fixed settings that are slower than changing widths without tuning."""
        return sum(bool(self.group.rate[i] < self.group.rate[self.untuned]) for i in self.fixed)

    @property
    def share_beaten(self) -> float:
        return self.num_beaten / len(self.fixed)

    def get_step_s(self, i: int) -> float:
        """Return the median step of a trial."""
        return float(self.group.get_metric("step_s")[i])

    def list_run_steps_s(self, i: int) -> list[float]:
        """Return the median step of each counted run of a trial."""
        runs = [run for run in self.group.records[i].runs if run.get("status", "ok") in ("ok", "")]
        steps_s = [parse_number((run.get("metrics") or {}).get("step_s")) for run in runs]
        return [seconds for seconds in steps_s if seconds > 0]

    def describe_setting(self, i: int) -> str:
        """Describe a trial's setting: 4×8, wait policy passive; or 16 threads."""
        setting = _read_setting(self.group, i)
        point = dict(self.group.points[i])
        if setting is None or point.get("execution") == CHANGING:
            return describe_point(point, without=("execution", "interop_threads", "wait_policy"))
        rest = describe_point(point, without=("execution", "interop_threads", "threads"))
        return f"{setting[0]}×{setting[1]}{f', {rest}' if rest else ''}"


@dataclass(frozen=True)
class DynamicPart:
    """Sentences, charts and tables of a report on changing widths."""

    sentences: Sequence[str] = ()
    settings: Chart | None = None
    timeline: Chart | None = None
    tables: Sequence[Table] = ()

    def merge_charts(self, charts: Sequence[Chart]) -> list[Chart]:
        """Put its charts before the others of the group, and published maps next to one's own."""
        maps = [chart for chart in charts if chart.key.endswith(tuple(f"-{key}" for key in GRID_KEYS))]
        own = [chart for chart in (self.settings, *maps, self.timeline) if chart is not None]
        return [*own, *(chart for chart in charts if chart not in maps)]


def find_dynamic_trials(group: Group, standing: TrialRanking) -> DynamicTrials | None:
    """Find trials with fixed and changing widths of the fastest task; None if one side is missing."""
    if "execution" not in group.varying or not standing.best:
        return None
    tasks = sorted(standing.tasks.values(), key=lambda places: -float(np.nanmax([0, *group.rate[places]])))
    for places in tasks:
        known = [int(i) for i in places if not math.isnan(group.rate[i])]
        changing = [i for i in known if group.points[i]["execution"] == CHANGING]
        others = np.array([i for i in known if i not in set(changing)], dtype=np.int64)
        if not changing or not others.size:
            continue
        fixed = _find_fastest_settings(group, others)
        threads = group.get_numbers("threads")
        # On one core, no width can change.
        changing = [i for i in changing if threads[i] != 1] or changing
        return DynamicTrials(
            group=group,
            fixed=fixed,
            best_fixed=max(fixed, key=lambda i: group.rate[i]),
            best=max(changing, key=lambda i: group.rate[i]),
            untuned=max(changing, key=lambda i: (threads[i], group.rate[i])),
            settings=_map_settings(group, fixed),
        )
    return None


def build_dynamic_part(group: Group, standing: TrialRanking, publications: Sequence[Publication]) -> DynamicPart:
    """Build the part on changing widths; empty where they were not measured next to fixed ones."""
    trials = find_dynamic_trials(group, standing)
    if trials is None:
        return DynamicPart()
    from corewise.report.charts.widths import build_settings_chart, build_timeline_chart
    from corewise.report.dynamic.dynamic_tables import (
        build_comparison_table,
        build_graph_table,
        build_savings_table,
        build_spread_table,
    )

    plan = find_thread_plan(group, trials.best)
    source = find_published_grids(publications)
    tables = [
        build_comparison_table(trials, plan, source),
        build_spread_table(trials, source),
        build_savings_table(trials, source),
    ]
    tables.append(build_graph_table(trials, plan))
    return DynamicPart(
        sentences=list(_describe_gain(trials, plan)),
        settings=build_settings_chart(trials),
        timeline=build_timeline_chart(trials, plan),
        tables=[table for table in tables if table is not None],
    )


@dataclass(frozen=True)
class PublishedGrids:
    """A publication that measured fixed and changing threads over one grid."""

    publication: Publication
    fixed: Published
    changing: Published


def find_published_grids(publications: Sequence[Publication]) -> PublishedGrids | None:
    """Return the first publication with both grids."""
    for publication in publications:
        grids = {figure.key: figure for figure in publication.figures if figure.grid is not None}
        if set(GRID_KEYS) <= set(grids):
            return PublishedGrids(publication, *(grids[key] for key in GRID_KEYS))
    return None


def _find_fastest_settings(group: Group, places: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> list[int]:
    """Find the fastest trial of each fixed setting of threads and execution."""
    names = [n for n in ("processes", "threads", "interop_threads", "execution") if n in group.varying]
    rates = np.full(len(group.records), np.nan)
    rates[places] = group.rate[places]
    return [int(i) for i in find_largest_each(group.index_by(names), rates)]


def _map_settings(group: Group, fixed: Sequence[int]) -> dict[Setting, int]:
    if not {"interop_threads", "threads"} <= set(group.varying):
        return {}
    trials = {_read_setting(group, i): i for i in fixed}
    return {setting: i for setting, i in trials.items() if setting is not None}


def _read_setting(group: Group, i: int) -> Setting | None:
    """Return inter-op × intra-op threads of a trial, or None where branches do not run in parallel."""
    point = {**group.constant, **group.points[i]}
    inter, threads = point.get("interop_threads"), point.get("threads")
    if not isinstance(inter, int) or not isinstance(threads, int) or inter < 1:
        return None
    return inter, max(1, threads // inter)


def _describe_gain(trials: DynamicTrials, plan: ThreadPlan | None) -> Iterator[str]:
    task_text, ratio = describe_task(trials.group), trials.gain
    fixed, best = trials.describe_setting(trials.best_fixed), trials.describe_setting(trials.best)
    with_best, with_fixed = (f" ({setting})" if setting else "" for setting in (best, fixed))
    if is_significant(ratio):
        yield (
            f"{task_text} with widths that change as it runs{with_best} takes "
            f"{format_duration(trials.get_step_s(trials.best))} a step, "
            f"{format_ratio(*unpack_estimate(ratio))} the throughput of the best fixed setting{with_fixed}."
        )
    else:
        yield (
            f"{task_text} with widths that change as it runs{with_best} shows no significant difference "
            f"from the best fixed setting{with_fixed}: {format_ratio(*unpack_estimate(ratio))} its "
            "throughput."
        )
    if len(trials.fixed) > 1:
        whole = describe_value("threads", int(trials.group.get_numbers("threads")[trials.untuned]))
        yield (
            f"Without any tuning, on {whole}, changing widths are faster than {trials.num_beaten} of "
            f"{format_count(len(trials.fixed), 'fixed setting')} ({100 * trials.share_beaten:.0f} %)."
        )
    if plan is not None and plan.chosen == "plain":
        reason = f": {plan.reason}" if plan.reason else ", which nothing planned beat by enough"
        yield f"The plan for it is plain execution{reason}."
    elif plan is not None and plan.other_speedups:
        yield (f"The gain is not from widths alone: it also runs {plan.other_speedups}, which fixed settings do not.")
