"""Which charts a group deserves: none where nothing varies, and each with what the question asks for."""

from collections.abc import Iterator, Sequence

import numpy as np

from corewise.report.charts.bars import choice_chart, choices, shapes_chart
from corewise.report.charts.heat import heat_chart
from corewise.report.charts.lines import efficiency_chart, memory_chart, throughput_chart
from corewise.report.groups import WIDTHS, Group
from corewise.report.model import Chart
from corewise.report.series import across, fixes_cores
from corewise.report.standing import Standing

MAX_CHOICE_CHARTS = 3


def charts_of(group: Group, standing: Standing) -> list[Chart]:
    """The charts of one study, workload and mode, the most telling first; without the samples' own."""
    if not standing.best or len(group.records) < 2:
        return []
    best = max(standing.best.values(), key=lambda i: group.rate[i])
    found = [*_main(group, best), *_choices(group, best), *_memory(group, best)]
    return [chart for chart in found if chart is not None]


def _main(group: Group, best: int) -> Iterator[Chart | None]:
    names = across(group)
    both = all(name in names for name in WIDTHS)
    if both:
        yield shapes_chart(group, best)
        yield heat_chart(group, "threads", "processes", best)
    alone = [name for name in names if not (fixes_cores(group) and name in WIDTHS)]
    if not alone:
        return
    yield throughput_chart(group, alone[0], best)
    for name in WIDTHS:
        if name in alone:
            yield efficiency_chart(group, name, best)
    others = [name for name in alone[1:] if not both or name not in WIDTHS]
    for name in others[:1]:
        yield heat_chart(group, alone[0], name, best)


def _choices(group: Group, best: int) -> Iterator[Chart | None]:
    for name in choices(group)[:MAX_CHOICE_CHARTS]:
        yield choice_chart(group, name, best)


def _memory(group: Group, best: int) -> Iterator[Chart | None]:
    if "batch" in across(group):
        yield memory_chart(group, "batch", best)


def trials_to_look_into(group: Group, standing: Standing, most: int) -> Sequence[int]:
    """A few trials whose samples are worth seeing: the best, the base, and those that vary most."""
    if not standing.best:
        return []
    best = max(standing.best.values(), key=lambda i: group.rate[i])
    spread = (group.high - group.low) / group.rate
    order = [int(i) for i in np.argsort(-np.nan_to_num(spread, nan=-1.0), kind="stable")]
    by_rate = [int(i) for i in np.argsort(-np.nan_to_num(group.rate, nan=-1.0), kind="stable")]
    slowest = next((i for i in reversed(by_rate) if not np.isnan(group.rate[i])), best)
    chosen = dict.fromkeys([best, *by_rate[1:2], slowest, *order[:most]])
    return list(chosen)[:most]
