"""`corewise doctor`: the machine, our part of it, what is installed, and what to know before measuring."""

import json
import sys
from collections import Counter
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from corewise.cli.exit_codes import INTERRUPTED
from corewise.machine.model import Allocation, Finding, Topology
from corewise.spec.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from corewise.machine.ceilings import Ceilings
    from corewise.machine.facts import MachineFacts
    from corewise.machine.libraries import Software

GIB = 1 << 30
NOT_KEPT = 1  # exit code where ceilings were measured and could not be kept
MAX_WIDTH = 100  # longer lines are hard to read
COLOURS = {"error": "bold red", "warning": "yellow", "info": "cyan"}


@dataclass(frozen=True)
class Diagnosis:
    """All that doctor knows."""

    topology: Topology
    allocation: Allocation
    facts: "MachineFacts"
    software: "Software"
    findings: tuple[Finding, ...]
    ceilings: "Ceilings | None" = None  # as kept, or measured now

    def to_json(self) -> dict[str, Any]:
        """The diagnosis as JSON values."""
        return {
            "allocation": asdict(self.allocation),
            "topology": asdict(self.topology),
            "facts": self.facts.to_json(),
            "software": self.software.to_json(),
            "findings": [asdict(finding) for finding in self.findings],
            "ceilings": None if self.ceilings is None else self.ceilings.to_json(),
        }


def doctor(
    ceilings: Annotated[
        bool,
        typer.Option(
            "--ceilings", help="Measure bandwidth and peak flop rates, and keep them; under a minute."
        ),
    ] = False,
    again: Annotated[
        bool,
        typer.Option("--again", help="With --ceilings: drop those kept so far, even where they are higher."),
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Show this machine, what part of it may be used, what is installed, and what to mend.

    With ceilings measured, every trial run here tells how much of the attainable it reaches. Measured once
    more, a higher figure replaces a lower one.

    Examples:

      corewise doctor

      corewise doctor --ceilings

      corewise doctor --json | jq .ceilings.peak
    """
    if again and not ceilings:
        raise UserError("--again says how ceilings are kept: add --ceilings")
    diagnosis = diagnose()
    not_kept: UserError | None = None
    if ceilings:
        from corewise.cli.ceilings import keep_here, measured_here

        try:
            measured = measured_here(diagnosis)
        except KeyboardInterrupt:
            print("corewise: interrupted: nothing that was measured is kept", file=sys.stderr)
            raise typer.Exit(INTERRUPTED) from None
        diagnosis = replace(diagnosis, ceilings=measured)
        try:
            diagnosis = keep_here(diagnosis, measured, again)
        except UserError as problem:  # the figures are shown all the same
            not_kept = problem
    if json_:
        typer.echo(json.dumps(diagnosis.to_json(), indent=2))
    else:
        from corewise.cli.terminal import make_console

        console = make_console()
        console.width = min(console.width, MAX_WIDTH)
        show(diagnosis, console)
    if not_kept is not None:
        print(f"corewise: {not_kept}", file=sys.stderr)
        raise typer.Exit(NOT_KEPT)


def diagnose() -> Diagnosis:
    """What this machine is, read now."""
    from corewise.cli.ceilings import damage_findings, kept_here
    from corewise.machine.allocation import read_allocation
    from corewise.machine.facts import read_facts
    from corewise.machine.findings import machine_findings
    from corewise.machine.libraries import read_software
    from corewise.machine.topology import read_topology

    topology = read_topology()
    allocation = read_allocation(topology)
    software = read_software()
    facts = read_facts(topology=topology)
    findings = machine_findings(topology, allocation, facts, software)
    diagnosis = Diagnosis(topology, allocation, facts, software, findings)
    kept = kept_here(diagnosis)
    return replace(diagnosis, findings=(*findings, *damage_findings(kept)), ceilings=kept.ceilings)


def show(diagnosis: Diagnosis, console: "Console") -> None:
    """Print the diagnosis in five sections, the findings last."""
    from corewise.cli.ceilings import show_ceilings

    _section(console, "Machine", machine_rows(diagnosis.topology, diagnosis.facts))
    _section(console, "Allocation", allocation_rows(diagnosis.allocation, diagnosis.topology))
    _section(console, "Software", software_rows(diagnosis.software))
    show_ceilings(diagnosis.ceilings, console)
    _show_findings(console, diagnosis.findings)


def machine_rows(topology: Topology, facts: "MachineFacts") -> list[tuple[str, str]]:
    """Label and text of what the machine is."""
    memory, load = facts.memory, facts.load
    rows = [
        (
            "host",
            f"{facts.hostname}, Linux {facts.kernel}" + (", virtual machine" if facts.virtualised else ""),
        ),
        ("processor", " · ".join(part for part in (facts.cpu_model, facts.microarchitecture) if part)),
        ("CPUs", _shape(topology)),
        ("instructions", " ".join(facts.instruction_sets) or "none known"),
        ("caches", _caches(facts)),
        ("memory", f"{_gib(memory.total_bytes)}, {_gib(memory.available_bytes)} available" + _swap(facts)),
        ("huge pages", f"transparent: {memory.transparent_huge_pages or 'unknown'}" + _huge_pages(facts)),
        ("frequency", _frequency(facts)),
        ("load", f"{load.load_1min:g} over a minute; others use {load.others_cpus:.1f} CPUs now"),
    ]
    if len(memory.nodes) > 1:
        sizes = ", ".join(f"{node.node}: {_gib(node.total_bytes)}" for node in memory.nodes)
        rows.insert(6, ("NUMA memory", sizes))
    for (name, memory_bytes), num in Counter([(gpu.name, gpu.memory_bytes) for gpu in facts.gpus]).items():
        size = "" if memory_bytes is None else f", {_gib(memory_bytes)}"
        rows.append(
            ("GPU", (f"{num} × " if num > 1 else "") + name + size + (" each" if num > 1 and size else ""))
        )
    return rows


def allocation_rows(allocation: Allocation, topology: Topology) -> list[tuple[str, str]]:
    """Label and text of what we may use and of each limit that narrowed it."""
    from corewise.machine.topology import format_cpu_list

    nodes = topology.restricted(allocation.cpus).nodes
    rows = [
        ("CPUs", f"{len(allocation.cpus)} of {len(topology.cpus)}: {format_cpu_list(allocation.cpus)}"),
        ("cores", f"{allocation.num_cores}, on NUMA node {format_cpu_list(nodes)}"),
        ("memory", _gib(allocation.memory_bytes)),
    ]
    for limit in allocation.limits:
        left = "" if limit.source == "memory" else f"leaves {limit.num_cpus} — "
        rows.append((limit.source + " limit", left + limit.detail))
    return rows if allocation.limits else [*rows, ("limits", "none: the whole machine is ours")]


def software_rows(software: "Software") -> list[tuple[str, str]]:
    """Label and text of what is installed."""
    versions = [f"{name} {version}" for name, version in software.packages.items() if version]
    rows = [
        ("Python", f"{software.python}, glibc {software.glibc or 'none'}"),
        ("packages", ", ".join(versions)),
    ]
    rows += [(name, path or "not found") for name, path in software.libraries.items()]
    present = [name for name, path in software.launchers.items() if path]
    return [*rows, ("launchers", ", ".join(present) or "none on PATH")]


def _section(console: "Console", title: str, rows: list[tuple[str, str]]) -> None:
    table = _grid()
    for label, text in rows:
        table.add_row(_text(label, "dim"), _text(text))
    console.print(_text(title, "bold"))
    console.print(table)
    console.print()


def _show_findings(console: "Console", findings: tuple[Finding, ...]) -> None:
    console.print(_text("Findings", "bold"))
    if not findings:
        console.print(_text("  none: ready to measure"))
    table = _grid()
    for number, finding in enumerate(findings):
        if number:
            table.add_row()
        table.add_row(_text(finding.severity, COLOURS[finding.severity]), _text(finding.claim, "bold"))
        table.add_row("", _text(finding.evidence, "dim"))
        table.add_row("", _text(f"→ {finding.remedy}"))
    console.print(table)


def _grid() -> "Table":
    from rich.table import Table

    table = Table.grid(padding=(0, 2, 0, 0), pad_edge=True)
    table.add_column(min_width=12, no_wrap=True)
    table.add_column(overflow="fold")
    return table


def _text(text: str, style: str = "") -> Any:
    from rich.text import Text  # not markup: a file's brackets stay brackets

    return Text(text, style=style)


def _shape(topology: Topology) -> str:
    num_sockets, num_nodes = len(topology.sockets), len(topology.nodes)
    parts = [_count(len(topology.cpus), "CPU"), _count(topology.num_cores, "core")]
    parts += [_count(num_sockets, "socket"), _count(num_nodes, "NUMA node")]
    return ", ".join(parts) + (f", {len(topology.offline)} offline" if topology.offline else "")


def _caches(facts: "MachineFacts") -> str:
    kinds = Counter([(c.level, c.type, c.size_bytes, len(c.shared_cpus)) for c in facts.caches])
    short = {"Data": "d", "Instruction": "i"}
    shown = [
        f"{num} × L{level}{short.get(kind, '')} {_size(size)}"
        + (f" ({num_cpus} CPUs each)" if num_cpus > 2 else "")
        for (level, kind, size, num_cpus), num in kinds.items()
    ]
    return ", ".join(shown) or "unknown"


def _swap(facts: "MachineFacts") -> str:
    memory = facts.memory
    if not memory.swap_total_bytes:
        return ", no swap"
    return f", {_gib(memory.swap_used_bytes)} of {_gib(memory.swap_total_bytes)} swap used"


def _huge_pages(facts: "MachineFacts") -> str:
    memory = facts.memory
    reserved = (
        f"{memory.num_free_huge_pages} of {_size(memory.huge_page_bytes)}"
        if memory.huge_page_bytes
        else "none"
    )
    return f"; reserved and free: {reserved}"


def _frequency(facts: "MachineFacts") -> str:
    if not facts.frequency.governors:
        return "not told by the kernel"
    return f"{', '.join(facts.frequency.governors)} ({facts.frequency.driver or 'unknown driver'})"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.1f} GiB"


def _size(num_bytes: int) -> str:
    for unit, scale in (("GiB", GIB), ("MiB", 1 << 20)):
        if num_bytes >= scale:
            return f"{num_bytes / scale:g} {unit}"
    return f"{num_bytes / 1024:g} KiB"
