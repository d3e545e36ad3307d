"""Result tables drawn for a terminal; every name from a file is printed as plain text."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from corewise.cli.figures import clean, duration, memory, named, number, percent, point, shown, visible
from corewise.cli.tables import ResultTable, Row, Unmeasured
from corewise.report.words import is_pointing

_MAX_POINTS = 4  # named for each reason
_MAX_REASONS = 8
_GAP = 2  # between columns


@dataclass(frozen=True)
class _Column:
    header: str
    cell: Callable[[Row], str]
    drop: int = 0  # the higher, the sooner it gives way in a narrow terminal; 0: never
    right: bool = True


def draw_tables(console: Console, tables: Sequence[ResultTable], all_reasons: bool = False) -> None:
    """Print the tables one after the other, each study's question once."""
    told: set[str] = set()
    for table in tables:
        if table.study not in told:
            if told:
                console.print()
            question = f": {clean(table.question)}" if table.question else ""
            console.print(Text.assemble((clean(table.study), "bold"), question))
            told.add(table.study)
        draw_table(console, table, all_reasons)
    rows = [row for table in tables for row in table.rows]
    if any(row.gflop_per_s for row in rows) and all(row.fraction_of_ceiling is None for row in rows):
        hint = (
            "how much of the attainable? `corewise doctor --ceilings`, run once here, lets later trials say"
        )
        console.print()
        console.print(Text(hint, style="dim"), soft_wrap=True)


def draw_table(console: Console, table: ResultTable, all_reasons: bool) -> None:
    """Print one table, what all its rows share above it and what gave no number below."""
    console.print()
    console.print(Text(f"{clean(table.workload)} {clean(table.mode)}", style="bold cyan"))
    constants = point(table.told_constants())
    if constants:
        console.print(Text(f"always: {constants}", style="dim"))
    if table.rows:
        _draw_rows(console, table)
        _draw_left_out(console, table)
        _draw_trust(console, table)
    _draw_unmeasured(console, table.unmeasured, all_reasons)


def _columns(table: ResultTable) -> list[_Column]:
    def of_param(name: str) -> _Column:
        numeric = all(isinstance(row.params[name], (int, float, type(None))) for row in table.rows)
        return _Column(named(name), lambda row: shown(row.params[name]), right=numeric)

    confidence = f"{100 * table.confidence:g} % " if table.confidence else ""
    columns = [of_param(name) for name in table.varying]
    columns += [
        _Column("samples/s", lambda row: number(row.samples_per_s)),
        _Column(f"{confidence}interval", _interval, drop=2),
        _Column("± %", lambda row: percent(row.spread)),
        _Column("step", lambda row: duration(row.step_s), drop=3),
        _Column("memory", lambda row: memory(row.peak_memory_bytes), drop=1),
        _Column("status", _standing, right=False),
        _Column("trial", lambda row: clean(row.trial_id)[:8], drop=4, right=False),
    ]
    if any(row.gbyte_per_s is not None for row in table.rows):
        columns.insert(len(table.varying), _Column("GB/s", lambda row: number(row.gbyte_per_s)))
        columns.insert(len(table.varying), _Column("Gflop/s", lambda row: number(row.gflop_per_s)))
    if any(row.efficiency is not None for row in table.rows):
        columns.insert(-3, _Column("eff.", _efficiency, drop=1))
    if any(row.fraction_of_ceiling is not None for row in table.rows):
        columns.insert(-3, _Column("% of ceiling", lambda row: percent(row.fraction_of_ceiling), drop=1))
    if table.mode == "infer":
        columns.insert(-3, _Column("p99", lambda row: duration(row.latency_p99_s), drop=2))
    return columns


def _draw_rows(console: Console, table: ResultTable) -> None:
    columns = _columns(table)
    kept = _that_fit(columns, table.rows, console.width)
    drawn = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for column in kept:
        drawn.add_column(
            Text(_folded(column.header)),
            justify="right" if column.right else "left",
            no_wrap=column.right,
            vertical="bottom",
        )
    for row in table.rows:
        style = "bold green" if row.is_best else "yellow" if row.is_disturbed else ""
        drawn.add_row(*(Text(column.cell(row)) for column in kept), style=style)
    console.print()
    console.print(drawn)
    hidden = [column.header for column in columns if column not in kept]
    if hidden:
        console.print(Text(f"not shown, for want of width: {', '.join(hidden)}", style="dim"))


def _draw_left_out(console: Console, table: ResultTable) -> None:
    """Say how many rows of a very long table are missing, and how to see them."""
    if table.num_left_out:
        see = "--sort NAME shows others first, `corewise export -o FILE.csv` gives all"
        console.print(Text(f"… and {table.num_left_out:,} more rows: {see}", style="dim"), soft_wrap=True)


def _that_fit(columns: Sequence[_Column], rows: Sequence[Row], width: int) -> list[_Column]:
    """The columns without those that must give way to fit the width."""
    widths = {id(c): max(len(c.cell(row)) for row in rows) if rows else 0 for c in columns}
    for column in columns:
        widths[id(column)] = max(
            widths[id(column)], *(len(part) for part in _folded(column.header).split("\n"))
        )
    kept = list(columns)
    while sum(widths[id(c)] + _GAP for c in kept) - _GAP > width and any(c.drop for c in kept):
        kept.remove(max(kept, key=lambda c: c.drop))
    return kept


def _folded(header: str) -> str:
    return header.replace("_", "\n").replace(" interval", "\ninterval").replace(" ceiling", "\nceiling")


def _interval(row: Row) -> str:
    if row.samples_per_s_low is None or row.samples_per_s_high is None:
        return "-"
    return f"{number(row.samples_per_s_low)}–{number(row.samples_per_s_high)}"


def _efficiency(row: Row) -> str:
    return "-" if row.efficiency is None else f"{row.efficiency:.2f}"


def _standing(row: Row) -> str:
    words = ["best"] if row.is_best else ["≈ best"] if row.may_equal_best else []
    if row.is_disturbed:
        words.append("disturbed")
    return ", ".join(words) or "ok"


def _draw_trust(console: Console, table: ResultTable) -> None:
    """Say what the reader must know before believing the figures."""
    if any(row.efficiency is not None for row in table.rows):
        told = "eff.: efficiency, samples/s per core over those of the row with the fewest, all else equal."
        console.print(Text(told, "dim"))
    fractions = [row.fraction_of_ceiling for row in table.rows]
    if any(each is not None for each in fractions):
        told = (
            "% of ceiling: of what the machine attains at these flops per byte (corewise doctor --ceilings)."
        )
        console.print(Text(told, "dim"))
    if any(row.ceilings_are_busy for row in table.rows):
        told = "Ceilings were measured on a busy machine: too low, so that shares of them are too high."
        console.print(Text(told, style="yellow"))
    num_equal = sum(row.may_equal_best for row in table.rows)
    if num_equal:
        others = "1 other row" if num_equal == 1 else f"{num_equal} other rows"
        console.print(
            Text(f"≈ best: {others} cannot be told from the best one: no difference is shown.", "dim")
        )
    disturbed = [clean(row.trial_id)[:8] for row in table.rows if row.is_disturbed]
    if disturbed:
        more = ", …" if disturbed[_MAX_POINTS:] else ""
        text = (
            f"disturbed by other load: {', '.join(disturbed[:_MAX_POINTS])}{more}; --trial ID says by what."
        )
        console.print(Text(text, style="yellow"))
    num_set_aside = sum(row.num_set_aside for row in table.rows)
    if num_set_aside:
        runs = "1 disturbed run was" if num_set_aside == 1 else f"{num_set_aside} disturbed runs were"
        console.print(Text(f"{runs} set aside and repeated.", style="dim"))


def _draw_unmeasured(console: Console, groups: Sequence[Unmeasured], all_reasons: bool) -> None:
    for status, style in (("failed", "red"), ("skipped", "yellow")):
        ones = [group for group in groups if group.status == status]
        if not ones:
            continue
        console.print()
        console.print(
            Text.assemble((f"{status} {sum(len(group.points) for group in ones)}", f"bold {style}"))
        )
        limit = len(ones) if all_reasons else _MAX_REASONS
        for group in ones[:limit]:
            console.print(Padding(_reason(group, all_reasons), (0, 0, 0, 2), expand=False))
        if ones[limit:]:
            console.print(
                Text(f"  … and {len(ones) - limit} other reasons: --status {status} shows all", "dim")
            )


def _reason(group: Unmeasured, all_points: bool) -> Text:
    limit = len(group.points) if all_points else _MAX_POINTS
    points = [f"{point(params)} ({clean(trial_id)[:8]})".strip() for trial_id, params in group.points[:limit]]
    more = f"; … and {len(group.points) - limit} more" if group.points[limit:] else ""
    return Text.assemble(_told(group.reason), "\n", (f"  {'; '.join(points)}{more}", "dim"))


def _told(reason: str) -> str:
    """The reason in one line; one that points at a place in a line above keeps its lines."""
    return "\n".join(map(visible, reason.splitlines())) if is_pointing(reason) else clean(reason)
