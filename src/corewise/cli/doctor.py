"""`corewise doctor`: show the machine, the allocation, the software, and problems to fix before measuring."""

import json
import sys
from collections import Counter
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from corewise.cli.common_options import JsonOption
from corewise.cli.process.interrupts import compute_exit_code
from corewise.errors import UserError
from corewise.machine.machine_model import Allocation, MachineFinding, Topology

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from corewise.machine.ceilings.table import Ceilings
    from corewise.machine.counter_sources import CounterSource
    from corewise.machine.facts import MachineFacts
    from corewise.machine.foreign_load import ForeignLoad
    from corewise.machine.software import Software

GIB = 1 << 30
# Exit code if ceilings were measured but could not be saved.
NOT_SAVED = 1
# Longer lines are hard to read.
MAX_WIDTH = 100
COLOURS = {"error": "bold red", "warning": "yellow", "info": "cyan"}


@dataclass(frozen=True)
class Diagnosis:
    """The machine, the allocation, the software, and findings about them."""

    topology: Topology
    allocation: Allocation
    facts: "MachineFacts"
    software: "Software"
    findings: tuple[MachineFinding, ...]
    # What other processes use of the allocation; None if it was not measured.
    load: "ForeignLoad | None" = None
    # Saved earlier, or measured now.
    ceilings: "Ceilings | None" = None
    counters: "tuple[CounterSource, ...]" = ()

    def to_json(self) -> dict[str, Any]:
        """Return the diagnosis as JSON values."""
        return {
            "allocation": asdict(self.allocation),
            "topology": asdict(self.topology),
            "facts": self.facts.to_json(),
            "software": self.software.to_json(),
            "foreign_load": None if self.load is None else self.load.to_json(),
            "findings": [asdict(finding) for finding in self.findings],
            "counters": {each.name: each.problem for each in self.counters},
            "ceilings": None if self.ceilings is None else self.ceilings.to_json(),
        }


def doctor(
    ceilings: Annotated[
        bool, typer.Option("--ceilings", help="Measure bandwidth and peak flop rates and save them; under a minute.")
    ] = False,
    again: Annotated[
        bool, typer.Option("--again", help="With --ceilings: replace saved values even if they are higher.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show this machine, the part of it you may use, the installed software, and problems to fix.

    Once ceilings are measured, each trial on this machine reports the fraction of its ceiling that it
    reaches. If they are measured again, higher values replace lower ones.

    Examples:

      corewise doctor

      corewise doctor --ceilings

      corewise doctor --json | jq .ceilings.peak
    """
    if again and not ceilings:
        raise UserError("--again only applies to --ceilings: add --ceilings")
    diagnosis = diagnose()
    not_saved: UserError | None = None
    if ceilings:
        from corewise.cli.render.ceilings import measure_here, save_here

        try:
            measured = measure_here(diagnosis)
        except KeyboardInterrupt:
            print("corewise: interrupted; no ceilings were saved", file=sys.stderr)
            raise typer.Exit(compute_exit_code()) from None
        diagnosis = replace(diagnosis, ceilings=measured)
        try:
            diagnosis = save_here(diagnosis, measured, again)
        # The values are shown even if they cannot be saved.
        except UserError as problem:
            not_saved = problem
    if as_json:
        typer.echo(json.dumps(diagnosis.to_json(), indent=2))
    else:
        from corewise.cli.render.console import make_console

        console = make_console()
        console.width = min(console.width, MAX_WIDTH)
        print_diagnosis(diagnosis, console)
    if not_saved is not None:
        print(f"corewise: {not_saved}", file=sys.stderr)
        raise typer.Exit(NOT_SAVED)


def diagnose() -> Diagnosis:
    """Read the machine, the allocation and the software, and check them."""
    from corewise.cli.render.ceilings import describe_damage, read_saved
    from corewise.machine.allocation import read_allocation
    from corewise.machine.counter_sources import read_counter_sources
    from corewise.machine.facts import read_facts
    from corewise.machine.foreign_load import LoadWindow
    from corewise.machine.machine_findings import collect_machine_findings
    from corewise.machine.software import read_software
    from corewise.machine.topology import read_topology

    # The window stays open while everything else is read.
    window = LoadWindow()
    topology = read_topology()
    allocation = read_allocation(topology)
    software = read_software()
    facts = read_facts(topology=topology)
    load = window.measure(allocation.cpus)
    findings = collect_machine_findings(topology, allocation, facts, software, load=load)
    diagnosis = Diagnosis(topology, allocation, facts, software, findings, load, counters=read_counter_sources())
    saved = read_saved(diagnosis)
    return replace(diagnosis, findings=(*findings, *describe_damage(saved)), ceilings=saved.ceilings)


def print_diagnosis(diagnosis: Diagnosis, console: "Console") -> None:
    """Print the diagnosis in six sections, the findings last."""
    from corewise.cli.render.ceilings import print_ceilings

    _print_section(console, "Machine", describe_machine(diagnosis.topology, diagnosis.facts))
    _print_section(console, "Allocation", describe_allocation(diagnosis.allocation, diagnosis.topology))
    _print_section(console, "Software", describe_software(diagnosis.software))
    _print_section(console, "Counters", [(each.name, each.describe()) for each in diagnosis.counters])
    print_ceilings(diagnosis.ceilings, console)
    _print_findings(console, diagnosis.findings)


def describe_machine(topology: Topology, facts: "MachineFacts") -> list[tuple[str, str]]:
    """Return labels and texts about the machine."""
    memory, load = facts.memory, facts.load
    rows = [
        ("host", f"{facts.hostname}, Linux {facts.kernel}" + (", virtual machine" if facts.virtualised else "")),
        ("processor", " · ".join(part for part in (facts.cpu_model, facts.microarchitecture) if part)),
        ("CPUs", _format_shape(topology)),
        *([("core types", _format_core_classes(topology, facts))] if facts.core_classes else []),
        ("instructions", " ".join(facts.instruction_sets) or "unknown"),
        ("caches", _format_caches(facts)),
        (
            "memory",
            f"{_format_gib(memory.total_bytes)}, {_format_gib(memory.available_bytes)} available" + _format_swap(facts),
        ),
        ("huge pages", f"transparent: {memory.transparent_huge_pages or 'unknown'}" + _format_huge_pages(facts)),
        ("frequency", _format_frequency(facts)),
        ("load", f"{load.load_1min:g} over a minute; others use {load.others_cpus:.1f} CPUs now"),
    ]
    if len(memory.nodes) > 1:
        sizes = ", ".join(f"{node.node}: {_format_gib(node.total_bytes)}" for node in memory.nodes)
        rows.insert([label for label, _ in rows].index("memory") + 1, ("NUMA memory", sizes))
    for (name, memory_bytes), num in Counter([(gpu.name, gpu.memory_bytes) for gpu in facts.gpus]).items():
        size = "" if memory_bytes is None else f", {_format_gib(memory_bytes)}"
        rows.append(("GPU", (f"{num} × " if num > 1 else "") + name + size + (" each" if num > 1 and size else "")))
    return rows


def describe_allocation(allocation: Allocation, topology: Topology) -> list[tuple[str, str]]:
    """Return labels and texts about the allocation and each limit that reduced it."""
    from corewise.machine.topology import format_cpu_list

    nodes = topology.select_cpus(allocation.cpus).nodes
    rows = [
        ("CPUs", f"{len(allocation.cpus)} of {len(topology.cpus)}: {format_cpu_list(allocation.cpus)}"),
        ("cores", f"{allocation.num_cores}, on NUMA node {format_cpu_list(nodes)}"),
        ("memory", _format_gib(allocation.memory_bytes)),
    ]
    for limit in allocation.limits:
        left = "" if limit.source == "memory" else f"leaves {limit.num_cpus} — "
        rows.append((limit.source + " limit", left + limit.detail))
    return rows if allocation.limits else [*rows, ("limits", "none: the whole machine is available")]


def describe_software(software: "Software") -> list[tuple[str, str]]:
    """Return labels and texts about the installed software."""
    versions = [f"{name} {version}" for name, version in software.packages.items() if version]
    rows = [("Python", f"{software.python}, glibc {software.glibc or 'none'}"), ("packages", ", ".join(versions))]
    rows += [(name, path or "not found") for name, path in software.libraries.items()]
    present = [name for name, path in software.launchers.items() if path]
    return [*rows, ("launchers", ", ".join(present) or "none on PATH")]


def _print_section(console: "Console", title: str, rows: list[tuple[str, str]]) -> None:
    table = _make_grid()
    for label, text in rows:
        table.add_row(_make_text(label, "dim"), _make_text(text))
    console.print(_make_text(title, "bold"))
    console.print(table)
    console.print()


def _print_findings(console: "Console", findings: tuple[MachineFinding, ...]) -> None:
    console.print(_make_text("Findings", "bold"))
    if not findings:
        console.print(_make_text("  none: ready to measure"))
    table = _make_grid()
    for number, finding in enumerate(findings):
        if number:
            table.add_row()
        table.add_row(_make_text(finding.severity, COLOURS[finding.severity]), _make_text(finding.claim, "bold"))
        table.add_row("", _make_text(finding.evidence, "dim"))
        table.add_row("", _make_text(f"→ {finding.remedy}"))
    console.print(table)


def _make_grid() -> "Table":
    from rich.table import Table

    table = Table.grid(padding=(0, 2, 0, 0), pad_edge=True)
    table.add_column(min_width=12, no_wrap=True)
    table.add_column(overflow="fold")
    return table


def _make_text(text: str, style: str = "") -> Any:
    # Text, not markup: brackets in names are printed as they are.
    from rich.text import Text

    return Text(text, style=style)


def _format_shape(topology: Topology) -> str:
    num_sockets, num_nodes = len(topology.sockets), len(topology.nodes)
    parts = [_format_count(len(topology.cpus), "CPU"), _format_count(topology.num_cores, "core")]
    parts += [_format_count(num_sockets, "socket"), _format_count(num_nodes, "NUMA node")]
    return ", ".join(parts) + (f", {len(topology.offline)} offline" if topology.offline else "")


def _format_core_classes(topology: Topology, facts: "MachineFacts") -> str:
    from corewise.machine.topology import format_cpu_list

    shown = [(topology.select_cpus(each.cpus).num_cores, each) for each in facts.core_classes]
    return ", ".join(f"{num} {each.name} (CPUs {format_cpu_list(each.cpus)})" for num, each in shown)


def _format_caches(facts: "MachineFacts") -> str:
    caches = Counter([(c.level, c.type, c.size_bytes, len(c.shared_cpus)) for c in facts.caches])
    short = {"Data": "d", "Instruction": "i"}
    shown = [
        f"{num} × L{level}{short.get(cache_type, '')} {_format_size(size)}"
        + (f" ({num_cpus} CPUs each)" if num_cpus > 2 else "")
        for (level, cache_type, size, num_cpus), num in caches.items()
    ]
    return ", ".join(shown) or "unknown"


def _format_swap(facts: "MachineFacts") -> str:
    memory = facts.memory
    if not memory.swap_total_bytes:
        return ", no swap"
    return f", {_format_gib(memory.swap_used_bytes)} of {_format_gib(memory.swap_total_bytes)} swap used"


def _format_huge_pages(facts: "MachineFacts") -> str:
    memory = facts.memory
    reserved = (
        f"{memory.num_free_huge_pages} of {_format_size(memory.huge_page_bytes)}" if memory.huge_page_bytes else "none"
    )
    return f"; reserved and free: {reserved}"


def _format_frequency(facts: "MachineFacts") -> str:
    if not facts.frequency.governors:
        return "not reported by the kernel"
    return f"{', '.join(facts.frequency.governors)} ({facts.frequency.driver or 'unknown driver'})"


def _format_count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _format_gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.1f} GiB"


def _format_size(num_bytes: int) -> str:
    for unit, scale in (("GiB", GIB), ("MiB", 1 << 20)):
        if num_bytes >= scale:
            return f"{num_bytes / scale:g} {unit}"
    return f"{num_bytes / 1024:g} KiB"
