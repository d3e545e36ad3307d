"""Records as result tables: first computed as values, then drawn for a terminal."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from corewise.cli.efficiency import efficiencies
from corewise.spec.axes import AXES
from corewise.spec.errors import UserError, nearest
from corewise.spec.record import Record
from corewise.stats.compare import compare
from corewise.stats.estimate import Estimate

MIN_RUNS_TO_COMPARE = 2
NUM_ROWS_OF_MANY = 100
_GROUPED_BY = ("workload", "mode")
# Worth saying even when they have their usual value.
_ALWAYS_TOLD = ("runtime", "device", "processes", "threads", "batch", "dtype")
_FASTEST = "samples_per_s"
_FASTER_FIRST = (
    *(_FASTEST, "gflop_per_s", "gbyte_per_s", "best_gbyte_per_s"),
    *("efficiency", "fraction_of_ceiling"),
)


@dataclass(frozen=True)
class Row:
    """One trial that gave a number."""

    trial_id: str
    params: Mapping[str, Any]  # those that vary in its table
    samples_per_s: float | None
    samples_per_s_low: float | None
    samples_per_s_high: float | None
    step_s: float | None
    spread: float | None  # half the interval over the value
    latency_p99_s: float | None
    peak_memory_bytes: float | None
    num_runs: int
    num_set_aside: int  # disturbed runs that were repeated
    is_disturbed: bool  # a run that counts was disturbed
    efficiency: float | None = None  # against the narrowest trial of its kind; None where widths do not vary
    gflop_per_s: float | None = None
    gbyte_per_s: float | None = None  # of kernels
    fraction_of_ceiling: float | None = None  # None where the machine's ceilings were not measured
    ceilings_are_busy: bool = False  # measured on a busy machine, so too low
    is_best: bool = False
    may_equal_best: bool = False  # no difference from the best one is shown


@dataclass(frozen=True)
class Unmeasured:
    """Trials that gave no number, all for one reason."""

    status: str
    reason: str
    points: tuple[tuple[str, Mapping[str, Any]], ...]  # trial id and what sets it apart


@dataclass(frozen=True)
class ResultTable:
    """The trials of one study, workload and mode."""

    study: str
    question: str
    workload: str
    mode: str
    constant: Mapping[str, Any]
    varying: tuple[str, ...]
    confidence: float | None
    rows: tuple[Row, ...]
    unmeasured: tuple[Unmeasured, ...]
    num_left_out: int = 0  # rows of a very long table, all slower unless another order was asked for

    def to_json(self) -> dict[str, Any]:
        """The table as plain JSON values."""
        return asdict(self)

    def told_constants(self) -> dict[str, Any]:
        """The constants a reader has to know: those that are not as by default."""
        return {n: v for n, v in self.constant.items() if n in _ALWAYS_TOLD or not _is_default(n, v)}


def filtered(
    records: Sequence[Record], study: str | None, workload: str | None, status: str | None
) -> list[Record]:
    """The records that match every filter given; a word that matches none is the user's mistake."""
    found = list(records)
    for what, wanted, values in (
        ("study", study, [r.study for r in records]),
        ("workload", workload, [str(r.params.get("workload", "")) for r in records]),
        ("status", status, [r.status for r in records]),
    ):
        if wanted is None:
            continue
        known = {"ok", "failed", "skipped"} if what == "status" else set(values)
        if wanted not in known:
            raise UserError(f"no {what} {wanted!r} in this store: {nearest(wanted, known)}")
        keep = {id(r) for r, value in zip(records, values, strict=True) if value == wanted}
        found = [r for r in found if id(r) in keep]
    return found


def result_tables(
    records: Iterable[Record], sort: str | None = None, max_rows: int | None = None
) -> list[ResultTable]:
    """One table for each study, workload and mode, in the order their first trials finished.

    A table with more rows than `max_rows` is cut to its first NUM_ROWS_OF_MANY, by default the fastest.
    """
    groups: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        key = (record.study, *(str(record.params.get(name, "")) for name in _GROUPED_BY))
        groups.setdefault(key, []).append(record)
    if sort is not None:
        _check_sort(sort, groups.values())
    studies = dict.fromkeys(study for study, *_ in groups)
    return [
        _table(key, groups[key], sort, max_rows) for study in studies for key in groups if key[0] == study
    ]


def _table(
    key: tuple[str, ...], members: Sequence[Record], sort: str | None, max_rows: int | None
) -> ResultTable:
    study, workload, mode = key
    measured = [r for r in members if r.status == "ok"]
    told = _told_params(members)
    varying = _varying([told[id(r)] for r in measured or members])
    apart = _varying([told[id(r)] for r in members])
    constant = {n: v for n, v in told[id((measured or members)[0])].items() if n not in varying}
    if max_rows is not None and len(measured) > max_rows:
        in_order = _sorted(measured, sort or _FASTEST)
        shown = in_order[:NUM_ROWS_OF_MANY]
    else:
        in_order = sorted(measured, key=lambda r: [_order(told[id(r)].get(n)) for n in varying])
        shown = in_order = _sorted(in_order, sort) if sort else in_order
    per_core = efficiencies(measured, {r.trial_id for r in shown})
    rows = [_row(r, {n: told[id(r)].get(n) for n in varying}, per_core) for r in shown]
    rows = _ranked(rows, shown, in_order, [name for name in varying if name.startswith("args.")])
    return ResultTable(
        study=study,
        question=next((r.question for r in members if r.question), ""),
        workload=workload,
        mode=mode,
        constant=constant,
        varying=tuple(varying),
        confidence=next((r.protocol["confidence"] for r in measured if "confidence" in r.protocol), None),
        rows=tuple(rows),
        unmeasured=tuple(_unmeasured([r for r in members if r.status != "ok"], told, apart)),
        num_left_out=len(measured) - len(rows),
    )


def _told_params(members: Sequence[Record]) -> dict[int, dict[str, Any]]:
    """Each record's parameters and, where they differ among its peers, host, cores and version beside."""
    hosts_differ = _differ(r.machine.get("host_class") for r in members)
    cores_differ = _differ(r.machine.get("allocation_cores") for r in members)
    runtimes = {str(r.params.get("runtime")) for r in members}
    versions_differ = len({(str(r.params.get("runtime")), _version(r)) for r in members}) > len(runtimes)
    rules_differ = _varying([r.protocol for r in members if r.protocol])
    told: dict[int, dict[str, Any]] = {}
    for record in members:
        params = {name: value for name, value in record.params.items() if name not in _GROUPED_BY}
        if hosts_differ:
            params["host"] = record.machine.get("hostname")
        if cores_differ:
            params["allocation"] = record.machine.get("allocation_cores")
        if versions_differ:
            params["version"] = _version(record)
        if rules_differ:
            params["protocol"] = " ".join(f"{name}={record.protocol.get(name)}" for name in rules_differ)
        told[id(record)] = params
    return told


def _version(record: Record) -> str | None:
    return record.versions.get(str(record.params.get("runtime")))


def _row(record: Record, params: Mapping[str, Any], per_core: Mapping[str, Estimate]) -> Row:
    get = record.metrics.get
    rate, step_s = get("samples_per_s"), get("step_s")
    low, high = get("samples_per_s_low"), get("samples_per_s_high")
    step_low, step_high = get("step_s_low"), get("step_s_high")
    if low is None and rate and step_s and step_low and step_high:
        low, high = rate * step_s / step_high, rate * step_s / step_low
    spread = (high - low) / 2 / rate if rate and low is not None and high is not None else None
    return Row(
        trial_id=record.trial_id,
        params=params,
        samples_per_s=rate,
        samples_per_s_low=low,
        samples_per_s_high=high,
        step_s=step_s,
        spread=spread,
        latency_p99_s=get("latency_p99_s"),
        peak_memory_bytes=get("peak_memory_bytes"),
        num_runs=sum(run.get("status") == "ok" for run in record.runs),
        num_set_aside=len(record.disturbed),
        is_disturbed=record.is_disturbed,
        efficiency=per_core[record.trial_id].value if record.trial_id in per_core else None,
        gflop_per_s=get("gflop_per_s"),
        gbyte_per_s=get("gbyte_per_s"),
        fraction_of_ceiling=get("fraction_of_ceiling"),
        ceilings_are_busy=bool(get("ceilings_busy")),
    )


def _ranked(
    rows: Sequence[Row], shown: Sequence[Record], measured: Sequence[Record], own: Sequence[str]
) -> list[Row]:
    """The rows with the fastest of each task marked, and those that cannot be told from it.

    A workload's own parameters (args.NAME) make another task: samples of another size do not compare.
    """
    tasks: dict[str, list[Record]] = {}
    for record in measured:
        tasks.setdefault(_task(record, own), []).append(record)
    best = {task: max(ones, key=_rate) for task, ones in tasks.items() if len(ones) > 1}
    num_others = {task: max(1, sum(map(_can_be_compared, tasks[task])) - 1) for task in best}
    marked = []
    for row, record in zip(rows, shown, strict=True):
        task = _task(record, own)
        fastest = best.get(task)
        is_best = record is fastest and row.samples_per_s is not None
        meets = fastest is not None and record is not fastest and _alike(record, fastest, num_others[task])
        marked.append(replace(row, is_best=is_best, may_equal_best=meets))
    return marked


def _task(record: Record, own: Sequence[str]) -> str:
    return json.dumps([record.params.get(name) for name in own], default=str) if own else ""


def _rate(record: Record) -> float:
    rate = record.metrics.get(_FASTEST)
    return -math.inf if rate is None else rate


def _can_be_compared(record: Record) -> bool:
    return len(_times_per_sample(record)) >= MIN_RUNS_TO_COMPARE


def _alike(record: Record, fastest: Record, num_others: int) -> bool:
    """True when their runs show no difference: Welch's test, corrected for looks and for how many others."""
    if not (_can_be_compared(record) and _can_be_compared(fastest)):
        return False
    times = [_times_per_sample(one) for one in (fastest, record)]
    protocol = fastest.protocol
    looks = (int(protocol.get("min_runs", 1)), int(protocol.get("max_runs", 1)))
    found = compare(*times, looks=looks if looks[1] > looks[0] else None, num_comparisons=num_others)
    return found.verdict not in ("faster", "slower")


def _times_per_sample(record: Record) -> list[float]:
    rates = [run.get("metrics", {}).get("samples_per_s") for run in record.runs]
    return [1.0 / rate for rate in rates if rate]


def _sorted(records: Sequence[Record], name: str) -> list[Record]:
    """The records in the order of a parameter or metric; equal ones stay as they are."""
    sign = -1 if name in _FASTER_FIRST else 1
    if name == "finished_at":
        return sorted(records, key=lambda r: _order(r.finished_at))
    return sorted(records, key=lambda r: _order(r.params.get(name, r.metrics.get(name)), sign))


def _check_sort(sort: str, groups: Iterable[Sequence[Record]]) -> None:
    known = {"finished_at"}
    for members in groups:
        for record in members:
            known.update(record.params, record.metrics)
    if sort not in known:
        raise UserError(f"cannot sort by {sort!r}: {nearest(sort, known)}")


def _order(value: Any, sign: int = 1) -> tuple[int, Any]:
    """A key that puts numbers before text and what is missing last."""
    if isinstance(value, (int, float)):
        return 0, sign * value
    return (2, "") if value is None else (1, str(value))


def _unmeasured(
    records: Sequence[Record], told: Mapping[int, Mapping[str, Any]], apart: Sequence[str]
) -> Iterable[Unmeasured]:
    """What gave no number, by reason, each point by the parameters that set it apart."""
    points = {id(r): {name: told[id(r)].get(name) for name in apart} for r in records}
    for status in ("failed", "skipped"):
        reasons: dict[str, list[Record]] = {}
        for record in records:
            if record.status == status:
                reasons.setdefault(record.reason or "no reason was recorded", []).append(record)
        for reason, ones in reasons.items():
            yield Unmeasured(status, reason, tuple((r.trial_id, points[id(r)]) for r in ones))


def _varying(points: Sequence[Mapping[str, Any]]) -> list[str]:
    names = dict.fromkeys(name for names in dict.fromkeys(map(tuple, points)) for name in names)
    return [name for name in names if _differ(each.get(name) for each in points)]


def _differ(values: Iterable[Any]) -> bool:
    rest = iter(values)
    first = next(rest, None)
    text = json.dumps(first, sort_keys=True, default=str)
    return any(
        (type(value) is not type(first) or value != first)
        and json.dumps(value, sort_keys=True, default=str) != text
        for value in rest
    )


def _is_default(name: str, value: Any) -> bool:
    return name in AXES and AXES[name].default == value
