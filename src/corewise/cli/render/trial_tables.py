"""Draw result tables on a terminal; names from files are printed as plain text."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from corewise.analysis.counter_columns import NOTES_OF_SOURCES, CounterColumn, list_counter_columns
from corewise.analysis.result_tables import ResultRow, ResultTable, UnmeasuredTrials
from corewise.cli.render.scaling_table import draw_scaling
from corewise.text_format import (
    clean_text,
    format_duration,
    format_memory,
    format_number,
    format_parameter_name,
    format_parameters,
    format_percent,
    format_value,
    has_caret_line,
    replace_unprintable,
)

# Points listed for each reason.
_MAX_POINTS = 4
_MAX_REASONS = 8
# Spaces between columns.
_GAP = 2


@dataclass(frozen=True)
class _Column:
    header: str
    cell: Callable[[ResultRow], str]
    # Columns with the highest number are dropped first in a narrow terminal; 0: never.
    drop: int = 0
    right: bool = True


def draw_tables(console: Console, tables: Sequence[ResultTable], all_reasons: bool = False) -> None:
    """Print all tables, and the question of each study once."""
    printed: set[str] = set()
    for table in tables:
        if table.study not in printed:
            if printed:
                console.print()
            question = f": {clean_text(table.question)}" if table.question else ""
            console.print(Text.assemble((clean_text(table.study), "bold"), question))
            printed.add(table.study)
        draw_table(console, table, all_reasons)
    rows = [row for table in tables for row in table.rows]
    if any(row.gflop_per_s for row in rows) and all(row.fraction_of_ceiling is None for row in rows):
        hint = "run `corewise doctor --ceilings` once: later trials then report the fraction of their ceiling"
        console.print()
        console.print(Text(hint, style="dim"), soft_wrap=True)


def draw_table(console: Console, table: ResultTable, all_reasons: bool) -> None:
    """Print one table, with constants above and failed or skipped trials below."""
    console.print()
    console.print(Text(f"{clean_text(table.workload)} {clean_text(table.mode)}", style="bold cyan"))
    constants = format_parameters(table.get_notable_constants())
    if constants:
        console.print(Text(f"always: {constants}", style="dim"))
    if table.rows:
        _draw_rows(console, table)
        _draw_left_out(console, table)
        _draw_notes(console, table)
        draw_scaling(console, table.scaling)
    _draw_unmeasured(console, table.unmeasured, all_reasons)


def _build_columns(table: ResultTable) -> list[_Column]:
    def build_param_column(name: str) -> _Column:
        numeric = all(isinstance(row.params[name], (int, float, type(None))) for row in table.rows)
        return _Column(format_parameter_name(name), lambda row: format_value(row.params[name]), right=numeric)

    confidence = f"{100 * table.confidence:g} % " if table.confidence else ""
    columns = [build_param_column(name) for name in table.varying]
    columns += [
        _Column("samples/s", lambda row: format_number(row.samples_per_s)),
        _Column(f"{confidence}interval", _format_interval, drop=2),
        _Column("± %", lambda row: format_percent(row.spread)),
        _Column("step", lambda row: format_duration(row.step_s), drop=3),
        _Column("memory", lambda row: format_memory(row.peak_memory_bytes), drop=1),
        _Column("status", _describe_standing, right=False),
        _Column("trial", lambda row: clean_text(row.trial_id)[:8], drop=4, right=False),
    ]
    if any(row.latency_s is not None for row in table.rows):
        columns[len(table.varying)] = _Column("bus GB/s", lambda row: format_number(row.bus_gbyte_per_s))
        columns.insert(len(table.varying), _Column("GB/s", lambda row: format_number(row.gbyte_per_s)))
        columns.insert(len(table.varying), _Column("latency", lambda row: format_duration(row.latency_s)))
    elif any(row.gbyte_per_s is not None for row in table.rows):
        columns.insert(len(table.varying), _Column("GB/s", lambda row: format_number(row.gbyte_per_s)))
        columns.insert(len(table.varying), _Column("Gflop/s", lambda row: format_number(row.gflop_per_s)))
    if any(row.efficiency is not None for row in table.rows):
        columns.insert(-3, _Column("eff.", _format_efficiency, drop=1))
    if any(row.fraction_of_ceiling is not None for row in table.rows):
        columns.insert(-3, _Column("% of ceiling", lambda row: format_percent(row.fraction_of_ceiling), drop=1))
    counted = {name for row in table.rows for name in row.counters}
    columns[-3:-3] = [_build_counter_column(column) for column in list_counter_columns(counted)]
    if table.mode == "infer":
        columns.insert(-3, _Column("p99", lambda row: format_duration(row.latency_p99_s), drop=2))
    return columns


def _build_counter_column(column: CounterColumn) -> _Column:
    def format_cell(row: ResultRow) -> str:
        value = row.counters.get(column.metric)
        return "-" if value is None else format_number(value / column.scale)

    return _Column(column.short_title.replace(" ", "_"), format_cell, drop=1)


def _draw_rows(console: Console, table: ResultTable) -> None:
    columns = _build_columns(table)
    selected = _select_columns(columns, table.rows, console.width)
    drawn = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for column in selected:
        drawn.add_column(
            Text(_fold_header(column.header)),
            justify="right" if column.right else "left",
            no_wrap=column.right,
            vertical="bottom",
        )
    for row in table.rows:
        style = "bold green" if row.is_best else "yellow" if row.is_disturbed else ""
        drawn.add_row(*(Text(column.cell(row)) for column in selected), style=style)
    console.print()
    console.print(drawn)
    hidden = [column.header for column in columns if column not in selected]
    if hidden:
        console.print(Text(f"columns hidden for lack of width: {', '.join(hidden)}", style="dim"))


def _draw_left_out(console: Console, table: ResultTable) -> None:
    """Print how many rows of a very long table are hidden, and how to see them."""
    if table.num_left_out:
        see = "--sort NAME sorts by another column, `corewise export -o FILE.csv` writes all"
        console.print(Text(f"… and {table.num_left_out:,} more rows: {see}", style="dim"), soft_wrap=True)


def _select_columns(columns: Sequence[_Column], rows: Sequence[ResultRow], width: int) -> list[_Column]:
    """Drop columns until the rest fits the width."""
    widths = {id(c): max(len(c.cell(row)) for row in rows) if rows else 0 for c in columns}
    for column in columns:
        widths[id(column)] = max(widths[id(column)], *(len(part) for part in _fold_header(column.header).split("\n")))
    selected = list(columns)
    while sum(widths[id(c)] + _GAP for c in selected) - _GAP > width and any(c.drop for c in selected):
        selected.remove(max(selected, key=lambda c: c.drop))
    return selected


def _fold_header(header: str) -> str:
    return header.replace("_", "\n").replace(" interval", "\ninterval").replace(" ceiling", "\nceiling")


def _format_interval(row: ResultRow) -> str:
    if row.samples_per_s_low is None or row.samples_per_s_high is None:
        return "-"
    return f"{format_number(row.samples_per_s_low)}–{format_number(row.samples_per_s_high)}"


def _format_efficiency(row: ResultRow) -> str:
    return "-" if row.efficiency is None else f"{row.efficiency:.2f}"


def _describe_standing(row: ResultRow) -> str:
    labels = ["best"] if row.is_best else ["≈ best"] if row.may_equal_best else []
    if row.is_disturbed:
        labels.append("disturbed")
    return ", ".join(labels) or "ok"


def _draw_notes(console: Console, table: ResultTable) -> None:
    """Print what the reader must know to interpret the numbers."""
    if any(row.efficiency is not None for row in table.rows):
        note = "eff.: samples/s per core, relative to the row with the fewest cores and equal parameters."
        console.print(Text(note, "dim"))
    fractions = [row.fraction_of_ceiling for row in table.rows]
    if any(each is not None for each in fractions):
        note = "% of ceiling: of the attainable rate at these flops per byte (corewise doctor --ceilings)."
        console.print(Text(note, "dim"))
    counted = {name for row in table.rows for name in row.counters}
    for source in dict.fromkeys(column.source for column in list_counter_columns(counted)):
        console.print(Text(f"{source}: {NOTES_OF_SOURCES[source]}", "dim"))
    for problem in table.missing_counts:
        console.print(Text(clean_text(problem), style="yellow"))
    if any(row.ceilings_are_busy for row in table.rows):
        note = "Ceilings were measured on a busy machine: they are too low, and fractions too high."
        console.print(Text(note, style="yellow"))
    num_equal = sum(row.may_equal_best for row in table.rows)
    if num_equal:
        others = "1 other row" if num_equal == 1 else f"{num_equal} other rows"
        console.print(Text(f"≈ best: {others} with no significant difference from the best.", "dim"))
    disturbed = [clean_text(row.trial_id)[:8] for row in table.rows if row.is_disturbed]
    if disturbed:
        more = ", …" if disturbed[_MAX_POINTS:] else ""
        text = f"disturbed by other load: {', '.join(disturbed[:_MAX_POINTS])}{more}; --trial ID shows details."
        console.print(Text(text, style="yellow"))
    num_set_aside = sum(row.num_set_aside for row in table.rows)
    if num_set_aside:
        runs = "1 disturbed run was" if num_set_aside == 1 else f"{num_set_aside} disturbed runs were"
        console.print(Text(f"{runs} discarded and repeated.", style="dim"))


def _draw_unmeasured(console: Console, groups: Sequence[UnmeasuredTrials], all_reasons: bool) -> None:
    for status, style in (("failed", "red"), ("skipped", "yellow")):
        ones = [group for group in groups if group.status == status]
        if not ones:
            continue
        console.print()
        console.print(Text.assemble((f"{status} {sum(len(group.points) for group in ones)}", f"bold {style}")))
        limit = len(ones) if all_reasons else _MAX_REASONS
        for group in ones[:limit]:
            console.print(Padding(_format_reason(group, all_reasons), (0, 0, 0, 2), expand=False))
        if ones[limit:]:
            console.print(Text(f"  … and {len(ones) - limit} other reasons: --status {status} shows all", "dim"))


def _format_reason(group: UnmeasuredTrials, all_points: bool) -> Text:
    limit = len(group.points) if all_points else _MAX_POINTS
    points = [
        f"{format_parameters(params)} ({clean_text(trial_id)[:8]})".strip() for trial_id, params in group.points[:limit]
    ]
    more = f"; … and {len(group.points) - limit} more" if group.points[limit:] else ""
    return Text.assemble(_format_reason_text(group.reason), "\n", (f"  {'; '.join(points)}{more}", "dim"))


def _format_reason_text(reason: str) -> str:
    """Return the reason in one line; a reason with a ^ marker keeps its lines."""
    return "\n".join(map(replace_unprintable, reason.splitlines())) if has_caret_line(reason) else clean_text(reason)
