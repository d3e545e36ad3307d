"""The ceilings of `corewise doctor`: measure, save and print them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from corewise.cache_folder import find_cache_folder
from corewise.cli.render.console import show_status
from corewise.errors import UserError
from corewise.machine.ceilings.cache import (
    CachedCeilings,
    compute_allocation_shape,
    read_cached_ceilings,
    save_ceilings,
)
from corewise.machine.ceilings.table import BANDWIDTH_OPERATIONS, Ceiling, Ceilings, find_effective_value
from corewise.machine.machine_model import MachineFinding

if TYPE_CHECKING:
    from rich.console import Console

    from corewise.cli.doctor import Diagnosis

# The key of the finding on unusable files.
DAMAGED = "ceilings-damaged"
HINT = "`corewise doctor --ceilings` measures them in under a minute"
PRECISIONS = ("float64", "float32", "tf32", "bfloat16", "int8")
MAX_NOTES = 6
RAISED = "↑"
TRANSFER_NAMES = {"to_device": "to device", "from_device": "from device"}


def read_saved(diagnosis: "Diagnosis") -> CachedCeilings:
    """Read the ceilings saved for this machine and allocation."""
    from corewise.machine.facts import compute_host_class

    shape = compute_allocation_shape(diagnosis.topology, diagnosis.allocation)
    runtime = next((name for name in ("torch", "numpy") if diagnosis.software.packages.get(name)), "")
    version = diagnosis.software.packages.get(runtime) or ""
    try:
        cache = find_cache_folder()
    except RuntimeError:
        # There is no home folder.
        return CachedCeilings(None)
    return read_cached_ceilings(cache, compute_host_class(diagnosis.facts, diagnosis.topology), shape, runtime, version)


def measure_here(diagnosis: "Diagnosis") -> Ceilings:
    """Measure the ceilings, with progress on a terminal."""
    from corewise.machine.facts import compute_host_class
    from corewise.run.ceiling_trials import measure_ceilings
    from corewise.run.machine_view import Host

    host = Host(
        diagnosis.topology,
        diagnosis.allocation,
        diagnosis.facts,
        compute_host_class(diagnosis.facts, diagnosis.topology),
    )
    with show_status("ceilings") as show:
        return measure_ceilings(host, lambda done, total, text: show(f"ceilings {done + 1}/{total}: {text}"))


def save_here(diagnosis: "Diagnosis", measured: Ceilings, again: bool = False) -> "Diagnosis":
    """Save the ceilings and return the diagnosis with the saved values; raise a UserError if that fails."""
    try:
        cache = find_cache_folder()
    except RuntimeError as problem:
        raise UserError("no home folder for the ceilings: set XDG_CACHE_HOME to a folder") from problem
    save_ceilings(cache, measured, again)
    cached = read_saved(diagnosis)
    others = tuple(each for each in diagnosis.findings if each.key != DAMAGED)
    return replace(diagnosis, ceilings=cached.ceilings or measured, findings=(*others, *describe_damage(cached)))


def describe_damage(cached: CachedCeilings) -> tuple[MachineFinding, ...]:
    """Return findings on files that could not be read."""
    return tuple(
        MachineFinding(
            DAMAGED,
            "warning",
            "Saved ceilings cannot be used and were ignored.",
            evidence,
            "Measure them again with `corewise doctor --ceilings`, or delete the file.",
        )
        for evidence in cached.problems
    )


def print_ceilings(ceilings: Ceilings | None, console: "Console") -> None:
    """Print the ceilings as two tables, or how to measure them."""
    from rich.text import Text

    if ceilings is None:
        console.print(Text("Ceilings", style="bold"))
        console.print(Text("  not measured on this machine with this allocation yet:"))
        console.print(Text(f"  {HINT}"))
        console.print()
        return
    when = ceilings.measured_at[:16].replace("T", " ")
    title = Text("Ceilings", style="bold")
    console.print(title + Text(f"  {ceilings.runtime} {ceilings.version}, {when} UTC", style="not bold dim"))
    bandwidths = [each for each in ceilings.figures if not each.is_product]
    _print_table(console, "GB/s", bandwidths, BANDWIDTH_OPERATIONS, lambda each: each.operation)
    _print_table(console, "Gflop/s", [e for e in ceilings.figures if e.is_product], PRECISIONS, lambda each: each.dtype)
    console.print(Text("  best of several samples; −n %: distance of the median below the best", style="dim"))
    if any(find_effective_value(each, ceilings.figures) > each.best for each in ceilings.figures):
        console.print(Text(f"  {RAISED}: reached with fewer threads", style="dim"))
    for note in ceilings.notes[:MAX_NOTES]:
        console.print(Text(f"  {note}", style="yellow"))
    if ceilings.notes[MAX_NOTES:]:
        console.print(Text(f"  … and {len(ceilings.notes) - MAX_NOTES} more notes: --json has them", "dim"))
    console.print()


def describe_place(ceiling: Ceiling) -> str:
    """Return where a ceiling applies: 4 threads, 8 threads on node 1, GPU 0."""
    if ceiling.gpu is not None:
        return f"GPU {ceiling.gpu}"
    threads = "1 thread" if ceiling.threads == 1 else f"{ceiling.threads} threads"
    if ceiling.placement == "node":
        return f"{threads}, node {','.join(map(str, ceiling.nodes))}"
    return f"{threads}, spread" if ceiling.placement == "spread" else threads


def _print_table(
    console: "Console", unit: str, figures: Sequence[Ceiling], order: Sequence[str], column: Callable[[Ceiling], str]
) -> None:
    from rich.table import Table
    from rich.text import Text

    names = [name for name in order if any(column(each) == name for each in figures)]
    if not names:
        return
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=True)
    table.add_column(unit, no_wrap=True, min_width=12)
    for name in names:
        table.add_column(TRANSFER_NAMES.get(name, name), justify="right", no_wrap=True)
    rows: dict[str, dict[str, Ceiling]] = {}
    for each in figures:
        rows.setdefault(describe_place(each), {})[column(each)] = each
    for place, cells in rows.items():
        table.add_row(Text(place), *(Text(_format_cell(cells.get(name), figures)) for name in names))
    console.print(table)


def _format_cell(ceiling: Ceiling | None, figures: Sequence[Ceiling]) -> str:
    """Format the value that trials are compared with; mark it if another place reached it."""
    if ceiling is None:
        return "-"
    used = find_effective_value(ceiling, figures)
    text = f"{used:,.{0 if used >= 100 else 1}f}"
    return f"{text} {RAISED}" if used > ceiling.best else f"{text} −{100 * ceiling.spread:.0f} %"
