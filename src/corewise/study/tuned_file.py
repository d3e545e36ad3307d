"""The tuned file: the fastest settings, the machine they were measured on, and the speed-up.

It is read without pydantic, whose import would take a quarter of the time that a launch may take.
"""

import dataclasses
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from corewise.errors import UserError, suggest_nearest
from corewise.study.axes import AXES, MODES, RENAMED_EXECUTIONS, Keyword, check_axis_name, read_axis_value
from corewise.study.syntax.expressions import Expression
from corewise.study.syntax.yaml_lines import Document, Key, Mistake, build_mistakes_error, read_yaml

TUNED_SCHEMA = 1
HEADER = "# The fastest settings found. Use them: corewise launch --config THIS-FILE -- python train.py\n"
WORKLOAD_PARAMS = ("workload", "mode", "runtime")


@dataclass(frozen=True, kw_only=True)
class TuningSubject:
    """What was tuned: a workload, or the command as it was typed."""

    workload: str = ""
    mode: str = ""
    runtime: str = ""
    command: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " ".join(self.command) or " ".join(part for part in (self.workload, self.mode) if part)


@dataclass(frozen=True, kw_only=True)
class MachineFingerprint:
    """The properties of a machine that decide whether settings carry over to it.

    `nodes` holds the allocation's cores and CPUs in each NUMA node, largest first, and `core_classes` its cores
    of each type on a hybrid processor, fastest first. `hostname` only informs the reader: equal machines have
    different names.
    """

    cpu_model: str
    num_sockets: int
    nodes: tuple[tuple[int, int], ...]
    memory_bytes: int
    hostname: str = ""
    host_class: str = ""
    core_classes: tuple[int, ...] = ()

    @property
    def num_cores(self) -> int:
        return sum(cores for cores, _ in self.nodes)

    @property
    def num_cpus(self) -> int:
        return sum(cpus for _, cpus in self.nodes)


@dataclass(frozen=True, kw_only=True)
class MeasuredSpeedup:
    """The throughput of the tuned and of the default settings, each with its interval."""

    throughput: float
    interval: tuple[float, float]
    default_throughput: float
    default_interval: tuple[float, float]
    speedup: float
    speedup_interval: tuple[float, float] | None = None
    unit: str = "samples/s"


@dataclass(frozen=True, kw_only=True)
class TunedSettings:
    """The checked content of a tuned file.

    `params` are trial parameters: a value for every axis that was varied or fixed. `date` is ISO 8601, UTC.
    """

    subject: TuningSubject
    params: Mapping[str, Any]
    machine: MachineFingerprint
    measured: MeasuredSpeedup | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    corewise_version: str = ""
    date: str = ""


def read_tuned(path: Path) -> TunedSettings:
    """Read a tuned file, or raise UserError with all mistakes and their lines."""
    document = read_yaml(path, empty_hint="tune again with `corewise tune`")
    if not isinstance(document.value, dict):
        raise UserError(f"{document.find_origin(())}: a tuned file consists of `key: value` lines")
    _check_schema(document)
    reader = _SectionReader(document)
    subject = reader.read_section(TuningSubject, "subject")
    machine = reader.read_section(MachineFingerprint, "machine")
    measured = reader.read_section(MeasuredSpeedup, "measured") if "measured" in document.value else None
    tuned = reader.read_top_level(subject=subject, machine=machine, measured=measured)
    mistakes = [*document.mistakes, *reader.mistakes]
    if mistakes or tuned is None:
        raise build_mistakes_error(mistakes)
    return tuned


def write_tuned(path: Path, tuned: TunedSettings) -> None:
    """Write the file atomically: to a temporary name, then renamed."""
    import yaml

    text = yaml.safe_dump(_to_yaml_values(tuned), sort_keys=False, allow_unicode=True, width=110)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        try:
            with open(temporary, "w", encoding="utf-8") as out:
                out.write(HEADER + text)
                out.flush()
                os.fsync(out.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as problem:
        reason = problem.strerror or problem
        raise UserError(f"{path} cannot be written: {reason}; name another file with --output") from problem


def _to_yaml_values(tuned: TunedSettings) -> dict[str, Any]:
    values: dict[str, Any] = {"schema": TUNED_SCHEMA}
    for each in dataclasses.fields(tuned):
        value = getattr(tuned, each.name)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            value = {name: part for name, part in dataclasses.asdict(value).items() if part not in ("", ())}
        if value not in ("", {}, None):
            values[each.name] = _convert_tuples(value)
    return values


def _convert_tuples(value: Any) -> Any:
    """Return the value with lists for tuples, because YAML has no plain form of tuples."""
    if isinstance(value, Mapping):
        return {str(name): _convert_tuples(part) for name, part in value.items() if part is not None}
    return [_convert_tuples(part) for part in value] if isinstance(value, (list, tuple)) else value


def _check_schema(document: Document) -> None:
    version = document.value.get("schema")
    where = document.find_origin(("schema",))
    if isinstance(version, bool) or not isinstance(version, int):
        raise UserError(f"{where}: no `schema: {TUNED_SCHEMA}`; pass a file that `corewise tune` wrote")
    if version > TUNED_SCHEMA:
        raise UserError(
            f"{where}: schema {version} is newer than this Corewise reads ({TUNED_SCHEMA}): update Corewise"
        )
    if version < 1:
        raise UserError(f"{where}: there is no schema {version}; tune again with `corewise tune`")


S = TypeVar("S")


class _SectionReader:
    """Reads sections with the table of their keys and collects every mistake with its line."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.mistakes: list[Mistake] = []

    def add_mistake(self, key: Key, message: str) -> None:
        self.mistakes.append(Mistake(self.document.find_origin(key), message))

    def read_section(self, dataclass_type: Callable[..., S], name: str) -> S | None:
        """Return the dataclass under a key, or None if it is missing or has mistakes."""
        given = self.document.value.get(name)
        if given is None:
            self.add_mistake((), f"{name} is missing; tune again with `corewise tune`")
            return None
        if not isinstance(given, dict):
            self.add_mistake((name,), f"{name} needs `name: value` lines, not {given!r:.60}")
            return None
        values = self._read_values(given, _SECTION_READERS[dataclass_type], (name,))
        required = _list_required_fields(dataclass_type)
        for missing in required - set(given):
            self.add_mistake((name,), f"{name}.{missing} is missing; tune again with `corewise tune`")
        return dataclass_type(**values) if required <= set(values) else None

    def read_top_level(self, **sections: Any) -> TunedSettings | None:
        """Return the whole file once its sections are read."""
        rest = {name: value for name, value in self.document.value.items() if name not in _SECTIONS}
        values = self._read_values(rest, _TOP_LEVEL_READERS, ())
        values.pop("schema", None)
        values["params"] = self._read_params()
        values["environment"] = self._read_environment()
        if self.mistakes:
            return None
        return TunedSettings(**sections, **values)

    def _read_values(
        self, given: Mapping[str, Any], table: Mapping[str, Callable[[Any], Any]], key: Key
    ) -> dict[str, Any]:
        values = {}
        for name, value in given.items():
            if name not in table:
                known = table if key else [*table, *_SECTIONS]
                self.add_mistake((*key, name), f"unknown key {name!r}; {suggest_nearest(name, known)}")
                continue
            try:
                values[name] = table[name](value)
            except ValueError as problem:
                self.add_mistake((*key, name), f"{name}: {problem}")
        return values

    def _read_mapping(self, name: str) -> Mapping[str, Any]:
        given = self.document.value.get(name)
        if given is not None and not isinstance(given, dict):
            self.add_mistake((name,), f"{name} needs `name: value` lines, not {given!r:.60}")
            return {}
        return given or {}

    def _read_params(self) -> dict[str, Any]:
        params = {}
        if "params" not in self.document.value:
            self.add_mistake(
                (), "params is missing; add the settings, for example `params: {processes: 2, threads: 4}`"
            )
        for name, value in self._read_mapping("params").items():
            try:
                params[name] = _read_param(name, value)
            except ValueError as problem:
                self.add_mistake(("params", name), str(problem))
        return params

    def _read_environment(self) -> dict[str, str]:
        variables = {}
        for name, value in self._read_mapping("environment").items():
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                self.add_mistake(("environment", name), f"{name!r} is not a valid name of an environment variable")
            elif isinstance(value, bool) or not isinstance(value, (str, int)):
                self.add_mistake(("environment", name), f"{name} needs a text, not {value!r:.60}; put it in quotes")
            else:
                variables[name] = str(value)
        return variables


def _read_param(name: str, value: Any) -> Any:
    if name in WORKLOAD_PARAMS:
        return _read_text(value)
    if name not in AXES and not name.startswith("args."):
        check_axis_name(name)
    if name == "execution" and isinstance(value, str):
        value = RENAMED_EXECUTIONS.get(value, value)
    checked = read_axis_value(name, value)
    if isinstance(checked, (Keyword, Expression)):
        raise ValueError(f"{name} must be a plain value in a tuned file, not {value!r}")
    return checked


def _read_text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"needs a text, not {value!r:.60}")
    return value


def _read_mode(value: Any) -> str:
    if value not in MODES:
        raise ValueError(f"unknown mode {value!r}; {suggest_nearest(str(value), MODES)}")
    return str(value)


def _read_count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"needs a whole number of at least 1, not {value!r:.60}")
    return value


def _read_number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"needs a number, not {value!r:.60}")
    return float(value)


def _read_pair(value: Any) -> tuple[float, float]:
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError(f"needs two numbers, not {value!r:.60}")
    return _read_number(value[0]), _read_number(value[1])


def _read_command(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(argument, str) for argument in value):
        raise ValueError(f"needs a list of texts, not {value!r:.60}")
    return tuple(value)


def _read_nodes(value: Any) -> tuple[tuple[int, int], ...]:
    if not isinstance(value, list) or not value:
        raise ValueError("needs [cores, CPUs] of each NUMA node")
    nodes = []
    for node in value:
        if not isinstance(node, list) or len(node) != 2:
            raise ValueError(f"needs [cores, CPUs] of each NUMA node, not {node!r:.60}")
        nodes.append((_read_count(node[0]), _read_count(node[1])))
    return tuple(nodes)


def _read_core_classes(value: Any) -> tuple[int, ...]:
    is_list = isinstance(value, list) and all(type(number) is int and number >= 0 for number in value)
    if not is_list:
        raise ValueError(f"needs the cores of each type, not {value!r:.60}")
    return tuple(value)


Table = Mapping[str, Callable[[Any], Any]]
_SECTION_READERS: Mapping[Any, Table] = {
    TuningSubject: {"workload": _read_text, "mode": _read_mode, "runtime": _read_text, "command": _read_command},
    MachineFingerprint: {
        "cpu_model": _read_text,
        "num_sockets": _read_count,
        "nodes": _read_nodes,
        "memory_bytes": _read_count,
        "hostname": _read_text,
        "host_class": _read_text,
        "core_classes": _read_core_classes,
    },
    MeasuredSpeedup: {
        "throughput": _read_number,
        "interval": _read_pair,
        "default_throughput": _read_number,
        "default_interval": _read_pair,
        "speedup": _read_number,
        "speedup_interval": _read_pair,
        "unit": _read_text,
    },
}
_TOP_LEVEL_READERS: Table = {"schema": _read_count, "corewise_version": _read_text, "date": _read_text}
_SECTIONS: Sequence[str] = ("subject", "machine", "measured", "params", "environment")


def _list_required_fields(dataclass_type: Any) -> set[str]:
    return {each.name for each in dataclasses.fields(dataclass_type) if each.default is dataclasses.MISSING}
