"""Result tables of `corewise show`: the ranked trials of one study, workload and mode."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from corewise.analysis.columns import get_order_key
from corewise.analysis.counter_columns import select_counters
from corewise.analysis.efficiency import Efficiencies, compute_efficiencies
from corewise.analysis.groups import FullRecordReader, Group, RecordSource, group_records, read_no_records
from corewise.analysis.ranking import TrialRanking, rank_trials
from corewise.analysis.scaling.scaling_summary import ScalingSummary, summarize_scaling
from corewise.analysis.tuning_commands import is_tuning
from corewise.errors import UserError, suggest_nearest
from corewise.measured.probes.counter_names import NO_COUNTS
from corewise.study.axes import AXES
from corewise.study.record import Record

NUM_ROWS_OF_MANY = 100
# Readers need these parameters even if they have their default values.
ALWAYS_SHOWN = ("runtime", "device", "processes", "threads", "batch", "dtype")
_FASTEST = "samples_per_s"
_FASTER_FIRST = (*(_FASTEST, "gflop_per_s", "gbyte_per_s", "best_gbyte_per_s"), *("efficiency", "fraction_of_ceiling"))


@dataclass(frozen=True)
class ResultRow:
    """One measured trial.

    Attributes:
        params: the parameters that vary in the table.
        spread: half the interval over the value.
        num_set_aside: disturbed runs that were repeated.
        is_disturbed: a run that counts was disturbed.
        efficiency: against the narrowest trial that is otherwise equal; None if widths do not vary.
        gbyte_per_s: only for kernels.
        latency_s, bus_gbyte_per_s: only for messages among ranks.
        counters: instructions, IPC and cache misses, by metric; the name begins with the source.
        fraction_of_ceiling: None if the ceilings of the machine were not measured.
        ceilings_are_busy: the ceilings were measured on a busy machine and are too low.
        may_equal_best: no significant difference from the best.
        ranked_within: the row is ranked against rows that share these values.
    """

    trial_id: str
    params: Mapping[str, Any]
    samples_per_s: float | None
    samples_per_s_low: float | None
    samples_per_s_high: float | None
    step_s: float | None
    spread: float | None
    latency_p99_s: float | None
    peak_memory_bytes: float | None
    num_runs: int
    num_set_aside: int
    is_disturbed: bool
    efficiency: float | None
    gflop_per_s: float | None
    gbyte_per_s: float | None
    latency_s: float | None
    bus_gbyte_per_s: float | None
    fraction_of_ceiling: float | None
    counters: Mapping[str, float]
    ceilings_are_busy: bool
    is_best: bool
    may_equal_best: bool
    ranked_within: Mapping[str, Any]


@dataclass(frozen=True)
class UnmeasuredTrials:
    """Failed or skipped trials that share one reason.

    Attributes:
        points: trial id and distinguishing parameters of each trial.
    """

    status: str
    reason: str
    points: tuple[tuple[str, Mapping[str, Any]], ...]


@dataclass(frozen=True)
class ResultTable:
    """The trials of one study, workload and mode.

    Attributes:
        num_left_out: rows cut from a very long table, by default the slowest.
        scaling: curves over nodes or processes of training.
        missing_counts: why trials lack the counts that the study asks for.
    """

    study: str
    question: str
    workload: str
    mode: str
    constant: Mapping[str, Any]
    varying: tuple[str, ...]
    confidence: float | None
    rows: tuple[ResultRow, ...]
    unmeasured: tuple[UnmeasuredTrials, ...]
    num_left_out: int = 0
    scaling: tuple[ScalingSummary, ...] = ()
    missing_counts: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Convert the table to plain JSON values."""
        return asdict(self)

    def get_notable_constants(self) -> dict[str, Any]:
        """Return the constants that a reader has to know: those that differ from their default."""
        return {n: v for n, v in self.constant.items() if n in ALWAYS_SHOWN or not _is_default(n, v)}


def filter_records(
    records: Sequence[Record], study: str | None, workload: str | None, status: str | None
) -> list[Record]:
    """Return the records that match every filter; raises UserError for a value that no record has."""
    selected = list(records)
    for what, wanted, values in (
        ("study", study, [r.study for r in records]),
        ("workload", workload, [str(r.params.get("workload", "")) for r in records]),
        ("status", status, [r.status for r in records]),
    ):
        if wanted is None:
            continue
        known = {"ok", "failed", "skipped"} if what == "status" else set(values)
        if wanted not in known:
            raise UserError(f"no {what} {wanted!r} in this store: {suggest_nearest(wanted, known)}")
        keep = {id(r) for r, value in zip(records, values, strict=True) if value == wanted}
        selected = [r for r in selected if id(r) in keep]
    return selected


def build_result_tables(
    records: Sequence[Record],
    sort: str | None = None,
    max_rows: int | None = None,
    read_full_records: FullRecordReader = read_no_records,
) -> list[ResultTable]:
    """Build one table for each group, in the order in which their first trials finished.

    A table with more rows than `max_rows` is cut to its first NUM_ROWS_OF_MANY, by default the fastest.
    `read_full_records` reads the ranks of a few trials, which brief records lack.
    """
    if sort is not None:
        _check_sort(sort, records)
    groups = group_records([RecordSource(label="", records=records, read_full_records=read_full_records)])
    return [_build_table(group, sort, max_rows) for group in groups]


def _build_table(group: Group, sort: str | None, max_rows: int | None) -> ResultTable:
    in_order = list(range(len(group.records)))
    is_cut = max_rows is not None and len(in_order) > max_rows
    if not is_cut:
        in_order.sort(key=lambda i: [int(column.codes[i]) for column in group.columns.values()])
    if sort or is_cut:
        in_order = _sort_trials(group, in_order, sort or _FASTEST)
    ranking, efficiencies = rank_trials(group), compute_efficiencies(group)
    shown = in_order[:NUM_ROWS_OF_MANY] if is_cut else in_order
    rows = [_build_row(group, i, ranking, efficiencies) for i in shown]
    first = group.records[0] if group.records else group.unmeasured[0][0]
    constant = {n: v for n, v in group.constant.items() if v is not None or n in first.params}
    stated = (record.protocol["confidence"] for record in group.records if "confidence" in record.protocol)
    return ResultTable(
        study=group.study,
        question=group.question,
        workload=group.workload,
        mode=group.mode,
        constant=_read_values(constant, first),
        varying=tuple("host" if name == "machine" else name for name in group.varying),
        confidence=next(stated, None),
        rows=tuple(rows),
        unmeasured=tuple(_group_by_reason(group)),
        num_left_out=len(group.records) - len(rows),
        # The settings that a tuning tries form no curves.
        scaling=() if is_tuning(group.study, [group]) else summarize_scaling(group),
        missing_counts=tuple(
            dict.fromkeys(note for record in group.records for note in record.notes if note.startswith(NO_COUNTS))
        ),
    )


def _build_row(group: Group, i: int, ranking: TrialRanking, efficiencies: Efficiencies) -> ResultRow:
    record, point = group.records[i], group.points[i]
    get = record.metrics.get
    rate, low, high, efficiency = (
        None if math.isnan(values[i]) else float(values[i])
        for values in (group.rate, group.low, group.high, efficiencies.value)
    )
    return ResultRow(
        trial_id=record.trial_id,
        params=_read_values(point, record),
        samples_per_s=rate,
        samples_per_s_low=low,
        samples_per_s_high=high,
        step_s=get("step_s"),
        spread=(high - low) / 2 / rate if rate and low is not None and high is not None else None,
        latency_p99_s=get("latency_p99_s"),
        peak_memory_bytes=get("peak_memory_bytes"),
        num_runs=sum(run.get("status") == "ok" for run in record.runs),
        num_set_aside=len(record.disturbed),
        is_disturbed=bool(group.is_disturbed[i]),
        efficiency=efficiency,
        gflop_per_s=get("gflop_per_s"),
        gbyte_per_s=get("gbyte_per_s"),
        latency_s=get("latency_s"),
        bus_gbyte_per_s=get("bus_gbyte_per_s"),
        fraction_of_ceiling=get("fraction_of_ceiling"),
        counters=select_counters(record.metrics),
        ceilings_are_busy=bool(get("ceilings_busy")),
        is_best=bool(ranking.is_best[i]),
        may_equal_best=bool(ranking.may_equal_best[i]),
        ranked_within={name: point[name] for name in group.task_names},
    )


def _read_values(point: Mapping[str, Any], record: Record) -> dict[str, Any]:
    """Return a point with the values of the record, and the host name instead of the machine label."""
    values = {name: record.params.get(name, value) for name, value in point.items()}
    if "machine" not in values:
        return values
    host = record.machine.get("hostname")
    return {("host" if n == "machine" else n): (host if n == "machine" else v) for n, v in values.items()}


def _sort_trials(group: Group, places: Sequence[int], name: str) -> list[int]:
    """Sort trials by a parameter or metric; equal ones keep their order."""
    sign = -1 if name in _FASTER_FIRST else 1

    def get_key(i: int) -> tuple[int, Any]:
        record = group.records[i]
        value = record.params.get(name, record.metrics.get(name))
        if name == "finished_at":
            value = record.finished_at
        return get_order_key(sign * value if isinstance(value, (int, float)) else value)

    return sorted(places, key=get_key)


def _check_sort(sort: str, records: Iterable[Record]) -> None:
    known = {"finished_at"}
    for record in records:
        known.update(record.params, record.metrics)
    if sort not in known:
        raise UserError(f"cannot sort by {sort!r}: {suggest_nearest(sort, known)}")


def _group_by_reason(group: Group) -> Iterable[UnmeasuredTrials]:
    """Group failed and skipped trials by reason."""
    for status in ("failed", "skipped"):
        reasons: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
        for record, point in group.unmeasured:
            if record.status == status:
                reason = record.reason or "no reason was recorded"
                reasons.setdefault(reason, []).append((record.trial_id, _read_values(point, record)))
        for reason, points in reasons.items():
            yield UnmeasuredTrials(status, reason, tuple(points))


def _is_default(name: str, value: Any) -> bool:
    return name in AXES and AXES[name].default == value
