"""The figures of a group as a table, and what gave no figure, by reason."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from corewise.report.groups import Group
from corewise.report.model import Column, Kind, Table, Unmeasured
from corewise.report.phrases import axis_title, literal, point_words, rate_unit, task_words
from corewise.report.standing import Efficiencies, Standing
from corewise.report.words import clean, is_pointing, point, rounded, short
from corewise.spec.axes import AXES
from corewise.stats.values import Values

MAX_POINTS = 20  # named for each reason
MAX_REASONS = 50
_LONGEST_CELL = 200
# Worth saying even when they have their usual value.
_ALWAYS_TOLD = ("runtime", "device", "processes", "threads", "batch", "dtype")
_HINTS = {
    "variant": "numbers trials alike in all that is told, of another source or environment",
    "protocol": "what of the protocol differs",
    "version": "of the framework",
    "allocation": "cores given to us",
    "efficiency": "samples/s per core over those of the trial with the fewest cores, all else equal",
    "ceiling": "of what the machine attains at these flops per byte, by `corewise doctor --ceilings`",
    "gflop": "10⁹ operations of the workload's count in a second, median over runs",
    "gbyte": "10⁹ bytes of the workload's least traffic in a second, median over runs",
    "best": "the same in the best sample of all runs, as STREAM reports it",
    "spread": "half the interval over the median",
    "step": "median over runs of the median step",
    "p99": "99th percentile of the step times; from 100 samples a run on",
    "memory": "peak of all processes of the trial, shared pages counted once",
    "runs": "executions in fresh processes that count",
    "aside": "runs that were disturbed, set aside and repeated",
    "standing": "best: the highest of its task; ≈ best: not told apart from it; else slower or too few runs",
}


def results_table(group: Group, standing: Standing, efficiency: Efficiencies) -> Table | None:
    """All trials that gave a figure, in order of their parameters."""
    if not group.records:
        return None
    keys = [column.codes for column in group.columns.values()][::-1]
    places = np.lexsort(keys).tolist() if keys else [0]
    columns, cells = _parameters(group)
    for column, values in _figures(group, standing, efficiency):
        if any(value is not None for value in values):
            columns.append(column)
            cells.append(values)
    rows = [[values[i] for values in cells] for i in places]
    marked = standing.is_best | standing.may_equal_best
    constants = told_constants(group.constant)
    if group.mode == "script" and constants.get("batch") == 1:  # a script's batch is its own affair
        constants = {name: value for name, value in constants.items() if not name.startswith("batch")}
    return Table(
        key="results",
        title=f"{task_words(group)}: results",
        columns=columns,
        rows=rows,
        caption=_caption(group, constants, marked),
        best_rows=[row for row, i in enumerate(places) if marked[i]],
    )


def told_constants(constant: Mapping[str, Any]) -> dict[str, Any]:
    """The constants a reader has to know: those that are not as by default."""
    return {n: v for n, v in constant.items() if n in _ALWAYS_TOLD or not _is_default(n, v)}


def _is_default(name: str, value: Any) -> bool:
    return name in AXES and AXES[name].default == value


def _parameters(group: Group) -> tuple[list[Column], list[list[Any]]]:
    columns: list[Column] = []
    cells: list[list[Any]] = []
    for name in group.varying:
        kind: Kind = "number" if group.is_number(name) else "text"
        columns.append(
            Column(key=f"param-{len(columns)}", title=axis_title(name), kind=kind, hint=_hint(name))
        )
        values = [_cell(value) for value in group.values(name)]
        cells.append([values[code] for code in group.columns[name].codes])
    return columns, cells


def _hint(name: str) -> str:
    if name in AXES:
        return AXES[name].help
    return "a parameter of the workload" if name.startswith("args.") else _HINTS.get(name, "")


def _cell(value: Any) -> Any:
    return short(value, _LONGEST_CELL) if isinstance(value, str) else value


def _figures(group: Group, standing: Standing, efficiency: Efficiencies) -> list[tuple[Column, list[Any]]]:
    unit = rate_unit(group)
    level = f"{100 * group.confidence:g} %"
    spread = (group.high - group.low) / 2 / group.rate
    disturbed = [bool(each) or None for each in group.is_disturbed]
    return [
        (
            Column(key="rate", title=unit, kind="number", unit=unit, hint="median over runs"),
            _short(group.rate),
        ),
        (
            Column(key="low", title=f"{level} interval", kind="number", unit=unit, upto="high"),
            _short(group.low),
        ),
        (Column(key="high", title=f"{level} interval, high", kind="number", unit=unit), _short(group.high)),
        (
            Column(key="efficiency", title="efficiency", kind="number", hint=_HINTS["efficiency"]),
            _short(efficiency.value, 4),
        ),
        (
            Column(key="fraction_of_ceiling", title="of ceiling", kind="percent", hint=_HINTS["ceiling"]),
            _short(group.metric("fraction_of_ceiling"), 3),
        ),
        (Column(key="standing", title="standing", hint=_HINTS["standing"]), _standings(standing)),
        (Column(key="disturbed", title="disturbed", hint="a run that counts was disturbed"), disturbed),
        (
            Column(key="runs", title="runs", kind="number", hint=_HINTS["runs"]),
            [int(num) for num in group.rates.num],
        ),
        (
            Column(key="aside", title="set aside", kind="number", hint=_HINTS["aside"]),
            _counts([len(record.disturbed) for record in group.records]),
        ),
        *_work_figures(group),
        (Column(key="spread", title="±", kind="percent", hint=_HINTS["spread"]), _short(spread, 3)),
        (
            Column(key="step", title="step", kind="seconds", hint=_HINTS["step"]),
            _short(group.metric("step_s"), 4),
        ),
        (
            Column(key="p99", title="p99", kind="seconds", hint=_HINTS["p99"]),
            _short(group.metric("latency_p99_s"), 4)
            if group.mode == "infer"
            else [None] * len(group.records),
        ),
        (
            Column(key="memory", title="memory", kind="bytes", hint=_HINTS["memory"]),
            _short(group.metric("peak_memory_bytes"), 4),
        ),
        (
            Column(key="trial", title="trial", hint="`corewise show --trial ID` shows all of it"),
            [clean(record.trial_id[:8]) for record in group.records],
        ),
    ]


def _work_figures(group: Group) -> list[tuple[Column, list[Any]]]:
    """What of the work is done in a second, where a step's traffic is known: of kernels."""
    traffic = group.metric("gbyte_per_s")
    if np.isnan(traffic).all():
        return []
    return [
        (
            Column(key="gflop", title="Gflop/s", kind="number", unit="Gflop/s", hint=_HINTS["gflop"]),
            _short(group.metric("gflop_per_s"), 4),
        ),
        (
            Column(key="gbyte", title="GB/s", kind="number", unit="GB/s", hint=_HINTS["gbyte"]),
            _short(traffic, 4),
        ),
        (
            Column(key="best", title="best GB/s", kind="number", unit="GB/s", hint=_HINTS["best"]),
            _short(group.metric("best_gbyte_per_s"), 4),
        ),
    ]


def _short(values: Values, digits: int = 5) -> list[float | None]:
    return [rounded(float(value), digits) for value in values]


def _counts(values: Sequence[int]) -> list[int | None]:
    """The counts, or nothing at all where all are 0."""
    return list(values) if any(values) else [None] * len(values)


def _standings(standing: Standing) -> list[str | None]:
    words = np.where(standing.is_best, "best", np.where(standing.may_equal_best, "≈ best", ""))
    return [str(word) or None for word in words]


def _caption(group: Group, constants: Mapping[str, Any], marked: "np.ndarray[Any, Any]") -> str:
    always = f"Always: {literal(short(point(constants), 600))}. " if constants else ""
    best = "Marked: the highest of each task, and those not told apart from it. " if marked.any() else ""
    return (
        f"{always}{best}{_quantity(group)} The interval is over the runs' values, never over pooled steps; "
        "the figure of the fastest is a little flattered by having been picked."
    )


def _quantity(group: Group) -> str:
    """What a run's throughput is: it need not be one over its median step."""
    unit = rate_unit(group)
    if group.mode == "infer":
        return (
            f"{unit} of a run: all it computed over the time that took; step: its median. A few slow steps "
            "lower the one and leave the other."
        )
    if group.mode == "script":
        return f"{unit} of a run: as the script told them, or one over its duration."
    return f"{unit} of a run: the samples of a step over its median step."


def unmeasured_of(groups: Sequence[Group]) -> list[Unmeasured]:
    """The trials of a study that gave no number, those of one reason together, the most frequent first."""
    found: dict[tuple[str, str], list[str]] = {}
    several = len(groups) > 1
    for group in groups:
        for record, own in group.unmeasured:
            where = f"{task_words(group)}, " if several else ""
            words = f"{where}{point_words(own)}".rstrip(", ") or record.trial_id[:8]
            reason = record.reason or "no reason was recorded"
            found.setdefault((record.status, reason), []).append(words)
    ordered = sorted(found.items(), key=lambda item: (item[0][0], -len(item[1])))
    made = [
        Unmeasured(
            status="failed" if status == "failed" else "skipped",
            reason=_reason_words(reason),
            num_trials=len(points),
            points=[short(each, 200) for each in points[:MAX_POINTS]],
        )
        for (status, reason), points in ordered
    ]
    return [*made[:MAX_REASONS], *_other_reasons(made[MAX_REASONS:])]


def _reason_words(reason: str) -> str:
    """The reason in one line; where it points at a mistake, the line with the mistake below it, as code."""
    if not is_pointing(reason):
        return short(reason, 1000)
    *told, line, pointer = reason.splitlines()
    return f"{short(' '.join(told), 1000)}\n`{literal(line)}\n{pointer}`"


def _other_reasons(left: Sequence[Unmeasured]) -> Iterator[Unmeasured]:
    """What is left when there are very many reasons, counted."""
    for status in ("failed", "skipped"):
        ones = [each for each in left if each.status == status]
        if ones:
            num = sum(each.num_trials for each in ones)
            told = f"{len(ones):,} other reasons: `corewise show --status {status}` shows all"
            yield Unmeasured(status=ones[0].status, reason=told, num_trials=num, points=())
