"""The tuned file: the settings that won, where they were measured, and by how much.

Read without pydantic: importing it would take a quarter of the time a launch may take.
"""

import dataclasses
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from corewise.spec.axes import AXES, MODES, Word, check_axis_name, read_axis_value
from corewise.spec.errors import UserError, nearest
from corewise.spec.expressions import Expression
from corewise.spec.yaml_lines import Document, Key, Mistake, mistakes_error, read_yaml

TUNED_SCHEMA = 1
HEADER = "# What was found fastest here. Use it: corewise launch --config THIS-FILE -- python train.py\n"
WORKLOAD_PARAMS = ("workload", "mode", "runtime")


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What was tuned: a workload, or a command as it was typed."""

    workload: str = ""
    mode: str = ""
    runtime: str = ""
    command: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " ".join(self.command) or " ".join(part for part in (self.workload, self.mode) if part)


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """What of a machine decides whether settings carry over to it."""

    cpu_model: str
    num_sockets: int
    nodes: tuple[tuple[int, int], ...]  # the allocation's cores and CPUs in each NUMA node, largest first
    memory_bytes: int
    hostname: str = ""  # for the reader; equal machines have different ones
    host_class: str = ""

    @property
    def num_cores(self) -> int:
        return sum(cores for cores, _ in self.nodes)

    @property
    def num_cpus(self) -> int:
        return sum(cpus for _, cpus in self.nodes)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The winner's figures beside the default's, each with its interval."""

    throughput: float
    interval: tuple[float, float]
    default_throughput: float
    default_interval: tuple[float, float]
    speedup: float
    speedup_interval: tuple[float, float] | None = None
    unit: str = "samples/s"


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """A tuned file, checked."""

    subject: Subject
    params: Mapping[str, Any]  # as of a trial: every axis that was varied or fixed, concrete
    machine: Fingerprint
    measured: Measured | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    corewise_version: str = ""
    date: str = ""  # ISO 8601, UTC


def read_tuned(path: Path) -> Tuned:
    """The tuned file at a path; a UserError tells every mistake in it with its line."""
    document = read_yaml(path, needs="tune again with `corewise tune`")
    if not isinstance(document.value, dict):
        raise UserError(f"{document.where(())}: a tuned file is made of `key: value` lines")
    _check_schema(document)
    reader = _Reader(document)
    subject = reader.section(Subject, "subject")
    machine = reader.section(Fingerprint, "machine")
    measured = reader.section(Measured, "measured") if "measured" in document.value else None
    tuned = reader.top(subject=subject, machine=machine, measured=measured)
    mistakes = [*document.mistakes, *reader.mistakes]
    if mistakes or tuned is None:
        raise mistakes_error(mistakes)
    return tuned


def write_tuned(path: Path, tuned: Tuned) -> None:
    """Write the file so that a reader sees the whole of it or none."""
    import yaml

    text = yaml.safe_dump(_plain(tuned), sort_keys=False, allow_unicode=True, width=110)
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        try:
            with open(aside, "w", encoding="utf-8") as out:
                out.write(HEADER + text)
                out.flush()
                os.fsync(out.fileno())
            os.replace(aside, path)
        finally:
            aside.unlink(missing_ok=True)
    except OSError as problem:
        reason = problem.strerror or problem
        raise UserError(f"{path} cannot be written: {reason}; name another file with --output") from problem


def _plain(tuned: Tuned) -> dict[str, Any]:
    values: dict[str, Any] = {"schema": TUNED_SCHEMA}
    for each in dataclasses.fields(tuned):
        value = getattr(tuned, each.name)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            value = {name: part for name, part in dataclasses.asdict(value).items() if part not in ("", ())}
        if value not in ("", {}, None):
            values[each.name] = _listed(value)
    return values


def _listed(value: Any) -> Any:
    """The value with lists for tuples, which YAML has no plain form of."""
    if isinstance(value, Mapping):
        return {str(name): _listed(part) for name, part in value.items() if part is not None}
    return [_listed(part) for part in value] if isinstance(value, (list, tuple)) else value


def _check_schema(document: Document) -> None:
    version = document.value.get("schema")
    where = document.where(("schema",))
    if isinstance(version, bool) or not isinstance(version, int):
        raise UserError(f"{where}: no `schema: {TUNED_SCHEMA}`; is it a file that `corewise tune` wrote?")
    if version > TUNED_SCHEMA:
        raise UserError(
            f"{where}: schema {version} is newer than this Corewise reads ({TUNED_SCHEMA}): update Corewise"
        )
    if version < 1:
        raise UserError(f"{where}: there is no schema {version}; tune again with `corewise tune`")


S = TypeVar("S")


class _Reader:
    """Reads sections by the table of their keys and keeps every mistake with its line."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.mistakes: list[Mistake] = []

    def refuse(self, key: Key, what: str) -> None:
        self.mistakes.append(Mistake(self.document.where(key), what))

    def section(self, made: Callable[..., S], name: str) -> S | None:
        """The dataclass under a key of the file, or None when it has mistakes or is not there."""
        given = self.document.value.get(name)
        if given is None:
            self.refuse((), f"{name} is missing; tune again with `corewise tune`")
            return None
        if not isinstance(given, dict):
            self.refuse((name,), f"{name} needs `name: value` lines, not {given!r:.60}")
            return None
        values = self._values(given, _KEYS[made], (name,))
        required = _required(made)
        for missing in required - set(given):
            self.refuse((name,), f"{name}.{missing} is missing; tune again with `corewise tune`")
        return made(**values) if required <= set(values) else None

    def top(self, **sections: Any) -> Tuned | None:
        """The whole, once its sections are read."""
        rest = {name: value for name, value in self.document.value.items() if name not in _KEYS_OF_SECTIONS}
        values = self._values(rest, _TOP, ())
        values.pop("schema", None)
        values["params"] = self._params()
        values["environment"] = self._environment()
        if self.mistakes:
            return None
        return Tuned(**sections, **values)

    def _values(
        self, given: Mapping[str, Any], table: Mapping[str, Callable[[Any], Any]], key: Key
    ) -> dict[str, Any]:
        values = {}
        for name, value in given.items():
            if name not in table:
                known = table if key else [*table, *_KEYS_OF_SECTIONS]
                self.refuse((*key, name), f"unknown key {name!r}; {nearest(name, known)}")
                continue
            try:
                values[name] = table[name](value)
            except ValueError as problem:
                self.refuse((*key, name), f"{name}: {problem}")
        return values

    def _mapping(self, name: str) -> Mapping[str, Any]:
        given = self.document.value.get(name)
        if given is not None and not isinstance(given, dict):
            self.refuse((name,), f"{name} needs `name: value` lines, not {given!r:.60}")
            return {}
        return given or {}

    def _params(self) -> dict[str, Any]:
        params = {}
        if "params" not in self.document.value:
            self.refuse(
                (), "params is missing: the settings to use, as in `params: {processes: 2, threads: 4}`"
            )
        for name, value in self._mapping("params").items():
            try:
                params[name] = _param(name, value)
            except ValueError as problem:
                self.refuse(("params", name), str(problem))
        return params

    def _environment(self) -> dict[str, str]:
        variables = {}
        for name, value in self._mapping("environment").items():
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                self.refuse(("environment", name), f"{name!r} cannot be the name of an environment variable")
            elif isinstance(value, bool) or not isinstance(value, (str, int)):
                self.refuse(
                    ("environment", name), f"{name} needs a text, not {value!r:.60}; put it in quotes"
                )
            else:
                variables[name] = str(value)
        return variables


def _param(name: str, value: Any) -> Any:
    if name in WORKLOAD_PARAMS:
        return _text(value)
    if name not in AXES and not name.startswith("args."):
        check_axis_name(name)  # raises, naming the nearest
    read = read_axis_value(name, value)
    if isinstance(read, (Word, Expression)):
        raise ValueError(f"{name} must be a value here, not {value!r}")
    return read


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"needs a text, not {value!r:.60}")
    return value


def _mode(value: Any) -> str:
    if value not in MODES:
        raise ValueError(f"unknown mode {value!r}; {nearest(str(value), MODES)}")
    return str(value)


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"needs a whole number of at least 1, not {value!r:.60}")
    return value


def _figure(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"needs a number, not {value!r:.60}")
    return float(value)


def _pair(value: Any) -> tuple[float, float]:
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError(f"needs two numbers, not {value!r:.60}")
    return _figure(value[0]), _figure(value[1])


def _words(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise ValueError(f"needs a list of words, not {value!r:.60}")
    return tuple(value)


def _nodes(value: Any) -> tuple[tuple[int, int], ...]:
    if not isinstance(value, list) or not value:
        raise ValueError("needs [cores, CPUs] of each NUMA node")
    nodes = []
    for node in value:
        if not isinstance(node, list) or len(node) != 2:
            raise ValueError(f"needs [cores, CPUs] of each NUMA node, not {node!r:.60}")
        nodes.append((_count(node[0]), _count(node[1])))
    return tuple(nodes)


Table = Mapping[str, Callable[[Any], Any]]
_KEYS: Mapping[Any, Table] = {
    Subject: {"workload": _text, "mode": _mode, "runtime": _text, "command": _words},
    Fingerprint: {
        "cpu_model": _text,
        "num_sockets": _count,
        "nodes": _nodes,
        "memory_bytes": _count,
        "hostname": _text,
        "host_class": _text,
    },
    Measured: {
        "throughput": _figure,
        "interval": _pair,
        "default_throughput": _figure,
        "default_interval": _pair,
        "speedup": _figure,
        "speedup_interval": _pair,
        "unit": _text,
    },
}
_TOP: Table = {"schema": _count, "corewise_version": _text, "date": _text}
_KEYS_OF_SECTIONS: Sequence[str] = ("subject", "machine", "measured", "params", "environment")


def _required(made: Any) -> set[str]:
    return {each.name for each in dataclasses.fields(made) if each.default is dataclasses.MISSING}
