"""A store's records as one file for other tools: JSON, CSV or Parquet."""

import csv
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TextIO

from corewise.spec.errors import UserError, nearest
from corewise.spec.record import Record
from corewise.store.aside import written_aside
from corewise.store.lines import Entry
from corewise.store.packed import Layout, PackedMapping
from corewise.store.parts import Damage
from corewise.store.query import write_parquet
from corewise.store.reader import Contents
from corewise.store.row_texts import row_texts, samples_text, whole_row
from corewise.store.store import Store

FORMATS = ("csv", "json", "parquet")
_CSV_FIRST = ("trial_id", "study", "status", "kind", "reason")
_CSV_GROUPS = ("params", "metrics", "machine", "versions", "work")
_CSV_LAST = ("started_at", "finished_at", "corewise_version", "command")
_CSV_COUNTS = ("num_samples", "num_disturbed", "notes")
_BUFFER_BYTES = 2**20


@dataclass(frozen=True)
class Exported:
    """How many records were written, and what of the store could not be read."""

    num_records: int
    damage: tuple[Damage, ...]


def export_records(store: Store, fmt: str, out: Path | None) -> Exported:
    """Write all records to a file, or to standard output when `out` is None; their number comes back."""
    if fmt not in FORMATS:
        raise UserError(f"unknown format {fmt!r}: {nearest(fmt, FORMATS)}")
    if fmt == "parquet" and out is None:
        raise UserError("parquet is not text: name a file with -o FILE")
    if fmt == "csv":
        rows = store.contents(_csv_row)
        with _text_file(out) as text:
            _write_csv(rows, text)
        return Exported(len(rows.standing), rows.damage)
    if fmt == "json":
        samples = store.contents(samples_text)
        if out is None:
            _write_json_text(samples, sys.stdout)
        else:
            with written_aside(out) as path, open(path, "wb", buffering=_BUFFER_BYTES) as file:
                _write_json(samples, file)
        return Exported(len(samples.standing), samples.damage)
    assert out is not None
    with written_aside(out) as path:
        return Exported(*write_parquet(store, path))


@contextmanager
def _text_file(out: Path | None) -> Iterator[TextIO]:
    if out is None:
        yield sys.stdout
        return
    with written_aside(out) as path, open(path, "w", _BUFFER_BYTES, "utf-8", "backslashreplace", "") as file:
        yield file


def _write_json(samples: Contents[bytes | None], file: BinaryIO) -> None:
    """A list with one record a line."""
    file.write(b"[")
    for i, text in enumerate(_texts(samples)):
        file.write(b",\n" if i else b"\n")
        file.write(text)
    file.write(b"\n]\n")


def _write_json_text(samples: Contents[bytes | None], file: TextIO) -> None:
    """The same for a stream of text, in ASCII where it knows no better."""
    ascii_only = not (file.encoding or "").lower().startswith("utf")
    file.write("[")
    for i, text in enumerate(_texts(samples)):
        told = text.decode()
        if ascii_only and not told.isascii():
            told = json.dumps(json.loads(told), separators=(",", ":"))
        file.write((",\n" if i else "\n") + told)
    file.write("\n]\n")


def _texts(samples: Contents[bytes | None]) -> Iterator[bytes]:
    return row_texts(((found.place, found.kept) for found in samples.standing), whole_row)


class _CsvRow(NamedTuple):
    """What a CSV row needs of a record."""

    first: tuple[Any, ...]
    groups: tuple[PackedMapping, ...]
    last: tuple[Any, ...]


def _csv_row(record: Record, entry: Entry) -> _CsvRow:
    counts = (len(record.samples_s), len(record.disturbed), "; ".join(record.notes))
    return _CsvRow(
        tuple([sys.intern(getattr(record, name)) for name in _CSV_FIRST]),
        tuple([PackedMapping.of(getattr(record, group)) for group in _CSV_GROUPS]),
        (*(getattr(record, name) for name in _CSV_LAST), *counts),
    )


def _write_csv(rows: Contents[_CsvRow], file: TextIO) -> None:
    """One row a record; a column for each parameter and metric, named as in the JSON: `params.threads`."""
    columns = [
        tuple(dict.fromkeys(name for layout in _layouts(rows, i) for name in layout.names))
        for i in range(len(_CSV_GROUPS))
    ]
    named = [f"{group}.{name}" for group, names in zip(_CSV_GROUPS, columns, strict=True) for name in names]
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([_cell(name) for name in (*_CSV_FIRST, *named, *_CSV_LAST, *_CSV_COUNTS)])
    texts = _Cells()
    for found in rows.standing:
        first, groups, last = found.kept
        cells = [*map(_cell, first)]
        for mapping, names in zip(groups, columns, strict=True):
            values = mapping.values_in_order if mapping.layout.names == names else map(mapping.get, names)
            cells += [v if type(v) is float else texts[v] if type(v) is str else _cell(v) for v in values]
        writer.writerow([*cells, *map(_cell, last)])


def _layouts(rows: Contents[_CsvRow], group: int) -> dict[Layout, None]:
    """The layouts of a group, in the order of the rows."""
    return dict.fromkeys(found.kept.groups[group].layout for found in rows.standing)


class _Cells(dict[str, str]):
    """The cells of texts that come back again and again."""

    def __missing__(self, text: str) -> str:
        cell: str = _cell(text)
        self[text] = cell
        return cell


def _cell(value: Any) -> Any:
    """A value for a CSV cell; text that a spreadsheet would run as a formula gets a quote before it."""
    if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)):
        return value
    if not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    text = value.replace("\r\n", "\n").replace("\r", "\n")
    return "'" + text if text.lstrip().startswith(("=", "+", "-", "@")) else text
