"""The SQL columns of records: names, types and rows."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from itertools import count
from typing import Any, NamedTuple

from corewise.store.compact_values import MappingLayout
from corewise.store.json_rows import dump_samples
from corewise.store.sealed_lines import SealedEntry
from corewise.study.record import Record

# Mappings whose keys become fields: `select params.threads, metrics.samples_per_s from records`.
GROUPS = ("params", "metrics", "machine", "versions", "code_versions", "work", "protocol")
_PLAIN_COLUMNS = {
    "trial_id": "VARCHAR",
    "study": "VARCHAR",
    "question": "VARCHAR",
    "status": "VARCHAR",
    "kind": "VARCHAR",
    "reason": "VARCHAR",
    "command": "VARCHAR",
    "corewise_version": "VARCHAR",
    "generation": "VARCHAR",
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


class GroupTypes(NamedTuple):
    """The keys of a group in one record, with the Python type of each value."""

    layout: MappingLayout
    types: tuple[type, ...]


class RowSummary(NamedTuple):
    """What a record adds to the columns.

    Attributes:
        groups: in the order of GROUPS.
        samples: as JSON, if the stored text of the record can be copied.
    """

    groups: tuple[GroupTypes, ...]
    samples: bytes | None


@dataclass(frozen=True)
class SqlField:
    """One key of a group as a field of an SQL structure."""

    name: str
    sql_type: str


@dataclass(frozen=True)
class SqlColumns:
    """The fields of every group by key, each with a type that fits all its values."""

    fields: Mapping[str, Mapping[str, SqlField]]

    def can_copy_text(self, groups: Iterable[GroupTypes]) -> bool:
        """Return True if the stored text of a record names its groups as these columns do."""
        return self._names_match and all(
            group_types.types or not self.fields[name] for name, group_types in zip(GROUPS, groups, strict=True)
        )

    @cached_property
    def _names_match(self) -> bool:
        return all(key == field.name for keys in self.fields.values() for key, field in keys.items())

    def describe(self) -> str:
        """Return the columns as an argument of `read_json`."""
        sql_types = {**_PLAIN_COLUMNS, **{group: _format_struct(keys) for group, keys in self.fields.items()}}
        return (
            "{"
            + ", ".join(f"{name}: {_wrap_in_quotes(sql_type, chr(39))}" for name, sql_type in sql_types.items())
            + "}"
        )

    def build_select(self, source: str) -> str:
        """Build a SELECT of all columns; a group without keys is NULL."""
        empty = ", ".join(f"NULL::JSON AS {group}" for group, keys in self.fields.items() if not keys)
        return f"SELECT *{f' REPLACE ({empty})' if empty else ''} FROM {source}"

    def build_flat_select(self) -> str:
        """Build a SELECT over `records` with a column `group.field` for each field."""
        parts = [name for name in _PLAIN_COLUMNS if name not in ("runs", "disturbed")]
        for group, keys in self.fields.items():
            for field in keys.values():
                extracted = f"struct_extract({group}, {_wrap_in_quotes(field.name, chr(39))})"
                parts.append(f"{extracted} AS {_wrap_in_quotes(f'{group}.{field.name}')}")
        parts += ["CAST(runs AS VARCHAR) AS runs", "CAST(disturbed AS VARCHAR) AS disturbed"]
        return f"SELECT {', '.join(parts)} FROM records"

    def build_row(self, record: Record) -> dict[str, Any]:
        """Build the row of a record."""
        row = {name: getattr(record, name) for name in (*_PLAIN_COLUMNS, *GROUPS)}
        row["started_at"], row["finished_at"] = (
            _format_timestamp(record.started_at),
            _format_timestamp(record.finished_at),
        )
        for group, keys in self.fields.items():
            row[group] = {keys[key].name: value for key, value in row[group].items()} or None
        return row


def summarize_row(record: Record, entry: SealedEntry) -> RowSummary:
    """Summarize what the columns and the row of a record need."""
    groups = tuple([_read_group_types(getattr(record, group)) for group in GROUPS])
    has_plain_times = _is_plain_utc(record.started_at) and _is_plain_utc(record.finished_at)
    samples = dump_samples(record, entry) if has_plain_times else None
    return RowSummary(_known_groups.setdefault(groups, groups), samples)


def build_sql_columns(notes: Iterable[RowSummary]) -> SqlColumns:
    """Build columns that fit all these records, in the order of first appearance."""
    seen: list[dict[str, set[type]]] = [{} for _ in GROUPS]
    for groups in dict.fromkeys(note.groups for note in notes):
        for group, group_types in zip(seen, groups, strict=True):
            for key, value_type in zip(group_types.layout.names, group_types.types, strict=True):
                group.setdefault(key, set()).add(value_type)
    fields: dict[str, dict[str, SqlField]] = {}
    for name, group in zip(GROUPS, seen, strict=True):
        taken: set[str] = set()
        fields[name] = {key: SqlField(_choose_name(key, taken), _choose_sql_type(each)) for key, each in group.items()}
    return SqlColumns(fields)


_known_groups: dict[tuple[GroupTypes, ...], tuple[GroupTypes, ...]] = {}


def _read_group_types(mapping: Mapping[str, Any]) -> GroupTypes:
    """Return the types of the values of a mapping; an integer too large for SQL counts as float."""
    values = mapping.values()
    types = tuple(map(type, values))
    if int in types:
        types = tuple([float if type(v) is int and abs(v) > _MAX_INTEGER else type(v) for v in values])
    return GroupTypes(MappingLayout.from_names(mapping), types)


def _choose_sql_type(types: set[type]) -> str:
    types = types - {type(None)}
    if types == {bool}:
        return "BOOLEAN"
    if types == {int}:
        return "BIGINT"
    if types and types <= {int, float}:
        return "DOUBLE"
    return "JSON" if types & {dict, list, tuple} else "VARCHAR"


def _choose_name(key: str, taken: set[str]) -> str:
    """Return the key, numbered if another differs only in case, which SQL ignores."""
    names = (key if i == 1 else f"{key}_{i}" for i in count(1))
    name = next(each for each in names if each.lower() not in taken)
    taken.add(name.lower())
    return name


def _format_struct(keys: Mapping[str, SqlField]) -> str:
    if not keys:
        return "JSON"
    return "STRUCT(" + ", ".join(f"{_wrap_in_quotes(field.name)} {field.sql_type}" for field in keys.values()) + ")"


def _wrap_in_quotes(name: str, mark: str = '"') -> str:
    return mark + name.replace(mark, mark * 2) + mark


def _is_plain_utc(text: str) -> bool:
    """Return True for a time that DuckDB reads without conversion."""
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return _UTC.fullmatch(text) is not None


def _format_timestamp(text: str) -> str | None:
    """Convert an ISO time to a UTC timestamp for DuckDB, or None if it is invalid."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (moment if moment.tzinfo is None else moment.astimezone(UTC)).strftime("%Y-%m-%d %H:%M:%S.%f")
