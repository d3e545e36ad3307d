"""Trials that show the effect of one parameter because they differ in nothing else."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from corewise.analysis.columns import get_run_rates
from corewise.analysis.groups import Group
from corewise.analysis.ratios import compute_look_level
from corewise.stats.diminishing_returns import find_diminishing_width
from corewise.study.axes import AXES


def find_single_process_peer(group: Group, best: int) -> int | None:
    """Find the trial with one process on equally many cores, all else equal."""
    point = dict(group.points[best])
    point["processes"], point["threads"] = 1, point["processes"] * point["threads"]
    peer = group.trial_by_codes.get(group.encode_point(point))
    return None if peer is None or np.isnan(group.rate[peer]) else peer


def find_trials_like(group: Group, best: int, names: Sequence[str]) -> list[int]:
    """Find the trials that differ from one in nothing but these parameters."""
    combinations = group.index_without(names)
    return [int(i) for i in np.flatnonzero(combinations == combinations[best])]


def choose_reference(group: Group, best: int, name: str, line: Sequence[int]) -> int:
    """Choose the trial to compare the best with: the default of a choice, otherwise the next fastest."""
    others = [i for i in line if i != best]
    axis = AXES.get(name)
    if axis is not None and axis.value_type in ("choice", "flag"):
        defaults = [i for i in others if group.points[i].get(name) == axis.default]
        if defaults:
            return defaults[0]
    return max(others, key=lambda i: group.rate[i])


def choose_pair_values(group: Group, name: str) -> tuple[Any, Any]:
    """Choose which of two values is the base: vanilla before vendor, otherwise the default."""
    values = group.list_values(name)
    axis = AXES.get(name)
    if name == "math" and "vanilla" in values:
        return "vanilla", next(value for value in values if value != "vanilla")
    if axis is not None and values[1] == axis.default:
        return values[1], values[0]
    return values[0], values[1]


def find_pairs(group: Group, name: str, base: Any, other: Any) -> list[tuple[int, int]]:
    """Pair each trial that has the other value with the trial that has the base value, all else equal."""
    codes, combinations = group.columns[name].codes, group.index_without((name,))
    known = ~np.isnan(group.rate)
    base_of = np.full(int(combinations.max(initial=0)) + 1, -1, dtype=np.int64)
    bases = np.flatnonzero((codes == group.columns[name].find_code(base)) & known)
    base_of[combinations[bases]] = bases
    others = np.flatnonzero((codes == group.columns[name].find_code(other)) & known)
    return [(int(i), int(base_of[combinations[i]])) for i in others if base_of[combinations[i]] >= 0]


def find_width_of_diminishing_returns(group: Group, trials: Sequence[int], width: Mapping[int, int]) -> int | None:
    """Find the width from which an added core gives less than half its share; None without evidence."""
    if len(trials) < 3:
        return None
    rates = {width[i]: get_run_rates(group.records[i]) for i in trials}
    knee = find_diminishing_width(rates, confidence=1 - compute_look_level(group.records[trials[0]]))
    return knee if knee is None or knee < max(rates) else None
