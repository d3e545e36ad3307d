"""Which machine class a record comes from, and a short label for each class."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from corewise.study.record import Record
from corewise.text_format import shorten


def get_machine_key(machine: Mapping[str, Any]) -> str:
    """Return the machine class of a record; equal nodes of a cluster have the same class."""
    known = machine.get("host_class")
    if known:
        return str(known)
    return json.dumps([machine.get("hostname"), machine.get("cpu_model")], default=str)


def label_machines(records: Iterable[Record]) -> dict[str, str]:
    """Return a short, unique label for each machine key."""
    first: dict[str, Mapping[str, Any]] = {}
    for record in records:
        first.setdefault(get_machine_key(record.machine), record.machine)
    for name in _LABELS:
        labels = {key: shorten(name(key, machine)) for key, machine in first.items()}
        if len(set(labels.values())) == len(labels) and all(labels.values()):
            return labels
    return {key: f"machine {i}" for i, key in enumerate(first, 1)}


def _label_by_model(key: str, machine: Mapping[str, Any]) -> str:
    model = str(machine.get("microarchitecture") or machine.get("cpu_model") or machine.get("hostname") or "")
    return f"{model}, {_get_num_cores(machine)} cores" if model and _get_num_cores(machine) else model


def _label_by_host(key: str, machine: Mapping[str, Any]) -> str:
    return f"{machine.get('hostname')} ({_label_by_model(key, machine)})"


def _label_by_class(key: str, machine: Mapping[str, Any]) -> str:
    return f"{_label_by_model(key, machine)} ({key[:6]})"


_LABELS: Sequence[Callable[[str, Mapping[str, Any]], str]] = (_label_by_model, _label_by_host, _label_by_class)


def _get_num_cores(machine: Mapping[str, Any]) -> Any:
    return machine.get("num_cores") or machine.get("allocation_cores")
