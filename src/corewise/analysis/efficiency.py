"""Parallel efficiency: throughput per core or node over that of the narrowest trial that is otherwise equal."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from corewise.analysis.columns import Places
from corewise.analysis.groups import WIDTHS, Group
from corewise.analysis.ratios import compute_look_level
from corewise.stats.batch_ratios import LogMoments, estimate_ratios
from corewise.stats.values import Values

# Their product is the number of cores that a trial uses on all nodes.
CORES = ("nodes", *WIDTHS)


@dataclass(frozen=True)
class Efficiencies:
    """The efficiency of each trial with its interval, NaN without a base.

    Attributes:
        base: index of the base trial in the group; -1 if there is none.
        width: number of cores, or of the unit that was asked for.
    """

    value: Values
    low: Values
    high: Values
    base: Places
    width: Values


def compute_efficiencies(group: Group, over: Sequence[str] = CORES) -> Efficiencies:
    """Compute each trial's e = p_w / (w / b · p_b), where b is the least width measured with all else equal.

    The width is the product of the parameters named in `over`.
    """
    widths = np.prod([group.get_numbers(name) for name in over], axis=0)
    combinations = group.index_without(over)
    # Of equally narrow trials, the one with the fewest nodes is the base, then the one with the fewest processes.
    order = [group.get_numbers(name) for name in reversed(over)]
    base = _find_bases(combinations, widths, order, group.rate)
    lone = find_lone_ranks(group, over)
    for i in np.flatnonzero(lone >= 0).tolist():
        if widths[lone[i]] < widths[i]:
            base[i], base[lone[i]] = lone[i], lone[i]
    level = compute_look_level(group.records[0]) if group.records else 0.05
    return _compute_against(base, widths, group.rate, group.rates, 1 - level)


def find_lone_ranks(group: Group, over: Sequence[str]) -> Places:
    """Find for each trial whose ranks exchange messages the trial of one rank that is otherwise equal; -1 if none.

    One rank exchanges nothing, so its trial has the default of `collectives`, whatever those of the others are.
    """
    found = np.full(len(group.records), -1, dtype=np.int64)
    if "collectives" not in group.varying:
        return found
    num_ranks = group.get_numbers("nodes") * group.get_numbers("processes")
    numbers, known = group.index_without((*over, "collectives")), ~np.isnan(group.rate)
    lone = {int(numbers[i]): i for i in np.flatnonzero(known & (num_ranks == 1)).tolist()}
    for i in np.flatnonzero(known & (num_ranks > 1)).tolist():
        found[i] = lone.get(int(numbers[i]), -1)
    return found


def _compute_against(
    base: Places, widths: Values, rate: Values, rates: LogMoments, confidence: float = 0.95
) -> Efficiencies:
    """Compute the efficiency of each trial against its base."""
    value, low, high = (np.full(widths.size, np.nan) for _ in range(3))
    places = np.flatnonzero((base >= 0) & ~np.isnan(rate))
    bases = base[places]
    scale = widths[bases] / widths[places]
    ratios = estimate_ratios(rates[places], rates[bases], confidence)
    # The value is computed from the rates that are shown, so that a reader gets the same result.
    value[places] = rate[places] / rate[bases] * scale
    low[places], high[places] = (
        np.fmin(ratios.low * scale, value[places]),
        np.fmax(ratios.high * scale, value[places]),
    )
    low[places[np.isnan(ratios.low)]] = high[places[np.isnan(ratios.high)]] = np.nan
    itself = places[places == bases]
    value[itself] = low[itself] = high[itself] = 1.0
    return Efficiencies(value, low, high, base, widths)


def _find_bases(combinations: Places, widths: Values, order: Sequence[Values], rate: Values) -> Places:
    """Find the base of each trial; -1 if widths do not vary, and for other trials as narrow as the base."""
    result = np.full(widths.size, -1, dtype=np.int64)
    known = np.flatnonzero((widths > 0) & ~np.isnan(rate))
    if known.size == 0:
        return result
    keys = [key[known] for key in order]
    in_order = known[np.lexsort((known, *keys, widths[known], combinations[known]))]
    starts = np.concatenate(([True], np.diff(combinations[in_order]) != 0))
    base = np.full(int(combinations.max()) + 1, -1, dtype=np.int64)
    base[combinations[in_order[starts]]] = in_order[starts]
    own = base[combinations[known]]
    wider = widths[known] != widths[own]
    varies = np.zeros(base.size, dtype=bool)
    varies[combinations[known[wider]]] = True
    keep = varies[combinations[known]] & (wider | (known == own))
    result[known[keep]] = own[keep]
    return result
