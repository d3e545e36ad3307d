"""The results of a group as a table, and the trials without a result, grouped by reason."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from corewise.analysis.counter_columns import COUNTER_COLUMNS
from corewise.analysis.efficiency import Efficiencies
from corewise.analysis.groups import Group
from corewise.analysis.phrases import (
    describe_point,
    describe_task,
    format_axis_title,
    name_rate_unit,
    replace_backticks,
)
from corewise.analysis.ranking import TrialRanking
from corewise.report.report_model import Column, ColumnFormat, Table, Unmeasured
from corewise.stats.values import Values
from corewise.study.axes import AXES
from corewise.text_format import clean_text, format_parameters, has_caret_line, round_significant, shorten

# Each reason lists at most this many points.
MAX_POINTS = 20
MAX_REASONS = 50
_MAX_CELL_LENGTH = 200
# The caption lists these even at their default value.
_ALWAYS_SHOWN = ("runtime", "device", "processes", "threads", "batch", "dtype")
_HINTS = {
    "variant": "numbers trials that differ only in source code or environment",
    "protocol": "the part of the protocol that differs",
    "version": "of the framework",
    "allocation": "allocated cores",
    "efficiency": "samples/s per core relative to the trial with the fewest cores, all else equal",
    "ceiling": ("share of the attainable rate at these flops per byte, measured by `corewise doctor --ceilings`"),
    "gflop": "10⁹ floating-point operations of the workload per second, median over runs",
    "gbyte": "10⁹ bytes of the workload's minimum traffic per second, median over runs",
    "latency": "median time of one operation; half of the round trip for point_to_point",
    "message": "size of the message over the latency",
    "bus": "GB/s that each link or rank carries, comparable over numbers of ranks",
    "best": "GB/s in the best sample of all runs, as STREAM reports it",
    "spread": "half the interval over the median",
    "step": "median over runs of the median step",
    "p99": "99th percentile of the step times, if each run has at least 100 samples",
    "memory": "peak over all processes of the trial, shared pages counted once",
    "runs": "counted executions in fresh processes",
    "aside": "runs that were disturbed, set aside and repeated",
    "standing": (
        "best: highest of its task; ≈ best: no significant difference from it; empty: slower, or too few runs"
    ),
}


def build_results_table(group: Group, standing: TrialRanking, efficiency: Efficiencies) -> Table | None:
    """Build the table of all trials with a result, in order of their parameters."""
    if not group.records:
        return None
    keys = [column.codes for column in group.columns.values()][::-1]
    places = np.lexsort(keys).tolist() if keys else [0]
    columns, cells = _build_parameter_columns(group)
    for column, values in _build_figure_columns(group, standing, efficiency):
        if any(value is not None for value in values):
            columns.append(column)
            cells.append(values)
    rows = [[values[i] for values in cells] for i in places]
    marked = standing.is_best | standing.may_equal_best
    constants = get_notable_constants(group.constant)
    # A script sets its batch itself.
    if group.mode == "script" and constants.get("batch") == 1:
        constants = {name: value for name, value in constants.items() if not name.startswith("batch")}
    return Table(
        key="results",
        title=f"{describe_task(group)}: results",
        columns=columns,
        rows=rows,
        caption=_build_caption(group, constants, marked),
        best_rows=[row for row, i in enumerate(places) if marked[i]],
    )


def get_notable_constants(constant: Mapping[str, Any]) -> dict[str, Any]:
    """Return the constants a reader needs: those that differ from their default."""
    return {n: v for n, v in constant.items() if n in _ALWAYS_SHOWN or not _is_default(n, v)}


def _is_default(name: str, value: Any) -> bool:
    return name in AXES and AXES[name].default == value


def _build_parameter_columns(group: Group) -> tuple[list[Column], list[list[Any]]]:
    columns: list[Column] = []
    cells: list[list[Any]] = []
    for name in group.varying:
        value_format: ColumnFormat = "number" if group.is_number(name) else "text"
        columns.append(
            Column(key=f"param-{len(columns)}", title=format_axis_title(name), kind=value_format, hint=_find_hint(name))
        )
        values = [_format_cell(value) for value in group.list_values(name)]
        cells.append([values[code] for code in group.columns[name].codes])
    return columns, cells


def _find_hint(name: str) -> str:
    if name in AXES:
        return AXES[name].help
    return "a parameter of the workload" if name.startswith("args.") else _HINTS.get(name, "")


def _format_cell(value: Any) -> Any:
    return shorten(value, _MAX_CELL_LENGTH) if isinstance(value, str) else value


def _build_figure_columns(
    group: Group, standing: TrialRanking, efficiency: Efficiencies
) -> list[tuple[Column, list[Any]]]:
    unit = name_rate_unit(group)
    level = f"{100 * group.confidence:g} %"
    spread = (group.high - group.low) / 2 / group.rate
    disturbed = [bool(each) or None for each in group.is_disturbed]
    return [
        (Column(key="rate", title=unit, kind="number", unit=unit, hint="median over runs"), _round_values(group.rate)),
        (Column(key="low", title=f"{level} interval", kind="number", unit=unit, upto="high"), _round_values(group.low)),
        (Column(key="high", title=f"{level} interval, high", kind="number", unit=unit), _round_values(group.high)),
        (
            Column(key="efficiency", title="efficiency", kind="number", hint=_HINTS["efficiency"]),
            _round_values(efficiency.value, 4),
        ),
        (
            Column(key="fraction_of_ceiling", title="of ceiling", kind="percent", hint=_HINTS["ceiling"]),
            _round_values(group.get_metric("fraction_of_ceiling"), 3),
        ),
        (Column(key="standing", title="standing", hint=_HINTS["standing"]), _list_standings(standing)),
        (Column(key="disturbed", title="disturbed", hint="at least one counted run was disturbed"), disturbed),
        (Column(key="runs", title="runs", kind="number", hint=_HINTS["runs"]), [int(num) for num in group.rates.num]),
        (
            Column(key="aside", title="set aside", kind="number", hint=_HINTS["aside"]),
            _list_counts([len(record.disturbed) for record in group.records]),
        ),
        *_build_work_columns(group),
        *_build_counter_columns(group),
        (Column(key="spread", title="±", kind="percent", hint=_HINTS["spread"]), _round_values(spread, 3)),
        (
            Column(key="step", title="step", kind="seconds", hint=_HINTS["step"]),
            _round_values(group.get_metric("step_s"), 4),
        ),
        (
            Column(key="p99", title="p99", kind="seconds", hint=_HINTS["p99"]),
            _round_values(group.get_metric("latency_p99_s"), 4)
            if group.mode == "infer"
            else [None] * len(group.records),
        ),
        (
            Column(key="memory", title="memory", kind="bytes", hint=_HINTS["memory"]),
            _round_values(group.get_metric("peak_memory_bytes"), 4),
        ),
        (
            Column(key="trial", title="trial", hint="`corewise show --trial ID` shows the full record"),
            [clean_text(record.trial_id[:8]) for record in group.records],
        ),
    ]


def _build_work_columns(group: Group) -> list[tuple[Column, list[Any]]]:
    """Return flop rate and bandwidth of kernels, whose traffic per step is known."""
    traffic = group.get_metric("gbyte_per_s")
    if np.isnan(traffic).all():
        return []
    if np.isfinite(group.get_metric("latency_s")).any():
        return _build_message_columns(group)
    return [
        (
            Column(key="gflop", title="Gflop/s", kind="number", unit="Gflop/s", hint=_HINTS["gflop"]),
            _round_values(group.get_metric("gflop_per_s"), 4),
        ),
        (
            Column(key="gbyte", title="GB/s", kind="number", unit="GB/s", hint=_HINTS["gbyte"]),
            _round_values(traffic, 4),
        ),
        (
            Column(key="best", title="best GB/s", kind="number", unit="GB/s", hint=_HINTS["best"]),
            _round_values(group.get_metric("best_gbyte_per_s"), 4),
        ),
    ]


def _build_message_columns(group: Group) -> list[tuple[Column, list[Any]]]:
    """Return latency and bandwidths of messages among ranks."""
    return [
        (
            Column(key="latency", title="latency", kind="seconds", hint=_HINTS["latency"]),
            _round_values(group.get_metric("latency_s"), 4),
        ),
        (
            Column(key="gbyte", title="GB/s", kind="number", unit="GB/s", hint=_HINTS["message"]),
            _round_values(group.get_metric("gbyte_per_s"), 4),
        ),
        (
            Column(key="bus", title="bus GB/s", kind="number", unit="GB/s", hint=_HINTS["bus"]),
            _round_values(group.get_metric("bus_gbyte_per_s"), 4),
        ),
    ]


def _build_counter_columns(group: Group) -> list[tuple[Column, list[Any]]]:
    """Return the columns of instruction counters; the caller drops those without values."""
    return [
        (
            Column(key=column.metric, title=column.title, kind="number", unit=column.unit, hint=column.hint),
            _round_values(group.get_metric(column.metric) / column.scale, 4),
        )
        for column in COUNTER_COLUMNS
    ]


def _round_values(values: Values, digits: int = 5) -> list[float | None]:
    return [round_significant(float(value), digits) for value in values]


def _list_counts(values: Sequence[int]) -> list[int | None]:
    """Return the counts, or only None where all are 0."""
    return list(values) if any(values) else [None] * len(values)


def _list_standings(standing: TrialRanking) -> list[str | None]:
    labels = np.where(standing.is_best, "best", np.where(standing.may_equal_best, "≈ best", ""))
    return [str(label) or None for label in labels]


def _build_caption(group: Group, constants: Mapping[str, Any], marked: "np.ndarray[Any, Any]") -> str:
    always = f"Always: {replace_backticks(shorten(format_parameters(constants), 600))}. " if constants else ""
    best = (
        "★ marks the highest of each task and those without a significant difference from it. " if marked.any() else ""
    )
    return (
        f"{always}{best}{_describe_quantity(group)} The interval is over the runs' values, never over "
        "pooled steps; the fastest trial's figure is slightly optimistic because it was selected."
    )


def _describe_quantity(group: Group) -> str:
    """Explain how a run's throughput is computed; it need not be one over its median step."""
    unit = name_rate_unit(group)
    if group.mode == "infer":
        return (
            f"{unit} of a run: all samples over the total time; step: the median. A few slow steps lower the "
            "throughput but not the median."
        )
    if group.mode == "script":
        return f"{unit} of a run: as printed by the script, or one over its duration."
    return f"{unit} of a run: the samples of a step over the median step time."


def group_unmeasured(groups: Sequence[Group]) -> list[Unmeasured]:
    """Group the trials of a study without a result by reason, the most frequent first."""
    points_by_reason: dict[tuple[str, str], list[str]] = {}
    several = len(groups) > 1
    for group in groups:
        for record, own in group.unmeasured:
            where = f"{describe_task(group)}, " if several else ""
            label = f"{where}{describe_point(own)}".rstrip(", ") or record.trial_id[:8]
            reason = record.reason or "no reason was recorded"
            points_by_reason.setdefault((record.status, reason), []).append(label)
    ordered = sorted(points_by_reason.items(), key=lambda item: (item[0][0], -len(item[1])))
    groups_by_reason = [
        Unmeasured(
            status="failed" if status == "failed" else "skipped",
            reason=_format_reason(reason),
            num_trials=len(points),
            points=[shorten(each, 200) for each in points[:MAX_POINTS]],
        )
        for (status, reason), points in ordered
    ]
    return [*groups_by_reason[:MAX_REASONS], *_count_other_reasons(groups_by_reason[MAX_REASONS:])]


def _format_reason(reason: str) -> str:
    """Format the reason in one line; a caret that points at a mistake stays below its line, as code."""
    if not has_caret_line(reason):
        return shorten(reason, 1000)
    *message, line, pointer = reason.splitlines()
    return f"{shorten(' '.join(message), 1000)}\n`{replace_backticks(line)}\n{pointer}`"


def _count_other_reasons(left: Sequence[Unmeasured]) -> Iterator[Unmeasured]:
    """Count the trials of the remaining reasons, when there are very many."""
    for status in ("failed", "skipped"):
        rest = [each for each in left if each.status == status]
        if rest:
            num = sum(each.num_trials for each in rest)
            reason = f"{len(rest):,} other reasons: `corewise show --status {status}` shows all"
            yield Unmeasured(status=rest[0].status, reason=reason, num_trials=num, points=())
