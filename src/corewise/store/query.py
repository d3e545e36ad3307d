"""SQL over a store: DuckDB reads what the checked reader found whole, so damage never reaches an answer."""

import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corewise.spec.errors import UserError
from corewise.spec.record import Record
from corewise.store.store import Store

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

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


@dataclass(frozen=True)
class Answer:
    """What a query gave."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


def query(store: Store, sql: str) -> Answer:
    """The answer to a query over the table `records`; times are in UTC."""
    import duckdb

    with table_of(store.records().records) as connection:
        try:
            cursor = connection.execute(sql)
            columns = tuple(str(each[0]) for each in cursor.description or ())
            return Answer(columns, tuple(tuple(row) for row in cursor.fetchall()))
        except duckdb.Error as error:
            raise UserError(f"the query failed: {error}") from error


@dataclass(frozen=True)
class Field:
    """One key of a group of mappings, as a field of an SQL structure."""

    name: str
    kind: str


Fields = Mapping[str, Mapping[str, Field]]  # group -> key -> field


@contextmanager
def table_of(records: Sequence[Record]) -> Iterator["DuckDBPyConnection"]:
    """A connection to a database in memory whose table `records` holds the records that a store gave."""
    import duckdb

    config: dict[str, Any] = {
        "threads": len(os.sched_getaffinity(0)),
        "autoinstall_known_extensions": False,  # clusters are offline; nothing is fetched
    }
    fields = fields_of(records)
    columns = {**_PLAIN_COLUMNS, **{group: _struct(keys) for group, keys in fields.items()}}
    described = ", ".join(f"{name}: {_quoted(kind, chr(39))}" for name, kind in columns.items())
    with duckdb.connect(":memory:", config=config) as connection, tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "records.jsonl"
        longest = _write_rows(path, records, fields)
        connection.execute(
            "CREATE TABLE records AS SELECT * FROM read_json(?, format = 'newline_delimited', "
            f"maximum_object_size = {2 * longest + 1_000_000}, columns = {{{described}}})",
            [str(path)],
        )
        yield connection


def fields_of(records: Sequence[Record]) -> Fields:
    """The fields of every group, each of a type that holds all its values."""
    fields: dict[str, dict[str, Field]] = {}
    for group in GROUPS:
        values: dict[str, list[Any]] = {}
        for record in records:
            for key, value in getattr(record, group).items():
                values.setdefault(str(key), []).append(value)
        taken: set[str] = set()
        fields[group] = {k: Field(_free_name(k, taken), _sql_type(each)) for k, each in values.items()}
    return fields


def flat_select(fields: Fields) -> str:
    """A SELECT over `records` with one column for each field of a group, named `group.field`."""
    parts = [name for name in _PLAIN_COLUMNS if name not in ("runs", "disturbed")]
    for group, keys in fields.items():
        for field in keys.values():
            extracted = f"struct_extract({group}, {_quoted(field.name, chr(39))})"
            parts.append(f"{extracted} AS {_quoted(f'{group}.{field.name}')}")
    parts += ["CAST(runs AS VARCHAR) AS runs", "CAST(disturbed AS VARCHAR) AS disturbed"]
    return f"SELECT {', '.join(parts)} FROM records"


def _write_rows(path: Path, records: Iterable[Record], fields: Fields) -> int:
    """Write one JSON line a record and give back the length of the longest in bytes."""
    longest = 0
    with open(path, "wb") as file:
        for record in records:
            row: dict[str, Any] = {name: getattr(record, name) for name in (*_PLAIN_COLUMNS, *GROUPS)}
            row["started_at"], row["finished_at"] = _moment(record.started_at), _moment(record.finished_at)
            for group, keys in fields.items():
                row[group] = {keys[key].name: value for key, value in row[group].items()} or None
            line = json.dumps(row, ensure_ascii=False, allow_nan=False).encode("utf-8") + b"\n"
            file.write(line)
            longest = max(longest, len(line))
    return longest


def _sql_type(values: Sequence[Any]) -> str:
    kinds = {type(value) for value in values if value is not None}
    if kinds == {bool}:
        return "BOOLEAN"
    if kinds == {int} and all(value is None or abs(value) < 2**63 for value in values):
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


def _moment(text: str) -> str | None:
    """An ISO time as DuckDB reads a UTC timestamp, or None."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (moment if moment.tzinfo is None else moment.astimezone(UTC)).strftime("%Y-%m-%d %H:%M:%S.%f")
