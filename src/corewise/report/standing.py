"""Which trial of a task is fastest, which cannot be told from it, and by how much two of them differ."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from corewise.report.columns import Places, coded, columns_of, combined, members, number_or_nan, run_rates
from corewise.report.groups import APART, WIDTHS, Group
from corewise.spec.record import Record
from corewise.stats.estimate import Estimate
from corewise.stats.many import LogMoments, log_moments, ratios_of
from corewise.stats.sequential import level_per_look
from corewise.stats.values import Values

MIN_RUNS_TO_COMPARE = 2


@dataclass(frozen=True)
class Standing:
    """Of each trial of a group: its task, and how it stands to the fastest of that task.

    A task is what may be ranked together: on one machine, with one version, and with the same parameters of
    the workload itself, since samples of another size do not compare.
    """

    tasks: Mapping[int, Places]  # -> its trials
    best: Mapping[int, int]  # -> its fastest trial; none where nothing gave a number
    is_best: "np.ndarray[Any, np.dtype[np.bool_]]"
    may_equal_best: "np.ndarray[Any, np.dtype[np.bool_]]"  # no difference from the best one is shown

    def task_of(self, i: int) -> int:
        """The task of a trial."""
        return next(task for task, places in self.tasks.items() if i in places)

    def with_equals(self, best: int) -> list[int]:
        """The fastest of a task and all that may equal it."""
        places = self.tasks[self.task_of(best)]
        return [best, *(int(i) for i in places if self.may_equal_best[i])]


@dataclass(frozen=True)
class Efficiencies:
    """Of each trial: throughput per unit over that of the base, NaN where there is none."""

    value: Values
    low: Values
    high: Values
    base: Places  # place of the base in the group; -1 where there is none
    width: Values  # number of units


def standing_of(group: Group) -> Standing:
    """How the trials of a group stand to the best of their task."""
    names = [name for name in group.varying if name.startswith("args.") or name in APART]
    tasks = dict(enumerate(members(group.together(names))))
    is_best, may_equal = np.zeros(len(group.records), bool), np.zeros(len(group.records), bool)
    best: dict[int, int] = {}
    for task, places in tasks.items():
        rates = group.rate[places]
        if np.isnan(rates).all():
            continue
        fastest = best[task] = int(places[np.nanargmax(rates)])
        if places.size > 1:
            is_best[fastest] = True
            own = group.rates[np.array([fastest])]
            may_equal[places] = alike(group.rates[places], own, group.records[fastest])
            may_equal[fastest] = False
    return Standing(tasks, best, is_best, may_equal)


def alike(rates: LogMoments, fastest: LogMoments, record: Record) -> "np.ndarray[Any, np.dtype[np.bool_]]":
    """Where no difference from the fastest is shown: Welch's test, corrected for looks and for its rivals.

    The fastest was picked for being ahead of all, so each comparison has its share of the error (Bonferroni):
    at that confidence the truly fastest is among those not told apart (after Gupta, Technometrics 1965).
    False too where there are too few runs to say anything.
    """
    enough = (rates.num >= MIN_RUNS_TO_COMPARE) & (fastest.num >= MIN_RUNS_TO_COMPARE)
    num_others = max(1, int(enough.sum()) - 1)  # the fastest is among them
    found = ratios_of(rates, fastest, 1 - look_level(record, 1 - 0.05 / num_others))
    return np.asarray(enough & ~((found.low > 1) | (found.high < 1)))


def look_level(record: Record, confidence: float = 0.95) -> float:
    """The error rate of one interval, corrected for having looked after each run."""
    looks = looks_of(record)
    return 1 - confidence if looks is None else level_per_look(*looks, confidence)


def looks_of(record: Record) -> tuple[int, int] | None:
    """After which runs a trial looked at its interval, first and last; None where it never did."""
    least, most = (number_or_nan(record.protocol.get(name)) for name in ("min_runs", "max_runs"))
    if math.isnan(least) or math.isnan(most) or not 1 <= least < most:
        return None
    return int(least), int(most)


def ratio_between(group: Group, above: int, below: int) -> Estimate:
    """The throughput of one trial over that of another: of the figures shown, with Welch's interval."""
    level = look_level(group.records[above])
    found = ratios_of(group.rates[np.array([above])], group.rates[np.array([below])], 1 - level)
    value = float(group.rate[above] / group.rate[below])
    num = int(min(group.rates.num[above], group.rates.num[below]))
    method = "ratio of medians, Welch t on logarithms"
    if math.isnan(found.low[0]):
        return Estimate(value, None, None, 0.95, method, num, "too few runs")
    low, high = min(float(found.low[0]), value), max(float(found.high[0]), value)
    return Estimate(value, low, high, 0.95, method, num)


def ends(estimate: Estimate) -> tuple[float, float | None, float | None]:
    """The number and the ends of its interval, as the words of `words` take them."""
    return estimate.value, estimate.low, estimate.high


def is_shown(ratio: Estimate) -> bool:
    """True when the interval of a ratio leaves out 1."""
    return ratio.low is not None and ratio.high is not None and (ratio.low > 1 or ratio.high < 1)


def efficiencies_of(group: Group, over: Sequence[str] = WIDTHS) -> Efficiencies:
    """Each trial's e = p_w / (w / b · p_b), b being the least width measured with all else equal.

    The width is the product of the parameters named in `over`.
    """
    widths = np.prod([group.numbers(name) for name in over], axis=0)
    kinds = group.kinds(without=over)
    first = group.numbers(over[0])
    level = look_level(group.records[0]) if group.records else 0.05
    return efficiencies(kinds, widths, first, group.rate, group.rates, 1 - level)


def efficiencies(
    kinds: Places,
    widths: Values,
    first: Values,
    rate: Values,
    rates: LogMoments,
    confidence: float = 0.95,
) -> Efficiencies:
    """The efficiencies within each kind; of several trials of least width that with least `first` is base."""
    base = _bases(kinds, widths, first, rate)
    value, low, high = (np.full(widths.size, np.nan) for _ in range(3))
    places = np.flatnonzero((base >= 0) & ~np.isnan(rate))
    bases = base[places]
    scale = widths[bases] / widths[places]
    found = ratios_of(rates[places], rates[bases], confidence)
    value[places] = rate[places] / rate[bases] * scale  # of the very figures shown beside it
    low[places], high[places] = (
        np.fmin(found.low * scale, value[places]),
        np.fmax(found.high * scale, value[places]),
    )
    low[places[np.isnan(found.low)]] = high[places[np.isnan(found.high)]] = np.nan
    itself = places[places == bases]
    value[itself] = low[itself] = high[itself] = 1.0
    return Efficiencies(value, low, high, base, widths)


def _bases(kinds: Places, widths: Values, first: Values, rate: Values) -> Places:
    """The base of each trial; -1 where widths do not vary, and for twins of the base."""
    found = np.full(widths.size, -1, dtype=np.int64)
    known = np.flatnonzero((widths > 0) & ~np.isnan(rate))
    if known.size == 0:
        return found
    in_order = known[np.lexsort((known, first[known], widths[known], kinds[known]))]
    starts = np.concatenate(([True], np.diff(kinds[in_order]) != 0))
    base = np.full(int(kinds.max()) + 1, -1, dtype=np.int64)
    base[kinds[in_order[starts]]] = in_order[starts]
    own = base[kinds[known]]
    wider = widths[known] != widths[own]
    varies = np.zeros(base.size, dtype=bool)
    varies[kinds[known[wider]]] = True
    keep = varies[kinds[known]] & (wider | (known == own))
    found[known[keep]] = own[keep]
    return found


def efficiencies_of_records(records: Sequence[Record]) -> dict[str, Estimate]:
    """Trial id -> efficiency, of records that are not in a group."""
    columns = columns_of([record.params for record in records])
    kinds = combined([coded(v).codes for name, v in columns.items() if name not in WIDTHS], len(records))
    units = [_units(columns.get(name), len(records)) for name in WIDTHS]
    values = [run_rates(record) for record in records]
    rate = np.array([float(np.median(each)) if each else math.nan for each in values])
    found = efficiencies(kinds, units[0] * units[1], units[0], rate, log_moments(values))
    made: dict[str, Estimate] = {}
    for i, record in enumerate(records):
        if not math.isnan(found.value[i]):
            bounds = [None if math.isnan(x) else float(x) for x in (found.low[i], found.high[i])]
            method = "the base itself" if found.base[i] == i else "ratio of medians, Welch t on logarithms"
            made[record.trial_id] = Estimate(
                float(found.value[i]), bounds[0], bounds[1], 0.95, method, len(values[i])
            )
    return made


def _units(column: Sequence[Any] | None, num: int) -> Values:
    return np.array([1.0 if value is None else number_or_nan(value) for value in column or [None] * num])
