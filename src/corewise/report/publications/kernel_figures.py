"""One's own kernel figures in published quantities: bandwidth, rate and scaling."""

from collections.abc import Iterator, Sequence

import numpy as np

from corewise.analysis.groups import Group
from corewise.analysis.phrases import describe_value
from corewise.analysis.ratios import estimate_ratio, is_significant, unpack_estimate
from corewise.report.publications.published_figures import Published
from corewise.text_format import format_list, format_number, format_ratio

# This text marks a published figure of scaling.
TWICE = "twice as many"
# The axes along which a kernel gets more cores.
WIDTHS = ("threads", "processes", "nodes")
_MAX_SETTINGS = 8
# For each unit of a published figure: our metric, and the factor to that unit.
_UNITS = {"MB/s": ("gbyte_per_s", 1e3), "GB/s": ("gbyte_per_s", 1.0), "Gflop/s": ("gflop_per_s", 1.0)}
_NOUNS = {"gbyte_per_s": "bytes moved in memory", "gflop_per_s": "rate"}
_MESSAGES_NOUN = "bandwidth of messages"


def build_kernel_rows(group: Group, published_figures: Sequence[Published]) -> Iterator[list[str]]:
    """Yield rows of this machine for each published kernel quantity; none for other workloads."""
    if not np.isfinite(group.get_metric("gbyte_per_s")).any():
        return
    tops = _find_fastest_of_settings(group)
    if any(TWICE in published.what for published in published_figures):
        for top in tops:
            for name in WIDTHS:
                yield from _compare_doubled(group, top, name)
    wanted = {published.unit for published in published_figures if published.quantity in ("bandwidth", "rate")}
    for unit in sorted(wanted & set(_UNITS)):
        metric, scale = _UNITS[unit]
        values = group.get_metric(metric)
        for top in tops:
            if values[top] > 0:
                value = f"{format_number(scale * values[top])} {unit}"
                noun = _MESSAGES_NOUN if _has_messages(group) else _NOUNS[metric]
                yield [noun, "this machine", _describe_setting(group, top), value, "this report"]


def _find_fastest_of_settings(group: Group) -> list[int]:
    """Find the fastest trial of each setting except its width, for the fastest settings of many."""
    setting_ids = group.index_without(names=WIDTHS)
    tops: dict[int, int] = {}
    # Of messages, the sizes with the highest bandwidth count: small ones have the highest rate.
    order = group.get_metric("gbyte_per_s") if _has_messages(group) else group.rate
    for i in np.argsort(-order, kind="stable").tolist():
        if group.rate[i] > 0 and _is_published_operation(group, i):
            tops.setdefault(int(setting_ids[i]), i)
    return sorted(list(tops.values())[:_MAX_SETTINGS], key=lambda i: group.encode_point(group.points[i]))


def _has_messages(group: Group) -> bool:
    return bool(np.isfinite(group.get_metric("latency_s")).any())


def _is_published_operation(group: Group, i: int) -> bool:
    """Return whether the trial computes what a paper measured: of messages, the push to another task."""
    return not _has_messages(group) or group.records[i].params.get("args.operation") == "push_add"


def _compare_doubled(group: Group, top: int, name: str) -> Iterator[list[str]]:
    """Yield the gain of twice as many threads, processes or nodes."""
    if name not in group.varying or not group.is_number(name):
        return
    line = {int(group.points[i][name]): i for i in group.find_trials_along(top, name)}
    for count, i in line.items():
        if 2 * count in line:
            ratio = estimate_ratio(group, line[2 * count], i)
            setting = format_list([f"{count} to {2 * count} {name}", *_describe_rest(group, top, name)], 6)
            value = format_ratio(*unpack_estimate(ratio)) + (
                "" if is_significant(ratio) else ", no significant difference"
            )
            yield [f"throughput with {TWICE} {name}", "this machine", setting, value, "this report"]


def _describe_setting(group: Group, i: int) -> str:
    threads = group.get_numbers("threads")[i]
    return format_list([describe_value("threads", int(threads)), *_describe_rest(group, i)], 6)


def _describe_rest(group: Group, i: int, left_out: str = "threads") -> list[str]:
    return [describe_value(name, value) for name, value in group.points[i].items() if name != left_out]
