"""Records as lines of JSON for other tools: a record's own text is copied where it says all."""

import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from typing import Any

import orjson

from corewise.spec.record import RECORD_SCHEMA, Record
from corewise.store.lines import Entry
from corewise.store.parts import Place
from corewise.store.places import PlaceReader

_NAMES = tuple(each.name for each in fields(Record))
_KEYS = ["schema", *_NAMES]
_NUL = b"\\u0000"  # which readers choke on; `Record.to_json` writes it in another way


def exported(record: Record) -> dict[str, Any]:
    """The record as it stands in an export: all its values and its samples."""
    return {**record.to_json(), "samples_s": list(record.samples_s)}


def samples_text(record: Record, entry: Entry) -> bytes | None:
    """The samples as JSON, where the text of the record itself can be copied; None where it cannot."""
    return orjson.dumps(record.samples_s) if _says_all(record, entry) else None


def row_texts(
    found: Iterable[tuple[Place, bytes | None]], made: Callable[[Record], dict[str, Any]]
) -> Iterator[bytes]:
    """The JSON of each record with its samples, given what `samples_text` gave; `made` where it gave None."""
    with PlaceReader() as reader:
        for place, samples in found:
            if samples is None:
                yield _text(reader.record(place), made)
            else:
                yield b"".join((reader.json_text(place), b',"samples_s":', samples, b"}"))


def whole_row(record: Record) -> dict[str, Any]:
    """As `exported`, for a record as it was read: its values are JSON's own already."""
    if not (_has_numbers(record) and all(map(math.isfinite, record.metrics.values()))):
        return exported(record)
    values = {name: getattr(record, name) for name in _NAMES}
    return {"schema": RECORD_SCHEMA, **values, "samples_s": record.samples_s}


def _text(record: Record, made: Callable[[Record], dict[str, Any]]) -> bytes:
    """The JSON of what is made of a record; the slow way for what only Python's own reader takes."""
    try:
        text = orjson.dumps(made(record))
        if _NUL not in text:
            return text
    except TypeError:  # half a surrogate, or an integer of more than 64 bits
        pass
    plain = made(Record.from_json(record.to_json()))
    return json.dumps(plain, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _says_all(record: Record, entry: Entry) -> bool:
    """True when the text has every key of a record of this version, in order, and nothing else."""
    value = entry.value or {}
    return (
        entry.is_strict
        and list(value) == _KEYS
        and value["schema"] == RECORD_SCHEMA
        and _has_numbers(record)
        and _NUL not in entry.text
    )


def _has_numbers(record: Record) -> bool:
    """True when every metric is a number."""
    return set(map(type, record.metrics.values())) <= {float, int}
