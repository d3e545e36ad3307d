"""Records sorted into groups whose figures may be compared: one study, workload and mode each."""

import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from corewise.report.columns import (
    Coded,
    Places,
    Points,
    coded,
    columns_of,
    combined,
    hashable,
    keys_of,
    number_columns,
    number_or_nan,
    run_rates,
)
from corewise.report.machines import machine_key, machine_labels
from corewise.report.tunings import Tuning
from corewise.report.words import short
from corewise.report.workload_names import distinct_names
from corewise.spec.record import Record
from corewise.stats.many import LogMoments, log_moments
from corewise.stats.values import Values
from corewise.store.packed import PackedRuns

WIDTHS = ("processes", "threads")
GROUPED_BY = ("workload", "mode")
# What no study varies and figures hang on all the same: told where it differs within a group.
APART = ("machine", "store", "version", "allocation", "protocol", "variant")

WholeOf = Callable[[Collection[str]], Sequence[Record]]  # trial ids -> their records, samples and all


def none_whole(trial_ids: Collection[str]) -> Sequence[Record]:
    """No records at all, for those that came without a store."""
    return ()


@dataclass(frozen=True, kw_only=True)
class Source:
    """One store that was read: its records, shortened or not, and a way to a few of them in full."""

    label: str  # the store as it was given
    records: Sequence[Record]
    name: str = ""  # a shorter one, different for each
    whole_of: WholeOf = none_whole
    tunings: Sequence[Tuning] = ()  # what was tuned with it
    num_unfinished: int = 0  # trials that were begun and have no record yet


@dataclass(frozen=True, kw_only=True)
class Group:
    """The trials of one study, workload and mode; all sequences and arrays have one entry per ok trial."""

    study: str
    question: str
    workload: str
    workload_name: str  # a shorter one, different for each workload of the report
    mode: str
    records: Sequence[Record]  # ok
    sources: Sequence[Source]
    columns: Mapping[str, Coded]  # what varies
    constant: Mapping[str, Any]
    unmeasured: Sequence[tuple[Record, Mapping[str, Any]]]  # failed and skipped, with what sets each apart

    @property
    def varying(self) -> tuple[str, ...]:
        """The names of all that varies."""
        return tuple(self.columns)

    @property
    def axes(self) -> list[str]:
        """What the study itself varies."""
        return [name for name in self.columns if name not in APART]

    @cached_property
    def points(self) -> Points:
        """What varies of each trial."""
        return Points(self.columns, len(self.records))

    @cached_property
    def confidence(self) -> float:
        """Of the intervals."""
        found = (number_or_nan(record.protocol.get("confidence")) for record in self.records)
        return next((c for c in found if 0 < c < 1), 0.95)

    @cached_property
    def rates(self) -> LogMoments:
        """The moments of the throughputs of each trial's runs."""
        return log_moments([run_rates(record) for record in self.records])

    @cached_property
    def _interval(self) -> tuple[Values, Values, Values]:
        """Throughput and its interval; one made from that of the step where only this is recorded."""
        rate, low, high = (self.metric(f"samples_per_s{end}") for end in ("", "_low", "_high"))
        for i in np.flatnonzero(np.isnan(rate) & (self.rates.num > 0)).tolist():
            rate[i] = statistics.median(run_rates(self.records[i]))
        step, step_low, step_high = (self.metric(f"step_s{end}") for end in ("", "_low", "_high"))
        made = np.isnan(low) & (step_low > 0) & (step_high > 0)
        low[made], high[made] = (rate * step / step_high)[made], (rate * step / step_low)[made]
        for values in (low, high, rate):
            values[~(rate > 0)] = np.nan
        return rate, low, high

    @property
    def rate(self) -> Values:
        """Samples/s of each trial; NaN where there is none."""
        return self._interval[0]

    @property
    def low(self) -> Values:
        """The lower end of its interval."""
        return self._interval[1]

    @property
    def high(self) -> Values:
        """The upper end of its interval."""
        return self._interval[2]

    @cached_property
    def is_disturbed(self) -> "np.ndarray[Any, np.dtype[np.bool_]]":
        """Where a run that counts was disturbed."""
        return np.array([_is_disturbed(record) for record in self.records], dtype=bool)

    @cached_property
    def place(self) -> Mapping[tuple[int, ...], int]:
        """Codes of all that varies -> the trial that has them."""
        keys = zip(*(column.codes.tolist() for column in self.columns.values()), strict=True)
        return {key: i for i, key in enumerate(keys)} if self.columns else {(): 0}

    def key(self, point: Mapping[str, Any]) -> tuple[int, ...]:
        """The codes of a point; -1 where a value does not occur."""
        return tuple(column.code(point.get(name)) for name, column in self.columns.items())

    def values(self, name: str) -> list[Any]:
        """The different values of a parameter, in their order."""
        return list(self.columns[name].values)

    def is_number(self, name: str) -> bool:
        """True when every value of a varying parameter is a number."""
        return self.columns[name].is_number

    def along(self, i: int, name: str) -> list[int]:
        """The trials that differ from one in nothing but this parameter, itself among them, in order."""
        if name not in self.columns:
            return [i]
        key, at = list(self.key(self.points[i])), self.varying.index(name)
        found = []
        for code in range(len(self.columns[name].values)):
            key[at] = code
            if tuple(key) in self.place:
                found.append(self.place[tuple(key)])
        return found

    def numbers(self, name: str, default: float = 1.0) -> Values:
        """A parameter of each trial as a number, the default where it is not given, NaN where it is none."""
        if name in self.columns:
            values = [default if v is None else number_or_nan(v) for v in self.columns[name].values]
            return np.array(values)[self.columns[name].codes]
        value = self.constant.get(name)
        return np.full(len(self.records), default if value is None else number_or_nan(value))

    def kinds(self, without: Sequence[str] = ()) -> Places:
        """A number for each trial, equal where all that varies but these is equal."""
        return self.together([name for name in self.columns if name not in without])

    def together(self, names: Sequence[str]) -> Places:
        """A number for each trial, equal where these parameters are equal."""
        return combined([self.columns[name].codes for name in names], len(self.records))

    @cached_property
    def _metrics(self) -> Mapping[str, Values]:
        return number_columns([record.metrics for record in self.records])

    def metric(self, name: str) -> Values:
        """A metric of every trial, NaN where it is missing; a new array each time."""
        if name not in self._metrics:
            return np.full(len(self.records), np.nan)
        return self._metrics[name].copy()


def groups_of(sources: Sequence[Source], studies: Collection[str] | None = None) -> list[Group]:
    """One group for each study, workload and mode, the studies in the order their first trials finished."""
    found: dict[tuple[str, ...], list[tuple[Record, Source]]] = {}
    for source in sources:
        for record in source.records:
            if studies is None or record.study in studies:
                key = (record.study, *(str(record.params.get(name, "")) for name in GROUPED_BY))
                found.setdefault(key, []).append((record, source))
    order_of_studies = dict.fromkeys(study for study, *_ in found)
    names = distinct_names({workload for _, workload, _ in found})
    return [_group(key, found[key], names) for study in order_of_studies for key in found if key[0] == study]


def _group(key: tuple[str, ...], members: Sequence[tuple[Record, Source]], names: Mapping[str, str]) -> Group:
    study, workload, mode = key
    told = _told_columns(members)
    good = [i for i, (record, _) in enumerate(members) if record.status == "ok"]
    others = [i for i, (record, _) in enumerate(members) if record.status != "ok"]
    chosen = good or others
    varying = {name: values for name, values in told.items() if _differ([values[i] for i in chosen])}
    columns = {name: coded([values[i] for i in good]) for name, values in varying.items()}
    twins = _twins(columns, len(good))
    if twins is not None:
        columns["variant"] = twins
    apart = [name for name, values in told.items() if name in varying or _differ(values)]
    return Group(
        study=study,
        question=next((record.question for record, _ in members if record.question), ""),
        workload=workload,
        workload_name=names[workload],
        mode=mode,
        records=[members[i][0] for i in good],
        sources=[members[i][1] for i in good],
        columns=columns,
        constant={name: values[chosen[0]] for name, values in told.items() if name not in varying},
        unmeasured=[
            (members[i][0], {n: told[n][i] for n in apart if n in members[i][0].params or n in APART})
            for i in others
        ],
    )


def _told_columns(members: Sequence[tuple[Record, Source]]) -> dict[str, Sequence[Any]]:
    """The parameters of records and, where they differ among them, what else their figures hang on."""
    records = [record for record, _ in members]
    told = columns_of([record.params for record in records])
    for name in GROUPED_BY:
        told.pop(name, None)
    labels = machine_labels(records)
    machines = [machine_key(record) for record in records]
    cores = [hashable(record.machine.get("allocation_cores")) for record in records]
    versions = [framework_version(record) for record in records]
    if len(labels) > 1:
        told["machine"] = [labels[machine] for machine in machines]
    if len({record.trial_id for record in records}) < len(records):
        told["store"] = [source.name or source.label for _, source in members]
    if len(set(zip(machines, cores, strict=True))) > len(labels):
        told["allocation"] = cores
    runtimes = [hashable(record.params.get("runtime")) for record in records]
    if len(set(zip(runtimes, versions, strict=True))) > len(set(runtimes)):  # two of one framework
        told["version"] = versions
    protocols = _protocols(records)
    if protocols is not None:
        told["protocol"] = protocols
    return told


def _protocols(records: Sequence[Record]) -> list[str] | None:
    """What of the protocol differs, in words, for each record; None where nothing does."""
    different = {id(record.protocol): record.protocol for record in records}
    columns = columns_of(list(different.values()))
    names = [name for name, values in columns.items() if _differ(values)]
    if not names:
        return None
    words = {
        key: " ".join(f"{name}={protocol.get(name)}" for name in names) for key, protocol in different.items()
    }
    return [words[id(record.protocol)] for record in records]


def _differ(values: Sequence[Any]) -> bool:
    return len(set(keys_of(values))) > 1


def _twins(columns: Mapping[str, Coded], num: int) -> Coded | None:
    """A number for trials alike in all that is told, of another source or environment; None if none are."""
    numbers = combined([column.codes for column in columns.values()], num)
    if num == 0 or np.unique(numbers).size == num:
        return None
    seen: dict[int, int] = {}
    variants = []
    for number in numbers.tolist():
        seen[number] = seen.get(number, 0) + 1
        variants.append(seen[number])
    return coded(variants)


def _is_disturbed(record: Record) -> bool:
    runs = record.runs
    return bool(runs.disturbances) if isinstance(runs, PackedRuns) else record.is_disturbed


def framework_version(record: Record) -> str | None:
    """The version of the framework that computed."""
    return record.versions.get(str(record.params.get("runtime")))


def store_labels(paths: Iterable[str]) -> list[str]:
    """A short name for each store: its folder's, with as much before it as tells them apart."""
    parts = [path.rstrip("/").split("/") for path in paths]
    deepest = max((len(each) for each in parts), default=1)
    for depth in range(1, deepest + 1):
        labels = [short("/".join(each[-depth:])) for each in parts]
        if len(set(labels)) == len(labels):
            return labels
    return [f"{short('/'.join(each))} ({i})" for i, each in enumerate(parts, 1)]
