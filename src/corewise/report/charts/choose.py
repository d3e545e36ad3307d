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
    found = [*_main(group, best, standing.with_equals(best)), *_choices(group, best), *_memory(group, best)]
    return [chart for chart in found if chart is not None]


def _main(group: Group, best: int, highest: Sequence[int]) -> Iterator[Chart | None]:
    names = across(group)
    both = all(name in names for name in WIDTHS)
    if both:
        yield shapes_chart(group, best)
        yield heat_chart(group, "threads", "processes", highest)
    alone = [name for name in names if not (fixes_cores(group) and name in WIDTHS)]
    if not alone:
        return
    yield throughput_chart(group, alone[0], best)
    for name in WIDTHS:
        if name in alone:
            yield efficiency_chart(group, name, best)
    others = [name for name in alone[1:] if not both or name not in WIDTHS]
    for name in others[:1]:
        yield heat_chart(group, alone[0], name, highest)


def _choices(group: Group, best: int) -> Iterator[Chart | None]:
    for name in choices(group)[:MAX_CHOICE_CHARTS]:
        yield choice_chart(group, name, best)


def _memory(group: Group, best: int) -> Iterator[Chart | None]:
    if "batch" in across(group):
        yield memory_chart(group, "batch", best)


def trials_to_look_into(group: Group, standing: Standing) -> dict[int, str]:
    """A few trials whose samples are worth seeing, and why: the fastest, the slowest, the least sure."""
    if not standing.best:
        return {}
    known = np.flatnonzero(~np.isnan(group.rate))
    by_rate = known[np.argsort(-group.rate[known], kind="stable")].tolist()
    spread = np.nan_to_num((group.high - group.low) / group.rate, nan=-1.0)
    found: dict[int, str] = {by_rate[0]: "fastest"}
    for places, why in ((by_rate[1:2], "next fastest"), (by_rate[-1:], "slowest")):
        for i in places:
            found.setdefault(i, why)
    found.setdefault(int(np.argmax(spread)), "widest interval")
    return found
