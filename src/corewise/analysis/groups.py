"""Records in groups whose figures may be compared: one study, workload and mode each."""

import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from corewise.analysis.columns import (
    EncodedColumn,
    Places,
    Points,
    build_columns,
    build_number_columns,
    combine_codes,
    encode_column,
    get_run_rates,
    make_hashable,
    make_keys,
    parse_number,
)
from corewise.analysis.machines import get_machine_key, label_machines
from corewise.analysis.tuning_results import StoredTuning
from corewise.analysis.workload_names import shorten_workload_names
from corewise.stats.batch_ratios import LogMoments, compute_log_moments
from corewise.stats.values import Values
from corewise.store.compact_values import PackedRuns
from corewise.study.axes import AXES
from corewise.study.record import Record
from corewise.text_format import shorten

WIDTHS = ("processes", "threads")
GROUPED_BY = ("workload", "mode")
# Conditions that no study varies but that change the figures. They become columns if they differ in a group.
CONDITION_COLUMNS = ("machine", "store", "version", "allocation", "protocol", "variant")

# Reads the full records of some trials, by their ids.
FullRecordReader = Callable[[Collection[str]], Sequence[Record]]


def read_no_records(trial_ids: Collection[str]) -> Sequence[Record]:
    """Return no records: the reader of a source without a store."""
    return ()


@dataclass(frozen=True, kw_only=True)
class RecordSource:
    """The records of one store, full or brief, and a function that reads some of them in full.

    Attributes:
        label: the store as the user named it.
        name: a shorter, unique name.
        tunings: the answers of tunings that used the store.
        num_unfinished: started trials that have no record yet.
    """

    label: str
    records: Sequence[Record]
    name: str = ""
    read_full_records: FullRecordReader = read_no_records
    tunings: Sequence[StoredTuning] = ()
    num_unfinished: int = 0


@dataclass(frozen=True, kw_only=True)
class Group:
    """The trials of one study, workload and mode; sequences and arrays have one entry per ok trial.

    Attributes:
        workload_name: a shorter name, unique within the report.
        columns: parameters and conditions that vary.
        constant: parameters that all trials share.
        unmeasured: failed and skipped trials, each with the parameters that distinguish it.
    """

    study: str
    question: str
    workload: str
    workload_name: str
    mode: str
    records: Sequence[Record]
    sources: Sequence[RecordSource]
    columns: Mapping[str, EncodedColumn]
    constant: Mapping[str, Any]
    unmeasured: Sequence[tuple[Record, Mapping[str, Any]]]

    @property
    def varying(self) -> tuple[str, ...]:
        """The names of all varying parameters and conditions."""
        return tuple(self.columns)

    @property
    def axes(self) -> list[str]:
        """The parameters that the study itself varies."""
        return [name for name in self.columns if name not in CONDITION_COLUMNS]

    @property
    def task_names(self) -> list[str]:
        """The parameters that define a task; only trials that share them are ranked together."""
        return [name for name in self.columns if name.startswith("args.") or name in CONDITION_COLUMNS]

    @cached_property
    def points(self) -> Points:
        """The varying parameters of each trial."""
        return Points(self.columns, len(self.records))

    @cached_property
    def confidence(self) -> float:
        """The confidence level of the intervals."""
        levels = (parse_number(record.protocol.get("confidence")) for record in self.records)
        return next((level for level in levels if 0 < level < 1), 0.95)

    @cached_property
    def rates(self) -> LogMoments:
        """Moments of the log throughputs of each trial's runs."""
        return compute_log_moments([get_run_rates(record) for record in self.records])

    @cached_property
    def _interval(self) -> tuple[Values, Values, Values]:
        """Throughput and its interval, derived from the interval of the step if none is recorded."""
        rate, low, high = (self.get_metric(f"samples_per_s{end}") for end in ("", "_low", "_high"))
        for i in np.flatnonzero(np.isnan(rate) & (self.rates.num > 0)).tolist():
            rate[i] = statistics.median(get_run_rates(self.records[i]))
        step, step_low, step_high = (self.get_metric(f"step_s{end}") for end in ("", "_low", "_high"))
        derived = np.isnan(low) & (step_low > 0) & (step_high > 0)
        low[derived], high[derived] = (rate * step / step_high)[derived], (rate * step / step_low)[derived]
        for values in (low, high, rate):
            values[~(rate > 0)] = np.nan
        return rate, low, high

    @property
    def rate(self) -> Values:
        """Samples/s of each trial; NaN if it is unknown."""
        return self._interval[0]

    @property
    def low(self) -> Values:
        """The lower end of the interval of `rate`."""
        return self._interval[1]

    @property
    def high(self) -> Values:
        """The upper end of the interval of `rate`."""
        return self._interval[2]

    @cached_property
    def is_disturbed(self) -> "np.ndarray[Any, np.dtype[np.bool_]]":
        """True for trials with a disturbed run among those that count."""
        return np.array([_is_disturbed(record) for record in self.records], dtype=bool)

    @cached_property
    def trial_by_codes(self) -> Mapping[tuple[int, ...], int]:
        """The trial that has these codes of all varying parameters."""
        keys = zip(*(column.codes.tolist() for column in self.columns.values()), strict=True)
        return {key: i for i, key in enumerate(keys)} if self.columns else {(): 0}

    def encode_point(self, point: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the codes of a point; -1 for values that do not occur."""
        return tuple(column.find_code(point.get(name)) for name, column in self.columns.items())

    def list_values(self, name: str) -> list[Any]:
        """Return the distinct values of a parameter in order."""
        return list(self.columns[name].values)

    def is_number(self, name: str) -> bool:
        """Return True if every value of a varying parameter is a number."""
        return self.columns[name].is_number

    def find_trials_along(self, i: int, name: str) -> list[int]:
        """Return the trials that differ only in this parameter, including the given one, in order."""
        if name not in self.columns:
            return [i]
        key, at = list(self.encode_point(self.points[i])), self.varying.index(name)
        trials = []
        for code in range(len(self.columns[name].values)):
            key[at] = code
            if tuple(key) in self.trial_by_codes:
                trials.append(self.trial_by_codes[tuple(key)])
        return trials

    def get_numbers(self, name: str, default: float = 1.0) -> Values:
        """Return a parameter of each trial: the default if it is missing, NaN if it is not a number."""
        if name in self.columns:
            values = [default if v is None else parse_number(v) for v in self.columns[name].values]
            return np.array(values)[self.columns[name].codes]
        value = self.constant.get(name)
        return np.full(len(self.records), default if value is None else parse_number(value))

    def index_without(self, names: Sequence[str] = ()) -> Places:
        """Number the trials so that those that differ only in these parameters have the same number."""
        return self.index_by([name for name in self.columns if name not in names])

    def index_by(self, names: Sequence[str]) -> Places:
        """Number the trials so that those with equal values of these parameters have the same number."""
        return combine_codes([self.columns[name].codes for name in names], len(self.records))

    @cached_property
    def _metrics(self) -> Mapping[str, Values]:
        return build_number_columns([record.metrics for record in self.records])

    def get_metric(self, name: str) -> Values:
        """Return a metric of every trial as a new array, NaN if it is missing."""
        if name not in self._metrics:
            return np.full(len(self.records), np.nan)
        return self._metrics[name].copy()


def group_records(sources: Sequence[RecordSource], studies: Collection[str] | None = None) -> list[Group]:
    """Build one group for each study, workload and mode, in the order in which first trials finished."""
    members: dict[tuple[str, ...], list[tuple[Record, RecordSource]]] = {}
    for source in sources:
        for record in source.records:
            if studies is None or record.study in studies:
                key = (record.study, *(str(record.params.get(name, "")) for name in GROUPED_BY))
                members.setdefault(key, []).append((record, source))
    studies_in_order = dict.fromkeys(study for study, *_ in members)
    names = shorten_workload_names({workload for _, workload, _ in members})
    keys = [key for study in studies_in_order for key in members if key[0] == study]
    return [_build_group(key, members[key], names) for key in keys]


def _build_group(
    key: tuple[str, ...], members: Sequence[tuple[Record, RecordSource]], names: Mapping[str, str]
) -> Group:
    study, workload, mode = key
    every = _build_all_columns(members)
    good = [i for i, (record, _) in enumerate(members) if record.status == "ok"]
    others = [i for i, (record, _) in enumerate(members) if record.status != "ok"]
    chosen = good or others
    varying = {name: values for name, values in every.items() if _has_differences([values[i] for i in chosen])}
    columns = {name: encode_column([values[i] for i in good]) for name, values in varying.items()}
    variants = _index_variants(columns, len(good))
    if variants is not None:
        columns["variant"] = variants
    distinguishing = [name for name, values in every.items() if name in varying or _has_differences(values)]
    return Group(
        study=study,
        question=next((record.question for record, _ in members if record.question), ""),
        workload=workload,
        workload_name=names[workload],
        mode=mode,
        records=[members[i][0] for i in good],
        sources=[members[i][1] for i in good],
        columns=columns,
        constant={name: values[chosen[0]] for name, values in every.items() if name not in varying},
        unmeasured=[
            (
                members[i][0],
                {n: every[n][i] for n in distinguishing if n in members[i][0].params or n in CONDITION_COLUMNS},
            )
            for i in others
        ],
    )


def _build_all_columns(members: Sequence[tuple[Record, RecordSource]]) -> dict[str, Sequence[Any]]:
    """Build the columns of parameters and of those conditions that differ."""
    records = [record for record, _ in members]
    columns = {n: _fill_added_axis(n, v) for n, v in build_columns([record.params for record in records]).items()}
    for name in GROUPED_BY:
        columns.pop(name, None)
    labels = label_machines(records)
    machines = [get_machine_key(record.machine) for record in records]
    cores = [make_hashable(record.machine.get("allocation_cores")) for record in records]
    versions = [get_framework_version(record) for record in records]
    if len(labels) > 1:
        columns["machine"] = [labels[machine] for machine in machines]
    if len({record.trial_id for record in records}) < len(records):
        columns["store"] = [source.name or source.label for _, source in members]
    if len(set(zip(machines, cores, strict=True))) > len(labels):
        columns["allocation"] = cores
    runtimes = [make_hashable(record.params.get("runtime")) for record in records]
    if len(set(zip(runtimes, versions, strict=True))) > len(set(runtimes)):
        columns["version"] = versions
    protocols = _describe_protocols(records)
    if protocols is not None:
        columns["protocol"] = protocols
    return columns


def _fill_added_axis(name: str, values: Sequence[Any]) -> Sequence[Any]:
    """Replace missing values of an axis by its default, which all records had from before the axis existed."""
    default = AXES[name].default if name in AXES else None
    if not isinstance(default, str | int | bool) or None not in values:
        return values
    return [default if value is None else value for value in values]


def _describe_protocols(records: Sequence[Record]) -> list[str] | None:
    """Describe for each record the protocol options that differ; None if none differ.

    Records of points that were not feasible hold no protocol, so they say nothing about it.
    """
    protocols = {id(record.protocol): record.protocol for record in records if record.protocol}
    columns = build_columns(list(protocols.values()))
    names = [name for name, values in columns.items() if _has_differences(values)]
    if not names:
        return None
    descriptions = {
        key: " ".join(f"{name}={protocol.get(name)}" for name in names) for key, protocol in protocols.items()
    }
    return [descriptions.get(id(record.protocol), "") for record in records]


def _has_differences(values: Sequence[Any]) -> bool:
    return len(set(make_keys(values))) > 1


def _index_variants(columns: Mapping[str, EncodedColumn], num: int) -> EncodedColumn | None:
    """Number trials that are equal in all columns, from 1 for each set; None if all trials differ."""
    numbers = combine_codes([column.codes for column in columns.values()], num)
    if num == 0 or np.unique(numbers).size == num:
        return None
    seen: dict[int, int] = {}
    variants = []
    for number in numbers.tolist():
        seen[number] = seen.get(number, 0) + 1
        variants.append(seen[number])
    return encode_column(variants)


def _is_disturbed(record: Record) -> bool:
    runs = record.runs
    return bool(runs.disturbances) if isinstance(runs, PackedRuns) else record.is_disturbed


def get_framework_version(record: Record) -> str | None:
    """Return the version of the framework that ran the trial."""
    return record.versions.get(str(record.params.get("runtime")))


def label_stores(paths: Iterable[str]) -> list[str]:
    """Return a short name for each store: its folder, with as many parents as make it unique."""
    parts = [path.rstrip("/").split("/") for path in paths]
    deepest = max((len(each) for each in parts), default=1)
    for depth in range(1, deepest + 1):
        labels = [shorten("/".join(each[-depth:])) for each in parts]
        if len(set(labels)) == len(labels):
            return labels
    return [f"{shorten('/'.join(each))} ({i})" for i, each in enumerate(parts, 1)]
