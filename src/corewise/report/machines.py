"""Which machines the records come from, what each is called in a sentence, and what is known of it."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from corewise.report.model import Column, Kind, Table
from corewise.report.words import short, shown
from corewise.spec.record import Record

MAX_SIDE_BY_SIDE = 4
_FACTS: Mapping[str, tuple[str, Kind]] = {
    "hostname": ("host", "text"),
    "cpu_model": ("CPU", "text"),
    "microarchitecture": ("microarchitecture", "text"),
    "num_sockets": ("sockets", "number"),
    "num_nodes": ("NUMA nodes", "number"),
    "num_cores": ("cores", "number"),
    "allocation_cores": ("cores given to us", "number"),
    "allocation_cpus": ("CPUs given to us", "text"),
    "memory_bytes": ("memory", "bytes"),
    "kernel": ("kernel", "text"),
    "host_class": ("class of host", "text"),
}


def machine_key(record: Record) -> str:
    """What tells one kind of machine from another: equal nodes of a cluster are one."""
    known = record.machine.get("host_class")
    if known:
        return str(known)
    return json.dumps([record.machine.get("hostname"), record.machine.get("cpu_model")], default=str)


def machine_labels(records: Iterable[Record]) -> dict[str, str]:
    """Machine key -> a short label, different for each of them."""
    first: dict[str, Mapping[str, Any]] = {}
    for record in records:
        first.setdefault(machine_key(record), record.machine)
    for name in _LABELS:
        labels = {key: short(name(key, machine)) for key, machine in first.items()}
        if len(set(labels.values())) == len(labels) and all(labels.values()):
            return labels
    return {key: f"machine {i}" for i, key in enumerate(first, 1)}


def _kind(key: str, machine: Mapping[str, Any]) -> str:
    what = str(machine.get("microarchitecture") or machine.get("cpu_model") or machine.get("hostname") or "")
    return f"{what}, {_cores(machine)} cores" if what and _cores(machine) else what


def _kind_and_host(key: str, machine: Mapping[str, Any]) -> str:
    return f"{machine.get('hostname')} ({_kind(key, machine)})"


def _kind_and_class(key: str, machine: Mapping[str, Any]) -> str:
    return f"{_kind(key, machine)} ({key[:6]})"


_LABELS: Sequence[Callable[[str, Mapping[str, Any]], str]] = (_kind, _kind_and_host, _kind_and_class)


def _cores(machine: Mapping[str, Any]) -> Any:
    return machine.get("num_cores") or machine.get("allocation_cores")


def machine_tables(records: Sequence[Record]) -> tuple[Table, ...]:
    """What is known of each machine, side by side where there are few."""
    labels = machine_labels(records)
    machines: dict[str, dict[int, Mapping[str, Any]]] = {}
    for record in records:
        machines.setdefault(machine_key(record), {})[id(record.machine)] = record.machine
    facts = {key: _facts_of(list(machines[key].values())) for key in labels}
    if not facts:
        return ()
    if len(facts) > MAX_SIDE_BY_SIDE:
        return (_one_row_each(labels, facts),)
    names = [name for name in _FACTS if any(each.get(name) is not None for each in facts.values())]
    columns = [Column(key="fact", title="")]
    columns += [Column(key=f"machine-{i}", title=label) for i, label in enumerate(labels.values(), 1)]
    rows = [[_FACTS[name][0], *(_told(name, facts[key].get(name)) for key in labels)] for name in names]
    return (
        Table(
            key="machines", title="Machine" if len(labels) == 1 else "Machines", columns=columns, rows=rows
        ),
    )


def _one_row_each(labels: Mapping[str, str], facts: Mapping[str, Mapping[str, Any]]) -> Table:
    columns = [Column(key="machine", title="machine")]
    columns += [Column(key=name, title=title, kind=kind) for name, (title, kind) in _FACTS.items()]
    rows = [[label, *(facts[key].get(name) for name in _FACTS)] for key, label in labels.items()]
    return Table(key="machines", title="Machines", columns=columns, rows=rows)


def _facts_of(machines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Each fact of a machine; where its records differ (equal nodes, several kernels), all that occur."""
    facts: dict[str, Any] = {}
    for name in _FACTS:
        values = list({_plain(machine.get(name)): None for machine in machines})
        values = [value for value in values if value is not None]
        if len(values) == 1:
            facts[name] = values[0]
        elif values:
            facts[name] = short(", ".join(shown(value) for value in values), 120)
    return facts


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, (str, int, float)) else json.dumps(value, default=str)


def _told(name: str, value: Any) -> Any:
    """A fact in a column of facts of every kind, so its unit stands beside it."""
    from corewise.report.words import memory

    if value is None:
        return None
    if _FACTS[name][1] == "bytes" and isinstance(value, (int, float)):
        return memory(value)
    return short(shown(value), 120)


def version_tables(
    records: Sequence[Record], libraries: Mapping[int, Mapping[str, str]] | None = None
) -> tuple[Table, ...]:
    """Python, framework and library versions, one column for each set that occurs.

    `libraries` has what ranks read back, by the identity of a record's versions.
    """
    labels = machine_labels(records)
    sets: dict[str, tuple[Mapping[str, str], str, dict[str, None]]] = {}
    keys: dict[tuple[int, str, str], str] = {}
    for record in records:
        own = (id(record.versions), machine_key(record), record.corewise_version)
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
        title = machine if several_machines else ", ".join(short(each) for each in studies)
        columns.append(Column(key=f"set-{i}", title=short(title, 60) if len(sets) > 1 else "version"))
    rows = [
        [short(name), *(_version(versions.get(name)) for versions, *_ in sets.values())] for name in names
    ]
    return (Table(key="versions", title="Versions", columns=columns, rows=rows),)


def _version(value: Any) -> str | None:
    return None if value in (None, "") else short(str(value), 80)
