"""Chooses the charts of a group: none where nothing varies, else those that fit its question."""

from collections.abc import Collection, Iterator, Sequence

import numpy as np

from corewise.analysis.groups import WIDTHS, Group
from corewise.analysis.ranking import TrialRanking
from corewise.report.charts.bars import build_choice_chart, build_shapes_chart, find_choices
from corewise.report.charts.heat import build_heat_chart
from corewise.report.charts.lines import build_efficiency_chart, build_memory_chart, build_throughput_chart
from corewise.report.charts.series import find_numeric_axes, has_constant_cores
from corewise.report.report_model import Chart

MAX_CHOICE_CHARTS = 3


def build_group_charts(group: Group, standing: TrialRanking, without: Collection[str] = ()) -> list[Chart]:
    """Build the charts of one study, workload and mode, the most informative first, without samples.

    Args:
        without: parameters whose curves are shown elsewhere.
    """
    if not standing.best or len(group.records) < 2:
        return []
    best = max(standing.best.values(), key=lambda i: group.rate[i])
    charts = [
        *_build_main_charts(group, best, standing.list_best_and_ties(best), without),
        *_build_choice_charts(group, best),
        *_build_memory_charts(group, best),
    ]
    return [chart for chart in charts if chart is not None]


def _build_main_charts(
    group: Group, best: int, highest: Sequence[int], without: Collection[str]
) -> Iterator[Chart | None]:
    names = find_numeric_axes(group)
    both = all(name in names for name in WIDTHS)
    if both:
        yield build_shapes_chart(group, best)
        yield build_heat_chart(group, "threads", "processes", highest)
    alone = [name for name in names if name not in without and not (has_constant_cores(group) and name in WIDTHS)]
    if not alone:
        return
    yield build_throughput_chart(group, alone[0], best)
    for name in WIDTHS:
        if name in alone:
            yield build_efficiency_chart(group, name, best)
    others = [name for name in alone[1:] if not both or name not in WIDTHS]
    for name in others[:1]:
        yield build_heat_chart(group, alone[0], name, highest)


def _build_choice_charts(group: Group, best: int) -> Iterator[Chart | None]:
    for name in find_choices(group)[:MAX_CHOICE_CHARTS]:
        yield build_choice_chart(group, name, best)


def _build_memory_charts(group: Group, best: int) -> Iterator[Chart | None]:
    if "batch" in find_numeric_axes(group):
        yield build_memory_chart(group, "batch", best)


def choose_sampled_trials(group: Group, standing: TrialRanking) -> dict[int, str]:
    """Choose trials whose samples are worth showing, with the reason: fastest, slowest, least certain."""
    if not standing.best:
        return {}
    known = np.flatnonzero(~np.isnan(group.rate))
    by_rate = known[np.argsort(-group.rate[known], kind="stable")].tolist()
    spread = np.nan_to_num((group.high - group.low) / group.rate, nan=-1.0)
    reasons: dict[int, str] = {by_rate[0]: "fastest"}
    for places, why in ((by_rate[1:2], "next fastest"), (by_rate[-1:], "slowest")):
        for i in places:
            reasons.setdefault(i, why)
    reasons.setdefault(int(np.argmax(spread)), "widest interval")
    return reasons
