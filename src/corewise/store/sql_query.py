"""SQL over a store. DuckDB only sees intact records, so damage never reaches a result."""

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corewise.errors import UserError
from corewise.store.file_parts import Damage
from corewise.store.json_rows import iterate_row_texts
from corewise.store.line_writer import is_full
from corewise.store.parallel_readers import MAX_PROCESSES
from corewise.store.sql_columns import SqlColumns, build_sql_columns, summarize_row
from corewise.store.store import Store

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_BUFFER_BYTES = 2**20
_ROW_GROUP_BYTES = 2**25
_MAX_ORDERED_BYTES = 2**28


@dataclass(frozen=True)
class QueryResult:
    """The columns and rows of a query result."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


def query(store: Store, sql: str) -> QueryResult:
    """Run a query over `records`; times are in UTC."""
    import duckdb

    with _open_records_view(store) as view:
        try:
            cursor = view.connection.execute(sql)
            columns = tuple(str(each[0]) for each in cursor.description or ())
            return QueryResult(columns, tuple(tuple(row) for row in cursor.fetchall()))
        except duckdb.Error as error:
            raise UserError(f"the query failed: {error}") from error


def write_parquet(store: Store, path: Path) -> tuple[int, tuple[Damage, ...]]:
    """Write the records to a Parquet file, with one column for each field of a group.

    The rows of a large store may not be in the order the trials finished.

    Returns:
        The number of records and the damage.

    Raises:
        OSError: if the file cannot be written.
    """
    import duckdb

    with _open_records_view(store) as view:
        name = str(path).replace("'", "''")
        num_rows = max(1, min(100_000, _ROW_GROUP_BYTES // view.rows.longest_bytes))
        # Preserving the order would hold most rows in memory.
        if view.rows.num_bytes > _MAX_ORDERED_BYTES:
            view.connection.execute("SET preserve_insertion_order = false")
        rows = view.rows.columns.build_flat_select()
        try:
            view.connection.execute(f"COPY ({rows}) TO '{name}' (FORMAT parquet, ROW_GROUP_SIZE {num_rows})")
        except duckdb.IOException as error:
            number = errno.ENOSPC if os.strerror(errno.ENOSPC) in str(error) else errno.EIO
            raise OSError(number, str(error)) from error
        except duckdb.Error as error:
            raise UserError(f"the records cannot be written as Parquet: {error}") from error
    return view.rows.num_rows, view.rows.damage


@dataclass(frozen=True)
class _Rows:
    """A file with the records of a store as JSON lines, and its columns."""

    path: Path
    columns: SqlColumns
    num_rows: int
    num_bytes: int
    longest_bytes: int
    damage: tuple[Damage, ...]


@dataclass(frozen=True)
class _View:
    """An in-memory database whose view `records` holds the records of a store."""

    connection: "DuckDBPyConnection"
    rows: _Rows


@contextmanager
def _open_records_view(store: Store) -> Iterator[_View]:
    """Open a view of the records of a store; its rows are in a temporary file."""
    import duckdb

    with tempfile.TemporaryDirectory() as folder:
        rows = _write_rows(store, Path(folder) / "records.jsonl")
        config: dict[str, Any] = {
            # Each thread holds rows in memory.
            "threads": min(MAX_PROCESSES, len(os.sched_getaffinity(0))),
            # Clusters are offline, so DuckDB must not download extensions.
            "autoinstall_known_extensions": False,
            "temp_directory": f"{folder}/duckdb",
        }
        name = str(rows.path).replace("'", "''")
        source = (
            f"read_json('{name}', format = 'newline_delimited', "
            f"maximum_object_size = {2 * rows.longest_bytes + 1_000_000}, "
            f"columns = {rows.columns.describe()})"
        )
        with duckdb.connect(":memory:", config=config) as connection:
            connection.execute(f"CREATE VIEW records AS {rows.columns.build_select(source)}")
            yield _View(connection, rows)


def _write_rows(store: Store, path: Path) -> _Rows:
    """Write one JSON line per record."""
    notes = store.read_contents(summarize_row)
    columns = build_sql_columns(record.value for record in notes.records)
    longest = 1
    samples = (
        (record.place, record.value.samples if columns.can_copy_text(record.value.groups) else None)
        for record in notes.records
    )
    try:
        with open(path, "wb", buffering=_BUFFER_BYTES) as file:
            for text in iterate_row_texts(samples, columns.build_row):
                file.write(text)
                file.write(b"\n")
                longest = max(longest, len(text))
    except OSError as error:
        if not is_full(error):
            raise
        raise UserError(
            f"the disk under {path.parent.parent} is full: the rows of the table do not fit; "
            "free space, or set TMPDIR to another folder"
        ) from error
    return _Rows(path, columns, len(notes.records), path.stat().st_size, longest, notes.damage)
