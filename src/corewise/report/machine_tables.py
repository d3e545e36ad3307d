"""Tables of the machines and software versions that the records come from."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from corewise.analysis.machines import get_machine_key, label_machines
from corewise.report.report_model import Column, ColumnFormat, Table
from corewise.study.record import Record
from corewise.text_format import format_value, shorten

MAX_SIDE_BY_SIDE = 4
_FACTS: Mapping[str, tuple[str, ColumnFormat]] = {
    "hostname": ("host", "text"),
    "cpu_model": ("CPU", "text"),
    "microarchitecture": ("microarchitecture", "text"),
    "num_sockets": ("sockets", "number"),
    "num_nodes": ("NUMA nodes", "number"),
    "num_cores": ("cores", "number"),
    "allocation_cores": ("allocated cores", "number"),
    "allocation_cpus": ("allocated CPUs", "text"),
    "memory_bytes": ("memory", "bytes"),
    "kernel": ("kernel", "text"),
    "host_class": ("host class", "text"),
}


def build_machine_tables(records: Sequence[Record]) -> tuple[Table, ...]:
    """Build the table of machines; a few machines stand side by side."""
    labels = label_machines(records)
    machines: dict[str, dict[int, Mapping[str, Any]]] = {}
    for record in records:
        machines.setdefault(get_machine_key(record.machine), {})[id(record.machine)] = record.machine
    facts = {key: _collect_facts(list(machines[key].values())) for key in labels}
    if not facts:
        return ()
    if len(facts) > MAX_SIDE_BY_SIDE:
        return (_build_row_table(labels, facts),)
    names = [name for name in _FACTS if any(each.get(name) is not None for each in facts.values())]
    columns = [Column(key="fact", title="")]
    columns += [Column(key=f"machine-{i}", title=label) for i, label in enumerate(labels.values(), 1)]
    rows = [[_FACTS[name][0], *(_format_fact(name, facts[key].get(name)) for key in labels)] for name in names]
    return (Table(key="machines", title="Machine" if len(labels) == 1 else "Machines", columns=columns, rows=rows),)


def _build_row_table(labels: Mapping[str, str], facts: Mapping[str, Mapping[str, Any]]) -> Table:
    """Build a table with one row per machine."""
    columns = [Column(key="machine", title="machine")]
    columns += [Column(key=name, title=title, kind=value_format) for name, (title, value_format) in _FACTS.items()]
    rows = [[label, *(facts[key].get(name) for name in _FACTS)] for key, label in labels.items()]
    return Table(key="machines", title="Machines", columns=columns, rows=rows)


def _collect_facts(machines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Collect the facts of one machine; where its records differ, list all values."""
    facts: dict[str, Any] = {}
    for name in _FACTS:
        values = list({_convert_to_plain(machine.get(name)): None for machine in machines})
        values = [value for value in values if value is not None]
        if len(values) == 1:
            facts[name] = values[0]
        elif values:
            facts[name] = shorten(", ".join(format_value(value) for value in values), 120)
    return facts


def _convert_to_plain(value: Any) -> Any:
    return value if value is None or isinstance(value, (str, int, float)) else json.dumps(value, default=str)


def _format_fact(name: str, value: Any) -> Any:
    """Format a fact together with its unit."""
    from corewise.text_format import format_memory

    if value is None:
        return None
    if _FACTS[name][1] == "bytes" and isinstance(value, (int, float)):
        return format_memory(value)
    return shorten(format_value(value), 120)


def build_version_tables(
    records: Sequence[Record], libraries: Mapping[int, Mapping[str, str]] | None = None
) -> tuple[Table, ...]:
    """List Python, framework and library versions, one column for each distinct set.

    `libraries` holds what ranks reported, by the identity of a record's versions.
    """
    labels = label_machines(records)
    sets: dict[str, tuple[Mapping[str, str], str, dict[str, None]]] = {}
    keys: dict[tuple[int, str, str], str] = {}
    for record in records:
        own = (id(record.versions), get_machine_key(record.machine), record.corewise_version)
        if own not in keys:
            read_back = (libraries or {}).get(id(record.versions), {})
            versions = {**read_back, **record.versions, "corewise": record.corewise_version}
            machine = labels[own[1]]
            keys[own] = json.dumps([machine, versions], sort_keys=True, default=str)
            sets.setdefault(keys[own], (versions, machine, {}))
        sets[keys[own]][2][record.study] = None
    if not sets or not any(versions for versions, *_ in sets.values()):
        return ()
    names = list(dict.fromkeys(name for versions, *_ in sets.values() for name in versions))
    several_machines = len(labels) > 1
    columns = [Column(key="package", title="package")]
    for i, (_, machine, studies) in enumerate(sets.values(), 1):
        title = machine if several_machines else ", ".join(shorten(each) for each in studies)
        columns.append(Column(key=f"set-{i}", title=shorten(title, 60) if len(sets) > 1 else "version"))
    rows = [[shorten(name), *(_format_version(versions.get(name)) for versions, *_ in sets.values())] for name in names]
    return (Table(key="versions", title="Versions", columns=columns, rows=rows),)


def _format_version(value: Any) -> str | None:
    return None if value in (None, "") else shorten(str(value), 80)
