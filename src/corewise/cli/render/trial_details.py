"""Draw one trial: parameters, metrics, every run, and how to repeat it."""

import statistics
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from corewise.cli.render.sparklines import count_histogram, draw_sparkline
from corewise.errors import UserError
from corewise.measured.probes.counter_names import PERF
from corewise.study.record import Record
from corewise.text_format import (
    clean_text,
    format_duration,
    format_memory,
    format_number,
    format_parameter_name,
    format_percent,
    format_value,
    replace_unprintable,
)

_STYLES = {"ok": "green", "failed": "red", "skipped": "yellow"}
_INDENT = (0, 0, 0, 2)
_SPARK_WIDTH = 24
_BAR_WIDTH = 40


def find_trial(records: Sequence[Record], prefix: str) -> Record:
    """Return the one record whose trial id has this prefix; raise a UserError otherwise."""
    matches = [r for r in records if r.trial_id.startswith(prefix)]
    if len(matches) == 1:
        return matches[0]
    exact = [r for r in matches if r.trial_id == prefix]
    if exact:
        return exact[0]
    if not matches:
        starts = {r.trial_id[: max(4, len(prefix))] for r in records}
        close = get_close_matches(prefix, sorted(starts), n=1, cutoff=0.6)
        meant = f"did you mean {close[0]!r}? " if close else ""
        raise UserError(f"no trial {prefix!r} in this store: {meant}`corewise show` lists the ids")
    some = ", ".join(r.trial_id for r in matches[:5])
    raise UserError(f"{len(matches)} trials begin with {prefix!r} ({some} ...): use a longer prefix")


def draw_trial(console: Console, record: Record) -> None:
    """Print everything known about a trial, the most important first."""
    title = Text.assemble(("trial ", "bold"), (clean_text(record.trial_id), "bold"), "  ")
    console.print(title + Text(record.status, style=f"bold {_STYLES[record.status]}"))
    if record.reason:
        category = f" ({clean_text(record.kind)})" if record.kind else ""
        console.print(
            Padding(
                Text(f"{_indent_lines(record.reason)}{category}", style=_STYLES[record.status]), _INDENT, expand=False
            )
        )
    question = f": {clean_text(record.question)}" if record.question else ""
    console.print(Text(f"study {clean_text(record.study)}{question}"))
    _draw_mapping(console, "parameters", {n: format_value(v) for n, v in record.params.items()})
    _draw_mapping(console, "metrics", {n: _format_metric(n, v) for n, v in sorted(record.metrics.items())})
    _draw_runs(console, "runs", record.runs)
    _draw_spread(console, record.runs)
    _draw_runs(console, "disturbed runs that were repeated", record.disturbed)
    _draw_histogram(console, record.samples_s)
    _draw_text(console, "counters", describe_counters(record))
    _draw_text(console, "notes", [clean_text(note) for note in record.notes])
    _draw_mapping(console, "machine", {n: _format_fact(n, v) for n, v in record.machine.items()})
    _draw_mapping(console, "versions", {**record.versions, "corewise": record.corewise_version})
    _draw_mapping(console, "versions of the code measured", record.code_versions)
    _draw_text(console, "environment", [replace_unprintable(f"{n}={v}") for n, v in record.env.items()])
    _draw_text(console, "command", [_indent_lines(record.command)] if record.command else [])
    _draw_text(console, "when", [f"{clean_text(record.started_at)} to {clean_text(record.finished_at)}"])


def describe_counters(record: Record) -> list[str]:
    """Say how the first rank counted instructions, or why it did not; nothing for records without such facts."""
    ranks = next((run.get("ranks") or () for run in record.runs if run.get("status") == "ok"), ())
    facts = ranks[0] if ranks else {}
    if facts.get("counters") == PERF:
        share = facts.get("perf_running_share")
        parts = [f"scope: {facts.get('counters_scope')}", f"misses: {facts.get('perf_miss_event', 'not counted')}"]
        if isinstance(share, float) and share < 1:
            parts.append(f"counted in {format_percent(share)} % of the time and extrapolated")
        return [clean_text(f"{PERF}: {'; '.join(parts)}")]
    reason = facts.get("counters_reason")
    return [clean_text(f"{PERF}: none: {reason}")] if reason else []


def _draw_mapping(console: Console, title: str, values: Mapping[str, str]) -> None:
    """Print names and values in as many columns as fit."""
    if not values:
        return
    _draw_title(console, title)
    names = {format_parameter_name(n): clean_text(str(v)) for n, v in values.items()}
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
            reason = clean_text(str(run.get("reason") or run.get("status")))
            drawn.add_row(str(i), "0", "-", "-", "-", Text(reason, style="red"))
            continue
        figures = (format_duration(f(samples_s)) for f in (statistics.median, min, max))
        drawn.add_row(str(i), str(len(samples_s)), *figures, draw_sparkline(samples_s, _SPARK_WIDTH))
    console.print(Padding(drawn, _INDENT, expand=False))
    for i, run in enumerate(runs, 1):
        for disturbance in run.get("disturbances") or ():
            console.print(
                Padding(
                    Text(f"run {i} disturbed: {clean_text(str(disturbance))}", style="yellow"), _INDENT, expand=False
                )
            )


def _draw_spread(console: Console, runs: Sequence[Mapping[str, Any]]) -> None:
    """Print statistics of the step time over processes, as papers report them."""
    from corewise.stats.estimate import describe_values

    medians_s = [statistics.median(run["samples_s"]) for run in runs if run.get("samples_s")]
    if len(medians_s) < 2:
        return
    summary = describe_values(medians_s)
    figures = {"mean": format_duration(summary.mean), "median": format_duration(summary.median)}
    if summary.standard_deviation is not None:
        figures["standard deviation"] = format_duration(summary.standard_deviation)
    if summary.coefficient_of_variation is not None:
        figures["coefficient of variation"] = f"{format_percent(summary.coefficient_of_variation)} %"
    if summary.margin_of_error is not None:
        figures["margin of error"] = format_duration(summary.margin_of_error)
    _draw_mapping(console, f"step time over {len(medians_s)} processes", figures)


def _draw_histogram(console: Console, samples_s: Sequence[float]) -> None:
    bins = count_histogram(samples_s)
    if len(bins) < 2:
        return
    _draw_title(console, f"distribution of {len(samples_s)} samples")
    most = max(count for *_, count in bins)
    for low, high, count in bins:
        bar = "█" * max(round(_BAR_WIDTH * count / most), 1 if count else 0)
        edges = f"{format_duration(low, digits=4):>9} to {format_duration(high, digits=4):>9}"
        console.print(Padding(Text.assemble(f"{edges}  ", (bar, "cyan"), f" {count}"), _INDENT, expand=False))


def _draw_text(console: Console, title: str, lines: Sequence[str]) -> None:
    if lines:
        _draw_title(console, title)
    for line in lines:
        # Lines are neither cut nor wrapped, so that they can be copied.
        console.print(Text("  " + line), soft_wrap=True)


def _draw_title(console: Console, title: str) -> None:
    console.print()
    console.print(Text(title, style="bold"))


def _format_metric(name: str, value: float) -> str:
    if name.endswith("_s") and not name.endswith("_per_s"):
        return format_duration(value)
    if name.endswith(("_s_low", "_s_high")) and "_per_s_" not in name:
        return format_duration(value)
    if name.endswith("_bytes"):
        return format_memory(value)
    if name.endswith("_cv"):
        return f"{format_percent(value)} %"
    return format_number(value) if value != int(value) else f"{value:,.0f}"


def _format_fact(name: str, value: Any) -> str:
    return format_memory(value) if name.endswith("_bytes") and isinstance(value, (int, float)) else format_value(value)


def _indent_lines(text: str) -> str:
    """Return indented lines without control characters."""
    return "\n  ".join(replace_unprintable(line) for line in text.splitlines())
