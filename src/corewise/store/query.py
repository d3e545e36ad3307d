"""SQL over a store: DuckDB reads what the checked reader found whole, so damage never reaches an answer."""

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corewise.spec.errors import UserError
from corewise.store.columns import Columns, columns_of, row_note
from corewise.store.parts import Damage
from corewise.store.row_texts import row_texts
from corewise.store.side_readers import MAX_PROCESSES
from corewise.store.store import Store
from corewise.store.writer import is_full

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_BUFFER_BYTES = 2**20
_ROW_GROUP_BYTES = 2**25
_MAX_ORDERED_BYTES = 2**28


@dataclass(frozen=True)
class Answer:
    """What a query gave."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


def query(store: Store, sql: str) -> Answer:
    """The answer to a query over `records`; times are in UTC."""
    import duckdb

    with _records_view(store) as view:
        try:
            cursor = view.connection.execute(sql)
            columns = tuple(str(each[0]) for each in cursor.description or ())
            return Answer(columns, tuple(tuple(row) for row in cursor.fetchall()))
        except duckdb.Error as error:
            raise UserError(f"the query failed: {error}") from error


def write_parquet(store: Store, path: Path) -> tuple[int, tuple[Damage, ...]]:
    """Write the records to a Parquet file, with one column for each field of a group; may raise OSError.

    Their number comes back, and what could not be read. The rows of a large store need not be in the order
    the trials finished.
    """
    import duckdb

    with _records_view(store) as view:
        name = str(path).replace("'", "''")
        num_rows = max(1, min(100_000, _ROW_GROUP_BYTES // view.rows.longest_bytes))
        if view.rows.num_bytes > _MAX_ORDERED_BYTES:  # to keep their order, most would be held in memory
            view.connection.execute("SET preserve_insertion_order = false")
        rows = view.rows.columns.flat_select()
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
    """A file with the records of a store as lines of JSON, and what its columns are."""

    path: Path
    columns: Columns
    num_rows: int
    num_bytes: int
    longest_bytes: int
    damage: tuple[Damage, ...]


@dataclass(frozen=True)
class _View:
    """A database in memory whose view `records` holds the records of a store."""

    connection: "DuckDBPyConnection"
    rows: _Rows


@contextmanager
def _records_view(store: Store) -> Iterator[_View]:
    """The view of a store's records; the rows lie in a temporary file while it is open."""
    import duckdb

    with tempfile.TemporaryDirectory() as folder:
        rows = _write_rows(store, Path(folder) / "records.jsonl")
        config: dict[str, Any] = {
            "threads": min(MAX_PROCESSES, len(os.sched_getaffinity(0))),  # each holds rows in memory
            "autoinstall_known_extensions": False,  # clusters are offline; nothing is fetched
            "temp_directory": f"{folder}/duckdb",
        }
        name = str(rows.path).replace("'", "''")
        source = (
            f"read_json('{name}', format = 'newline_delimited', "
            f"maximum_object_size = {2 * rows.longest_bytes + 1_000_000}, "
            f"columns = {rows.columns.described()})"
        )
        with duckdb.connect(":memory:", config=config) as connection:
            connection.execute(f"CREATE VIEW records AS {rows.columns.select(source)}")
            yield _View(connection, rows)


def _write_rows(store: Store, path: Path) -> _Rows:
    """Write one JSON line a record."""
    notes = store.contents(row_note)
    columns = columns_of(found.kept for found in notes.standing)
    longest = 1
    samples = (
        (found.place, found.kept.samples if columns.fit(found.kept.groups) else None)
        for found in notes.standing
    )
    try:
        with open(path, "wb", buffering=_BUFFER_BYTES) as file:
            for text in row_texts(samples, columns.row):
                file.write(text)
                file.write(b"\n")
                longest = max(longest, len(text))
    except OSError as error:
        if not is_full(error):
            raise
        raise UserError(
            f"the disk under {path.parent.parent} is full: the rows of the table do not fit; "
            "free space, or name another folder in TMPDIR"
        ) from error
    return _Rows(path, columns, len(notes.standing), path.stat().st_size, longest, notes.damage)
