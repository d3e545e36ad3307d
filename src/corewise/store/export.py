"""A store's records as one file for other tools: JSON, CSV or Parquet."""

import csv
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from corewise.spec.errors import UserError, nearest
from corewise.spec.record import Record
from corewise.store.query import fields_of, flat_select, table_of
from corewise.store.reader import ReadResult
from corewise.store.store import Store

FORMATS = ("csv", "json", "parquet")
_CSV_FIRST = ("trial_id", "study", "status", "kind", "reason")
_CSV_GROUPS = ("params", "metrics", "machine", "versions", "work")
_CSV_LAST = ("started_at", "finished_at", "corewise_version", "command")


def export_records(store: Store, fmt: str, out: Path | None) -> ReadResult:
    """Write all records to a file, or to standard output when `out` is None; what was read comes back."""
    if fmt not in FORMATS:
        raise UserError(f"unknown format {fmt!r}: {nearest(fmt, FORMATS)}")
    if fmt == "parquet" and out is None:
        raise UserError("parquet is not text: name a file with -o FILE")
    result = store.records()
    if out is None:
        _WRITERS[fmt](result.records, sys.stdout)
        return result
    try:
        with _written_aside(out) as path:
            if fmt == "parquet":
                _write_parquet(result.records, path)
            else:
                with open(path, "w", encoding="utf-8", newline="") as file:
                    _WRITERS[fmt](result.records, file)
    except OSError as error:
        raise UserError(
            f"{out} cannot be written: {error.strerror or error}; name another file with -o"
        ) from error
    return result


def exported(record: Record) -> dict[str, Any]:
    """The record as it stands in an export: all its values and its samples."""
    return {**record.to_json(), "samples_s": list(record.samples_s)}


def _write_json(records: Sequence[Record], file: TextIO) -> None:
    """A list with one record a line, in ASCII where the stream knows no better."""
    ascii_only = not (file.encoding or "").lower().startswith("utf")
    file.write("[")
    for i, record in enumerate(records):
        text = json.dumps(exported(record), ensure_ascii=ascii_only, allow_nan=False)
        file.write((",\n" if i else "\n") + text)
    file.write("\n]\n")


def _write_csv(records: Sequence[Record], file: TextIO) -> None:
    """One row a record; a column for each parameter and metric, named as in the JSON: `params.threads`."""
    keys = [
        (group, key)
        for group in _CSV_GROUPS
        for key in dict.fromkeys(key for record in records for key in getattr(record, group))
    ]
    writer = csv.writer(file, lineterminator="\n")
    names = [*_CSV_FIRST, *(f"{group}.{key}" for group, key in keys), *_CSV_LAST]
    writer.writerow(_cell(name) for name in (*names, "num_samples", "num_disturbed", "notes"))
    for record in records:
        values = [getattr(record, name) for name in _CSV_FIRST]
        values += [getattr(record, group).get(key) for group, key in keys]
        values += [getattr(record, name) for name in _CSV_LAST]
        values += [len(record.samples_s), len(record.disturbed), "; ".join(record.notes)]
        writer.writerow(_cell(value) for value in values)


def _cell(value: Any) -> Any:
    """A value for a CSV cell; text that a spreadsheet would run as a formula gets a quote before it."""
    if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)):
        return value
    if not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    text = value.replace("\r\n", "\n").replace("\r", "\n")
    return "'" + text if text.lstrip().startswith(("=", "+", "-", "@")) else text


_WRITERS: dict[str, Callable[[Sequence[Record], TextIO], None]] = {"csv": _write_csv, "json": _write_json}


def _write_parquet(records: Sequence[Record], path: Path) -> None:
    with table_of(records) as connection:
        name = str(path).replace("'", "''")
        connection.execute(f"COPY ({flat_select(fields_of(records))}) TO '{name}' (FORMAT parquet)")


@contextmanager
def _written_aside(out: Path) -> Iterator[Path]:
    """A path to write to; a plain file then takes its name in one step, a device is written straight."""
    if out.exists() and not out.is_file():
        yield out
        return
    final = out.resolve()
    aside = final.with_name(f".{final.name}.{os.getpid()}.part")
    try:
        yield aside
        os.replace(aside, final)
    finally:
        aside.unlink(missing_ok=True)
