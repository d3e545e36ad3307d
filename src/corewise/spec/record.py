"""The record: what a trial left behind, for good or ill, as one JSON object."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import PurePath
from typing import Any, get_origin

RECORD_SCHEMA = 1
STATUSES = ("ok", "failed", "skipped")
IN_CACHE_NOTE = (  # among a record's notes
    "its data fit the cache: the bandwidth of memory is no ceiling for it, so fraction_of_ceiling says "
    "little and may be above 1"
)

Migration = Callable[[dict[str, Any]], dict[str, Any]]
# Schema version -> what turns a record of that version into one of the next.
MIGRATIONS: Mapping[int, Migration] = {}
_JSON_SHAPES: Mapping[Any, type] = {str: str, Sequence: list, Mapping: dict}


class UnreadableRecord(ValueError):
    """A JSON object that is no record this version can read; its text says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """The end of one trial: its point, its number or its reason, and all that is needed to repeat it."""

    trial_id: str
    study: str
    status: str  # of STATUSES
    question: str = ""
    reason: str = ""  # why it failed or was skipped
    kind: str = ""  # of failure, as in RankResult
    params: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    # One mapping per execution in fresh processes: status, samples_s, metrics, disturbances, ranks ...
    runs: Sequence[Mapping[str, Any]] = ()
    disturbed: Sequence[Mapping[str, Any]] = ()  # runs set aside and repeated
    command: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    protocol: Mapping[str, Any] = field(default_factory=dict)
    work: Mapping[str, float] = field(default_factory=dict)
    notes: Sequence[str] = ()
    started_at: str = ""  # ISO 8601, UTC
    finished_at: str = ""
    corewise_version: str = ""

    @property
    def samples_s(self) -> tuple[float, ...]:
        """Every sample of the runs that count, in order."""
        return tuple(s for run in self.runs if run.get("status") == "ok" for s in run.get("samples_s") or ())

    @property
    def is_disturbed(self) -> bool:
        """True when a run that counts was disturbed."""
        return any(run.get("disturbances") for run in self.runs)

    def to_json(self) -> dict[str, Any]:
        """The record as plain JSON values; metrics that JSON cannot hold are left out and noted."""
        values = {each.name: _plain(getattr(self, each.name)) for each in dataclasses.fields(self)}
        for name, value in self.metrics.items():
            if value is None or not math.isfinite(value):
                values["metrics"].pop(_plain(str(name)))
                values["notes"].append(f"metric {name} was {value}: left out")
        return {"schema": RECORD_SCHEMA, **values}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], migrations: Mapping[int, Migration] = MIGRATIONS) -> "Record":
        """The record described by parsed JSON of this or an older schema version."""
        record = cls(**_fields_of(_migrated(dict(data), migrations)))
        if record.status not in STATUSES:
            raise UnreadableRecord(f"unknown status {record.status!r}")
        if set(map(type, (*record.runs, *record.disturbed))) - {dict}:
            raise UnreadableRecord("a run is not a dict")
        return record

    def __reduce__(self) -> tuple[Any, ...]:
        return _remade, (_values(self),)


def utc_now() -> str:
    """This moment as the text records carry."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _migrated(data: dict[str, Any], migrations: Mapping[int, Migration]) -> dict[str, Any]:
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
                f"nothing turns {old} into {old + 1}; read it with the version that wrote it"
            )
        data = migrations[old](data)
    return data


def _fields_of(data: Mapping[str, Any]) -> dict[str, Any]:
    """The record's fields that the data gives, each checked for its shape."""
    values: dict[str, Any] = {}
    for name, shape, is_required in _FIELDS:
        try:
            value = data[name]
        except KeyError:
            if is_required:
                raise UnreadableRecord(f"no {name!r}") from None
            continue
        if not isinstance(value, shape):
            raise UnreadableRecord(f"{name!r} is not a {shape.__name__}")
        values[name] = tuple(data[name]) if shape is list else value
    return values


def _plain(value: Any) -> Any:
    """The value made of JSON's own types, its text free of what UTF-8 readers choke on."""
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
        return {_plain(str(key)): _plain(each) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        return [_plain(each) for each in value]
    if hasattr(value, "item"):  # a numpy number
        return _plain(value.item())
    raise TypeError(f"a record cannot hold a {type(value).__name__}")


_values = attrgetter(*(each.name for each in dataclasses.fields(Record)))
_set = tuple(vars(Record)[each.name].__set__ for each in dataclasses.fields(Record))


def _remade(values: tuple[Any, ...]) -> Record:
    """The record of these values, in the order of its fields; several times as fast as its own making."""
    record = object.__new__(Record)
    for put, value in zip(_set, values, strict=True):
        put(record, value)
    return record


# Name, JSON shape, and whether a record without it is none.
_FIELDS = tuple(
    (
        each.name,
        _JSON_SHAPES[get_origin(each.type) or each.type],
        each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING,
    )
    for each in dataclasses.fields(Record)
)
