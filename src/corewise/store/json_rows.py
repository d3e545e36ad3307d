"""Records as JSON lines for other tools; the stored text is copied if it is complete."""

import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from typing import Any

import orjson

from corewise.store.file_parts import RecordPlace
from corewise.store.record_lookup import PlaceReader
from corewise.store.sealed_lines import SealedEntry
from corewise.study.record import RECORD_SCHEMA, Record

_NAMES = tuple(each.name for each in fields(Record))
_KEYS = ["schema", *_NAMES]
# Some readers reject escaped NUL characters; `Record.to_json` replaces them.
_NUL = b"\\u0000"


def build_export_row(record: Record) -> dict[str, Any]:
    """Build the exported form of a record: all values and samples."""
    return {**record.to_json(), "samples_s": list(record.samples_s)}


def dump_samples(record: Record, entry: SealedEntry) -> bytes | None:
    """Return the samples as JSON if the stored text of the record can be copied, otherwise None."""
    return orjson.dumps(record.samples_s) if _is_complete(record, entry) else None


def iterate_row_texts(
    places: Iterable[tuple[RecordPlace, bytes | None]], build_row: Callable[[Record], dict[str, Any]]
) -> Iterator[bytes]:
    """Yield the JSON of each record with its samples; `build_row` is used if `dump_samples` gave None."""
    with PlaceReader() as reader:
        for place, samples in places:
            if samples is None:
                yield _dump_row(reader.read_record(place), build_row)
            else:
                yield b"".join((reader.read_json_text(place), b',"samples_s":', samples, b"}"))


def build_full_row(record: Record) -> dict[str, Any]:
    """Build the exported form of a record that was read from JSON, without converting its values."""
    if not (_has_numbers(record) and all(map(math.isfinite, record.metrics.values()))):
        return build_export_row(record)
    values = {name: getattr(record, name) for name in _NAMES}
    return {"schema": RECORD_SCHEMA, **values, "samples_s": record.samples_s}


def _dump_row(record: Record, build_row: Callable[[Record], dict[str, Any]]) -> bytes:
    """Convert a row to JSON; Python's own module handles what orjson rejects."""
    try:
        text = orjson.dumps(build_row(record))
        if _NUL not in text:
            return text
    except TypeError:
        # Orjson rejects lone surrogates and integers beyond 64 bits.
        pass
    plain = build_row(Record.from_json(record.to_json()))
    return json.dumps(plain, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _is_complete(record: Record, entry: SealedEntry) -> bool:
    """Return True if the text has exactly the keys of this record version, in order."""
    value = entry.value or {}
    return (
        entry.is_strict
        and list(value) == _KEYS
        and value["schema"] == RECORD_SCHEMA
        and _has_numbers(record)
        and _NUL not in entry.text
    )


def _has_numbers(record: Record) -> bool:
    """Return True if every metric is a number."""
    return set(map(type, record.metrics.values())) <= {float, int}
