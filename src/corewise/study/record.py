"""The record: the result of a trial, success or failure, as one JSON object."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from operator import attrgetter
from pathlib import PurePath
from typing import Any

from corewise.study.axes import RENAMED_EXECUTIONS
from corewise.study.trial_run import check_runs
from corewise.study.value_checks import (
    MAX_LEVELS,
    BadValue,
    Check,
    check_fields,
    check_number_mapping,
    check_params,
    check_plain_mapping,
    check_scalar,
    check_text,
    check_text_list,
    check_text_mapping,
    describe_value,
)
from corewise.text_format import shorten

RECORD_SCHEMA = 1
STATUSES = ("ok", "failed", "skipped")
_MAX_PROBLEM_CHARS = 200
# A note of records whose working set fits the cache. Stored records are matched by this text; keep it.
IN_CACHE_NOTE = (
    "its data fit the cache: the bandwidth of memory is no ceiling for it, so fraction_of_ceiling says "
    "little and may be above 1"
)

Migration = Callable[[dict[str, Any]], dict[str, Any]]
# Schema version -> function that converts a record of that version to the next one.
MIGRATIONS: Mapping[int, Migration] = {}
_CHECKS_OF_TYPES: Mapping[Any, Check] = {
    str: check_text,
    Sequence[str]: check_text_list,
    Sequence[Mapping[str, Any]]: check_runs,
    Mapping[str, str]: check_text_mapping,
    Mapping[str, float]: check_number_mapping,
    Mapping[str, Any]: check_plain_mapping,
}


class UnreadableRecord(ValueError):
    """A JSON object that this version cannot read as a record; the text says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """The result of one trial: its parameters, its figures or its failure, and how to repeat it.

    `status` is one of STATUSES. `reason` says why the trial failed or was skipped, and `kind` is the category
    of the failure, as in RankResult. `runs` has one mapping per execution in fresh processes, with status,
    samples_s, metrics, disturbances and ranks; `disturbed` has the runs that were discarded and repeated.
    `code_versions` holds the versions of workload, runtime and engines by parameter, and `source`, the
    fingerprint of a user's own file. `generation` is set where a measurement was repeated on purpose.
    `lease` is the token of the lease that its process held, `replaced_leases` are those that lost this lease
    before: a record of such a process is late. Times are ISO 8601, UTC.
    """

    trial_id: str
    study: str
    status: str
    question: str = ""
    reason: str = ""
    kind: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    runs: Sequence[Mapping[str, Any]] = ()
    disturbed: Sequence[Mapping[str, Any]] = ()
    command: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    code_versions: Mapping[str, Any] = field(default_factory=dict)
    generation: str = ""
    protocol: Mapping[str, Any] = field(default_factory=dict)
    work: Mapping[str, float] = field(default_factory=dict)
    notes: Sequence[str] = ()
    started_at: str = ""
    finished_at: str = ""
    corewise_version: str = ""
    lease: str = ""
    replaced_leases: Sequence[str] = ()

    @property
    def samples_s(self) -> tuple[float, ...]:
        """All samples of the successful runs, in order."""
        return tuple(s for run in self.runs if run.get("status") == "ok" for s in run.get("samples_s") or ())

    @property
    def is_disturbed(self) -> bool:
        """True if one of the runs was disturbed."""
        return any(run.get("disturbances") for run in self.runs)

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON values; non-finite metrics are omitted, with a note."""
        values = {each.name: _to_json_value(getattr(self, each.name)) for each in dataclasses.fields(self)}
        for name, value in self.metrics.items():
            if value is None or not math.isfinite(value):
                values["metrics"].pop(_to_json_value(str(name)))
                values["notes"].append(f"metric {name} was {value}: omitted")
        return {"schema": RECORD_SCHEMA, **values}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], migrations: Mapping[int, Migration] = MIGRATIONS) -> "Record":
        """Build a record from parsed JSON of this or an older schema version.

        Raises:
            UnreadableRecord: if a value is missing, or not one that readers can use.
        """
        values = _read_fields(_migrate(dict(data), migrations))
        params = values.get("params", {})
        if params.get("execution") in RENAMED_EXECUTIONS:
            values["params"] = {**params, "execution": RENAMED_EXECUTIONS[params["execution"]]}
        return cls(**values)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore_record, (_get_values(self),)


def format_utc_now() -> str:
    """Return the current time in the format of records."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _migrate(data: dict[str, Any], migrations: Mapping[int, Migration]) -> dict[str, Any]:
    version = data.get("schema")
    if not isinstance(version, int) or isinstance(version, bool):
        raise UnreadableRecord("no record schema version")
    if version > RECORD_SCHEMA:
        raise UnreadableRecord(
            f"record schema {version} is newer than this Corewise reads ({RECORD_SCHEMA}): update Corewise"
        )
    for old in range(version, RECORD_SCHEMA):
        if old not in migrations:
            raise UnreadableRecord(
                f"record schema {version} is too old for this Corewise ({RECORD_SCHEMA}): "
                f"no migration from {old} to {old + 1}; read it with the version that wrote it"
            )
        data = migrations[old](data)
    return data


def _read_fields(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record's fields in the data, each of them checked."""
    missing = next((name for name in _REQUIRED if name not in data), None)
    if missing:
        raise UnreadableRecord(f"no {missing!r}")
    try:
        _check_values(data)
    except BadValue as error:
        raise UnreadableRecord(shorten(error.describe("the record"), _MAX_PROBLEM_CHARS)) from None
    return {name: tuple(data[name]) if type(data[name]) is list else data[name] for name in _CHECKS if name in data}


def _check_values(data: Mapping[str, Any]) -> None:
    check_fields(data, _CHECKS)
    if data["status"] not in STATUSES:
        raise BadValue(f".status is {describe_value(data['status'])}, not one of {', '.join(STATUSES)}")
    check_fields(data, _CHECKS_OF_VALUES)
    check_fields(data, _PARAMS_OF_SKIPPED if data["status"] == "skipped" else _PARAMS_OF_MEASURED)


def _check_moment(text: str) -> None:
    """Accept text that is no time, which older records hold, but no time that leaves the calendar in UTC."""
    if text.startswith(("0001", "9999")):
        raise BadValue(f" is {describe_value(text)}, a time out of range")


def _check_machine(machine: Mapping[str, Any]) -> None:
    check_fields(machine, _MACHINE_CHECKS)


def _to_json_value(value: Any, levels: int = MAX_LEVELS) -> Any:
    """Convert a value to plain JSON that every reader accepts; without levels beyond MAX_LEVELS."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, (str, PurePath)):
        text = str(value)
        if text.isascii() and "\0" not in text:
            return text
        return text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, Mapping):
        pairs = value.items() if levels else ()
        return {_to_json_value(str(key)): _to_json_value(each, levels - 1) for key, each in pairs}
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        return [_to_json_value(each, levels - 1) for each in (value if levels else ())]
    # numpy numbers convert themselves to Python numbers.
    if hasattr(value, "item"):
        return _to_json_value(value.item())
    raise TypeError(f"a record cannot hold a {type(value).__name__}")


_get_values = attrgetter(*(each.name for each in dataclasses.fields(Record)))
_SETTERS = tuple(vars(Record)[each.name].__set__ for each in dataclasses.fields(Record))


def _restore_record(values: tuple[Any, ...]) -> Record:
    """Rebuild an unpickled record from its field values; several times faster than __init__."""
    record = object.__new__(Record)
    for set_field, value in zip(_SETTERS, values, strict=True):
        set_field(record, value)
    return record


# Facts of a machine that readers group and compare records by.
_MACHINE_CHECKS = dict.fromkeys(
    ("hostname", "host_class", "cpu_model", "microarchitecture", "allocation_cpus", "allocation_cores", "memory_bytes"),
    check_scalar,
)
_PARAMS_OF_SKIPPED = {"params": partial(check_params, may_hold_expressions=True)}
_PARAMS_OF_MEASURED = {"params": partial(check_params, may_hold_expressions=False)}
# What the values of checked types must be.
_CHECKS_OF_VALUES: Mapping[str, Check] = {
    "machine": _check_machine,
    "started_at": _check_moment,
    "finished_at": _check_moment,
}
_CHECKS = {each.name: _CHECKS_OF_TYPES[each.type] for each in dataclasses.fields(Record)}
_REQUIRED = tuple(
    each.name
    for each in dataclasses.fields(Record)
    if each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING
)
