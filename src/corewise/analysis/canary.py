"""Changes of CPU speed between trials, measured by a fixed loop (the canary) that each trial times."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from corewise.analysis.groups import Group
from corewise.analysis.machines import get_machine_key
from corewise.stats.values import Values
from corewise.text_format import format_count

# With fewer other trials, their median is too uncertain for a comparison.
MIN_OTHER_TRIALS = 3


def compute_canary_ratios(groups: Sequence[Group]) -> Values:
    """Divide each trial's canary time by the median of other trials on equally many cores of its machine.

    The number of cores matters because the clock frequency drops when more cores are busy.
    """
    canaries_s: dict[tuple[Any, float], list[float]] = {}
    machines: dict[int, Any] = {}
    for group in groups:
        canary, widths = (group.get_metric("canary_s"), group.get_numbers("processes") * group.get_numbers("threads"))
        for i in np.flatnonzero(~np.isnan(canary)).tolist():
            record = group.records[i]
            if id(record.machine) not in machines:
                machines[id(record.machine)] = get_machine_key(record.machine)
            place = (machines[id(record.machine)], float(widths[i]))
            canaries_s.setdefault(place, []).append(float(canary[i]))
    ratios = [_divide_by_others_median(np.array(each)) for each in canaries_s.values() if len(each) > MIN_OTHER_TRIALS]
    return np.concatenate(ratios) if ratios else np.empty(0)


def _divide_by_others_median(values: Values) -> Values:
    """Divide each value by the median of all others."""
    order = np.argsort(values, kind="stable")
    ordered, num = values[order], values.size
    place = np.arange(num)
    # Without the value itself there are num - 1 values; these are their middle positions.
    low, high = (num - 2) // 2, (num - 1) // 2
    middle = (ordered[low + (place <= low)] + ordered[high + (place <= high)]) / 2
    ratios = np.empty(num)
    ratios[order] = ordered / middle
    return ratios


def describe_canary(ratios: Values) -> str:
    """Describe the spread of the canary."""
    low, high = np.quantile(ratios, [0.05, 0.95])
    return (
        f"from {low:.2f} to {high:.2f} times the median of other trials on equally many cores (5th and 95th "
        f"percentile of {format_count(ratios.size, 'trial')})"
    )
