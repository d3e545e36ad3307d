"""Export the records of a store as JSON, CSV or Parquet."""

import csv
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TextIO

from corewise.errors import UserError, suggest_nearest
from corewise.store.atomic_files import write_atomically
from corewise.store.compact_values import MappingLayout, PackedMapping
from corewise.store.file_parts import Damage
from corewise.store.json_rows import build_full_row, dump_samples, iterate_row_texts
from corewise.store.record_reader import StoreContents
from corewise.store.sealed_lines import SealedEntry
from corewise.store.sql_query import write_parquet
from corewise.store.store import Store
from corewise.study.record import Record

FORMATS = ("csv", "json", "parquet")
_CSV_FIRST = ("trial_id", "study", "status", "kind", "reason")
_CSV_GROUPS = ("params", "metrics", "machine", "versions", "code_versions", "work")
_CSV_LAST = ("started_at", "finished_at", "generation", "corewise_version", "command")
_CSV_COUNTS = ("num_samples", "num_disturbed", "notes")
_BUFFER_BYTES = 2**20


@dataclass(frozen=True)
class ExportResult:
    """The number of written records, and the damage in the store."""

    num_records: int
    damage: tuple[Damage, ...]


def export_records(store: Store, fmt: str, out: Path | None) -> ExportResult:
    """Write all records to a file, or to standard output if `out` is None."""
    if fmt not in FORMATS:
        raise UserError(f"unknown format {fmt!r}: {suggest_nearest(fmt, FORMATS)}")
    if fmt == "parquet" and out is None:
        raise UserError("parquet is not a text format: name a file with -o FILE")
    if fmt == "csv":
        rows = store.read_contents(_extract_csv_row)
        with _open_text_file(out) as text:
            _write_csv(rows, text)
        return ExportResult(len(rows.records), rows.damage)
    if fmt == "json":
        samples = store.read_contents(dump_samples)
        if out is None:
            _write_json_text(samples, sys.stdout)
        else:
            with write_atomically(out) as path, open(path, "wb", buffering=_BUFFER_BYTES) as file:
                _write_json(samples, file)
        return ExportResult(len(samples.records), samples.damage)
    assert out is not None
    with write_atomically(out) as path:
        return ExportResult(*write_parquet(store, path))


@contextmanager
def _open_text_file(out: Path | None) -> Iterator[TextIO]:
    if out is None:
        yield sys.stdout
        return
    with write_atomically(out) as path, open(path, "w", _BUFFER_BYTES, "utf-8", "backslashreplace", "") as file:
        yield file


def _write_json(samples: StoreContents[bytes | None], file: BinaryIO) -> None:
    """Write a JSON list with one record per line."""
    file.write(b"[")
    for i, text in enumerate(_iterate_texts(samples)):
        file.write(b",\n" if i else b"\n")
        file.write(text)
    file.write(b"\n]\n")


def _write_json_text(samples: StoreContents[bytes | None], file: TextIO) -> None:
    """Write a JSON list to a text stream, in ASCII if its encoding is not UTF."""
    ascii_only = not (file.encoding or "").lower().startswith("utf")
    file.write("[")
    for i, text in enumerate(_iterate_texts(samples)):
        decoded = text.decode()
        if ascii_only and not decoded.isascii():
            decoded = json.dumps(json.loads(decoded), separators=(",", ":"))
        file.write((",\n" if i else "\n") + decoded)
    file.write("\n]\n")


def _iterate_texts(samples: StoreContents[bytes | None]) -> Iterator[bytes]:
    return iterate_row_texts(((record.place, record.value) for record in samples.records), build_full_row)


class _CsvRow(NamedTuple):
    """The values of a record that a CSV row needs."""

    first: tuple[Any, ...]
    groups: tuple[PackedMapping, ...]
    last: tuple[Any, ...]


def _extract_csv_row(record: Record, entry: SealedEntry) -> _CsvRow:
    counts = (len(record.samples_s), len(record.disturbed), "; ".join(record.notes))
    return _CsvRow(
        tuple([sys.intern(getattr(record, name)) for name in _CSV_FIRST]),
        tuple([PackedMapping.from_mapping(getattr(record, group)) for group in _CSV_GROUPS]),
        (*(getattr(record, name) for name in _CSV_LAST), *counts),
    )


def _write_csv(rows: StoreContents[_CsvRow], file: TextIO) -> None:
    """Write one row per record; columns are named as in JSON, for example `params.threads`."""
    columns = [
        tuple(dict.fromkeys(name for layout in _list_layouts(rows, i) for name in layout.names))
        for i in range(len(_CSV_GROUPS))
    ]
    named = [f"{group}.{name}" for group, names in zip(_CSV_GROUPS, columns, strict=True) for name in names]
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([_format_cell(name) for name in (*_CSV_FIRST, *named, *_CSV_LAST, *_CSV_COUNTS)])
    texts = _Cells()
    for record in rows.records:
        first, groups, last = record.value
        cells = [*map(_format_cell, first)]
        for mapping, names in zip(groups, columns, strict=True):
            values = mapping.values_in_order if mapping.layout.names == names else map(mapping.get, names)
            cells += [v if type(v) is float else texts[v] if type(v) is str else _format_cell(v) for v in values]
        writer.writerow([*cells, *map(_format_cell, last)])


def _list_layouts(rows: StoreContents[_CsvRow], group: int) -> dict[MappingLayout, None]:
    """Return the layouts of a group in the order of the rows."""
    return dict.fromkeys(record.value.groups[group].layout for record in rows.records)


class _Cells(dict[str, str]):
    """A cache of formatted cells, because most texts occur many times."""

    def __missing__(self, text: str) -> str:
        cell: str = _format_cell(text)
        self[text] = cell
        return cell


def _format_cell(value: Any) -> Any:
    """Format a CSV cell; a quote precedes text that a spreadsheet would run as a formula."""
    if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)):
        return value
    if not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    text = value.replace("\r\n", "\n").replace("\r", "\n")
    return "'" + text if text.lstrip().startswith(("=", "+", "-", "@")) else text
