"""The ceilings within `corewise doctor`: measured when asked for, kept, and shown."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from corewise.machine.ceilings import BANDWIDTH_KINDS, Ceiling, Ceilings, value_used
from corewise.machine.kept_ceilings import Kept, allocation_shape, keep, read_kept
from corewise.machine.model import Finding
from corewise.spec.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from corewise.cli.doctor import Diagnosis

DAMAGED = "ceilings-damaged"  # the key of a finding
HOW = "`corewise doctor --ceilings` measures them in under a minute"
PRECISIONS = ("float64", "float32", "tf32", "bfloat16", "int8")
MAX_NOTES = 6
RAISED = "↑"
KIND_WORDS = {"to_device": "to device", "from_device": "from device"}


def kept_here(diagnosis: "Diagnosis") -> Kept:
    """The ceilings kept for this machine and allocation."""
    from corewise.machine.facts import host_class

    shape = allocation_shape(diagnosis.topology, diagnosis.allocation)
    runtime = next((name for name in ("torch", "numpy") if diagnosis.software.packages.get(name)), "")
    version = diagnosis.software.packages.get(runtime) or ""
    try:
        cache = _cache()
    except RuntimeError:  # no home folder
        return Kept(None)
    return read_kept(cache, host_class(diagnosis.facts, diagnosis.topology), shape, runtime, version)


def measured_here(diagnosis: "Diagnosis") -> Ceilings:
    """The ceilings, measured now, with progress on a terminal."""
    from corewise.engine.ceilings import measure_ceilings
    from corewise.engine.machine_view import Host
    from corewise.machine.facts import host_class

    host = Host(
        diagnosis.topology,
        diagnosis.allocation,
        diagnosis.facts,
        host_class(diagnosis.facts, diagnosis.topology),
    )
    with _progress() as tell:
        return measure_ceilings(host, tell)


def keep_here(diagnosis: "Diagnosis", measured: Ceilings, again: bool = False) -> "Diagnosis":
    """The diagnosis with what is kept now; UserError where nothing could be written."""
    try:
        cache = _cache()
    except RuntimeError as problem:
        raise UserError(
            "no home folder to keep the ceilings in: name a folder in XDG_CACHE_HOME"
        ) from problem
    keep(cache, measured, again)
    kept = kept_here(diagnosis)
    others = tuple(each for each in diagnosis.findings if each.key != DAMAGED)
    return replace(diagnosis, ceilings=kept.ceilings or measured, findings=(*others, *damage_findings(kept)))


def damage_findings(kept: Kept) -> tuple[Finding, ...]:
    """What is to be said of files that could not be read."""
    return tuple(
        Finding(
            DAMAGED,
            "warning",
            "Kept ceilings are damaged and were left out.",
            evidence,
            "Measure them again: `corewise doctor --ceilings`; a file that is named still can be deleted.",
        )
        for evidence in kept.damage
    )


def show_ceilings(ceilings: Ceilings | None, console: "Console") -> None:
    """Print the ceilings as two tables, or how to get them."""
    from rich.text import Text

    if ceilings is None:
        console.print(Text("Ceilings", style="bold"))
        console.print(Text("  not measured yet on this machine with this allocation:"))
        console.print(Text(f"  {HOW}"))
        console.print()
        return
    when = ceilings.measured_at[:16].replace("T", " ")
    title = Text("Ceilings", style="bold")
    console.print(title + Text(f"  {ceilings.runtime} {ceilings.version}, {when} UTC", style="not bold dim"))
    bandwidths = [each for each in ceilings.figures if not each.is_product]
    _table(console, "GB/s", bandwidths, BANDWIDTH_KINDS, lambda each: each.kind)
    _table(
        console, "Gflop/s", [e for e in ceilings.figures if e.is_product], PRECISIONS, lambda each: each.dtype
    )
    console.print(Text("  best of several samples; −n %: how far their median lies below it", style="dim"))
    if any(value_used(each, ceilings.figures) > each.best for each in ceilings.figures):
        console.print(Text(f"  {RAISED}: fewer threads reached this, so these can too", style="dim"))
    for note in ceilings.notes[:MAX_NOTES]:
        console.print(Text(f"  {note}", style="yellow"))
    if ceilings.notes[MAX_NOTES:]:
        console.print(Text(f"  … and {len(ceilings.notes) - MAX_NOTES} more notes: --json has them", "dim"))
    console.print()


def place_words(ceiling: Ceiling) -> str:
    """Where a ceiling holds: 4 threads, 8 threads on node 1, GPU 0."""
    if ceiling.gpu is not None:
        return f"GPU {ceiling.gpu}"
    threads = "1 thread" if ceiling.threads == 1 else f"{ceiling.threads} threads"
    if ceiling.placement == "node":
        return f"{threads}, node {','.join(map(str, ceiling.nodes))}"
    return f"{threads}, spread" if ceiling.placement == "spread" else threads


def _table(
    console: "Console",
    unit: str,
    figures: Sequence[Ceiling],
    order: Sequence[str],
    column: Callable[[Ceiling], str],
) -> None:
    from rich.table import Table
    from rich.text import Text

    names = [name for name in order if any(column(each) == name for each in figures)]
    if not names:
        return
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=True)
    table.add_column(unit, no_wrap=True, min_width=12)
    for name in names:
        table.add_column(KIND_WORDS.get(name, name), justify="right", no_wrap=True)
    rows: dict[str, dict[str, Ceiling]] = {}
    for each in figures:
        rows.setdefault(place_words(each), {})[column(each)] = each
    for place, cells in rows.items():
        table.add_row(Text(place), *(Text(_cell(cells.get(name), figures)) for name in names))
    console.print(table)


def _cell(ceiling: Ceiling | None, figures: Sequence[Ceiling]) -> str:
    """The value that trials are judged by, marked where it is not what this place itself reached."""
    if ceiling is None:
        return "-"
    used = value_used(ceiling, figures)
    told = f"{used:,.{0 if used >= 100 else 1}f}"
    return f"{told} {RAISED}" if used > ceiling.best else f"{told} −{100 * ceiling.spread:.0f} %"


@contextmanager
def _progress() -> Iterator[Callable[[int, int, str], None]]:
    if not sys.stderr.isatty():
        yield lambda done, total, words: None
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status(Text("ceilings")) as status:
        yield lambda done, total, words: status.update(Text(f"ceilings {done + 1}/{total}: {words}"))


def _cache() -> Path:
    from corewise.spec.cache_folder import default_cache

    return default_cache()
