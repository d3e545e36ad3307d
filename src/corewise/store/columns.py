"""The columns that records have in SQL: names, types, and the rows to fill them with."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from itertools import count
from typing import Any, NamedTuple

from corewise.spec.record import Record
from corewise.store.lines import Entry
from corewise.store.packed import Layout
from corewise.store.row_texts import samples_text

# Mappings whose keys become fields: `select params.threads, metrics.samples_per_s from records`.
GROUPS = ("params", "metrics", "machine", "versions", "work", "protocol")
_PLAIN_COLUMNS = {
    "trial_id": "VARCHAR",
    "study": "VARCHAR",
    "question": "VARCHAR",
    "status": "VARCHAR",
    "kind": "VARCHAR",
    "reason": "VARCHAR",
    "command": "VARCHAR",
    "corewise_version": "VARCHAR",
    "started_at": "TIMESTAMP",
    "finished_at": "TIMESTAMP",
    "notes": "VARCHAR[]",
    "samples_s": "DOUBLE[]",
    "env": "MAP(VARCHAR, VARCHAR)",
    "runs": "JSON",
    "disturbed": "JSON",
}
_MAX_INTEGER = 2**63 - 1
_UTC = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{3}|\.\d{6})?Z")


class GroupKinds(NamedTuple):
    """The keys of a group in one record, and the Python type of each value."""

    layout: Layout
    kinds: tuple[type, ...]


class RowNote(NamedTuple):
    """What a record adds to the columns, and its samples as JSON where its own text can serve as its row."""

    groups: tuple[GroupKinds, ...]  # in the order of GROUPS
    samples: bytes | None


@dataclass(frozen=True)
class Field:
    """One key of a group of mappings, as a field of an SQL structure."""

    name: str
    kind: str


@dataclass(frozen=True)
class Columns:
    """The fields of every group: group -> key -> field, each of a type that holds all its values."""

    fields: Mapping[str, Mapping[str, Field]]

    def fit(self, groups: Iterable[GroupKinds]) -> bool:
        """True when a record's groups stand in its own text as these columns name them."""
        return self._fit_as_they_are and all(
            found.kinds or not self.fields[name] for name, found in zip(GROUPS, groups, strict=True)
        )

    @cached_property
    def _fit_as_they_are(self) -> bool:
        return all(key == field.name for keys in self.fields.values() for key, field in keys.items())

    def described(self) -> str:
        """The columns as `read_json` takes them."""
        kinds = {**_PLAIN_COLUMNS, **{group: _struct(keys) for group, keys in self.fields.items()}}
        return "{" + ", ".join(f"{name}: {_quoted(kind, chr(39))}" for name, kind in kinds.items()) + "}"

    def select(self, source: str) -> str:
        """A SELECT of all columns; a group in which no record has a key is NULL."""
        empty = ", ".join(f"NULL::JSON AS {group}" for group, keys in self.fields.items() if not keys)
        return f"SELECT *{f' REPLACE ({empty})' if empty else ''} FROM {source}"

    def flat_select(self) -> str:
        """A SELECT over `records` with one column for each field of a group, named `group.field`."""
        parts = [name for name in _PLAIN_COLUMNS if name not in ("runs", "disturbed")]
        for group, keys in self.fields.items():
            for field in keys.values():
                extracted = f"struct_extract({group}, {_quoted(field.name, chr(39))})"
                parts.append(f"{extracted} AS {_quoted(f'{group}.{field.name}')}")
        parts += ["CAST(runs AS VARCHAR) AS runs", "CAST(disturbed AS VARCHAR) AS disturbed"]
        return f"SELECT {', '.join(parts)} FROM records"

    def row(self, record: Record) -> dict[str, Any]:
        """The record as a row for these columns."""
        row = {name: getattr(record, name) for name in (*_PLAIN_COLUMNS, *GROUPS)}
        row["started_at"], row["finished_at"] = _moment(record.started_at), _moment(record.finished_at)
        for group, keys in self.fields.items():
            row[group] = {keys[key].name: value for key, value in row[group].items()} or None
        return row


def row_note(record: Record, entry: Entry) -> RowNote:
    """What has to be known of a record to make its row."""
    groups = tuple([_group_kinds(getattr(record, group)) for group in GROUPS])
    has_plain_times = _is_plain_utc(record.started_at) and _is_plain_utc(record.finished_at)
    samples = samples_text(record, entry) if has_plain_times else None
    return RowNote(_known_groups.setdefault(groups, groups), samples)


def columns_of(notes: Iterable[RowNote]) -> Columns:
    """The columns that hold all these records, in the order their keys first appear."""
    seen: list[dict[str, set[type]]] = [{} for _ in GROUPS]
    for groups in dict.fromkeys(note.groups for note in notes):
        for group, found in zip(seen, groups, strict=True):
            for key, kind in zip(found.layout.names, found.kinds, strict=True):
                group.setdefault(key, set()).add(kind)
    fields: dict[str, dict[str, Field]] = {}
    for name, group in zip(GROUPS, seen, strict=True):
        taken: set[str] = set()
        fields[name] = {key: Field(_free_name(key, taken), _sql_type(each)) for key, each in group.items()}
    return Columns(fields)


_known_groups: dict[tuple[GroupKinds, ...], tuple[GroupKinds, ...]] = {}


def _group_kinds(mapping: Mapping[str, Any]) -> GroupKinds:
    """The types of a mapping's values; an integer too large for SQL counts as a float."""
    values = mapping.values()
    kinds = tuple(map(type, values))
    if int in kinds:
        kinds = tuple([float if type(v) is int and abs(v) > _MAX_INTEGER else type(v) for v in values])
    return GroupKinds(Layout.of(mapping), kinds)


def _sql_type(kinds: set[type]) -> str:
    kinds = kinds - {type(None)}
    if kinds == {bool}:
        return "BOOLEAN"
    if kinds == {int}:
        return "BIGINT"
    if kinds and kinds <= {int, float}:
        return "DOUBLE"
    return "JSON" if kinds & {dict, list, tuple} else "VARCHAR"


def _free_name(key: str, taken: set[str]) -> str:
    """The key, numbered when another differs from it only in its case, which SQL does not see."""
    names = (key if i == 1 else f"{key}_{i}" for i in count(1))
    name = next(each for each in names if each.lower() not in taken)
    taken.add(name.lower())
    return name


def _struct(keys: Mapping[str, Field]) -> str:
    if not keys:
        return "JSON"
    return "STRUCT(" + ", ".join(f"{_quoted(field.name)} {field.kind}" for field in keys.values()) + ")"


def _quoted(name: str, mark: str = '"') -> str:
    return mark + name.replace(mark, mark * 2) + mark


def _is_plain_utc(text: str) -> bool:
    """True for a time that DuckDB reads as it stands."""
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return _UTC.fullmatch(text) is not None


def _moment(text: str) -> str | None:
    """An ISO time as DuckDB reads a UTC timestamp, or None."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (moment if moment.tzinfo is None else moment.astimezone(UTC)).strftime("%Y-%m-%d %H:%M:%S.%f")
