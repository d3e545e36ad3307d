"""One trial in full: its point, its figures, every run, and how to repeat it."""

import statistics
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from corewise.cli.figures import (
    clean,
    duration,
    histogram,
    memory,
    named,
    number,
    percent,
    shown,
    sparkline,
    visible,
)
from corewise.spec.errors import UserError
from corewise.spec.record import Record

_STYLES = {"ok": "green", "failed": "red", "skipped": "yellow"}
_INDENT = (0, 0, 0, 2)
_SPARK_WIDTH = 24
_BAR_WIDTH = 40


def find_trial(records: Sequence[Record], prefix: str) -> Record:
    """The one record whose trial id begins so."""
    found = [r for r in records if r.trial_id.startswith(prefix)]
    if len(found) == 1:
        return found[0]
    exact = [r for r in found if r.trial_id == prefix]
    if exact:
        return exact[0]
    if not found:
        starts = {r.trial_id[: max(4, len(prefix))] for r in records}
        close = get_close_matches(prefix, sorted(starts), n=1, cutoff=0.6)
        meant = f"did you mean {close[0]!r}? " if close else ""
        raise UserError(f"no trial {prefix!r} in this store: {meant}`corewise show` lists the ids")
    some = ", ".join(r.trial_id for r in found[:5])
    raise UserError(f"{len(found)} trials begin with {prefix!r} ({some} ...): give more of the id")


def draw_trial(console: Console, record: Record) -> None:
    """Print all that is known of a trial, most wanted first."""
    title = Text.assemble(("trial ", "bold"), (clean(record.trial_id), "bold"), "  ")
    console.print(title + Text(record.status, style=f"bold {_STYLES[record.status]}"))
    if record.reason:
        kind = f" ({clean(record.kind)})" if record.kind else ""
        console.print(
            Padding(
                Text(f"{_lines(record.reason)}{kind}", style=_STYLES[record.status]), _INDENT, expand=False
            )
        )
    question = f": {clean(record.question)}" if record.question else ""
    console.print(Text(f"study {clean(record.study)}{question}"))
    _draw_mapping(console, "parameters", {n: shown(v) for n, v in record.params.items()})
    _draw_mapping(console, "metrics", {n: _metric(n, v) for n, v in sorted(record.metrics.items())})
    _draw_runs(console, "runs", record.runs)
    _draw_spread(console, record.runs)
    _draw_runs(console, "set aside as disturbed, and repeated", record.disturbed)
    _draw_histogram(console, record.samples_s)
    _draw_text(console, "notes", [clean(note) for note in record.notes])
    _draw_mapping(console, "machine", {n: _fact(n, v) for n, v in record.machine.items()})
    _draw_mapping(console, "versions", {**record.versions, "corewise": record.corewise_version})
    _draw_text(console, "environment", [visible(f"{n}={v}") for n, v in record.env.items()])
    _draw_text(console, "command", [_lines(record.command)] if record.command else [])
    _draw_text(console, "when", [f"{clean(record.started_at)} to {clean(record.finished_at)}"])


def _draw_mapping(console: Console, title: str, values: Mapping[str, str]) -> None:
    """Names and values side by side, in as many columns as the width allows."""
    if not values:
        return
    _draw_title(console, title)
    names = {named(n): clean(str(v)) for n, v in values.items()}
    widest = max(len(n) for n in names) + max(len(v) for v in names.values()) + 6
    num_columns = max(1, min(3, (console.width - 2) // widest))
    grid = Table.grid(padding=(0, 3, 0, 0))
    cells = [Text.assemble((f"{n} ", "dim"), v) for n, v in names.items()]
    for i in range(0, len(cells), num_columns):
        grid.add_row(*cells[i : i + num_columns])
    console.print(Padding(grid, _INDENT, expand=False))


def _draw_runs(console: Console, title: str, runs: Sequence[Mapping[str, Any]]) -> None:
    if not runs:
        return
    _draw_title(console, f"{title}: median, range and samples in order")
    drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for header in ("run", "samples", "median", "least", "most"):
        drawn.add_column(header, justify="right", no_wrap=True)
    drawn.add_column("in order", no_wrap=True)
    for i, run in enumerate(runs, 1):
        samples_s = run.get("samples_s") or []
        if not samples_s:
            reason = clean(str(run.get("reason") or run.get("status")))
            drawn.add_row(str(i), "0", "-", "-", "-", Text(reason, style="red"))
            continue
        figures = (duration(f(samples_s)) for f in (statistics.median, min, max))
        drawn.add_row(str(i), str(len(samples_s)), *figures, sparkline(samples_s, _SPARK_WIDTH))
    console.print(Padding(drawn, _INDENT, expand=False))
    for i, run in enumerate(runs, 1):
        for disturbance in run.get("disturbances") or ():
            console.print(
                Padding(
                    Text(f"run {i} disturbed: {clean(str(disturbance))}", style="yellow"),
                    _INDENT,
                    expand=False,
                )
            )


def _draw_spread(console: Console, runs: Sequence[Mapping[str, Any]]) -> None:
    """The step time over processes as papers tabulate it."""
    from corewise.stats.estimate import describe

    medians_s = [statistics.median(run["samples_s"]) for run in runs if run.get("samples_s")]
    if len(medians_s) < 2:
        return
    told = describe(medians_s)
    figures = {"mean": duration(told.mean), "median": duration(told.median)}
    if told.standard_deviation is not None:
        figures["standard deviation"] = duration(told.standard_deviation)
    if told.coefficient_of_variation is not None:
        figures["coefficient of variation"] = f"{percent(told.coefficient_of_variation)} %"
    if told.margin_of_error is not None:
        figures["margin of error"] = duration(told.margin_of_error)
    _draw_mapping(console, f"step time over {len(medians_s)} processes", figures)


def _draw_histogram(console: Console, samples_s: Sequence[float]) -> None:
    bins = histogram(samples_s)
    if len(bins) < 2:
        return
    _draw_title(console, f"distribution of {len(samples_s)} samples")
    most = max(count for *_, count in bins)
    for low, high, count in bins:
        bar = "█" * max(round(_BAR_WIDTH * count / most), 1 if count else 0)
        edges = f"{duration(low, digits=4):>9} to {duration(high, digits=4):>9}"
        console.print(Padding(Text.assemble(f"{edges}  ", (bar, "cyan"), f" {count}"), _INDENT, expand=False))


def _draw_text(console: Console, title: str, lines: Sequence[str]) -> None:
    if lines:
        _draw_title(console, title)
    for line in lines:
        # Never cut or wrapped: it must survive being copied.
        console.print(Text("  " + line), soft_wrap=True)


def _draw_title(console: Console, title: str) -> None:
    console.print()
    console.print(Text(title, style="bold"))


def _metric(name: str, value: float) -> str:
    if name.endswith("_s") and not name.endswith("_per_s"):
        return duration(value)
    if name.endswith(("_s_low", "_s_high")) and "_per_s_" not in name:
        return duration(value)
    if name.endswith("_bytes"):
        return memory(value)
    if name.endswith("_cv"):
        return f"{percent(value)} %"
    return number(value) if value != int(value) else f"{value:,.0f}"


def _fact(name: str, value: Any) -> str:
    return memory(value) if name.endswith("_bytes") and isinstance(value, (int, float)) else shown(value)


def _lines(text: str) -> str:
    """Several lines kept apart, each harmless to a terminal."""
    return "\n  ".join(visible(line) for line in text.splitlines())
