"""Sealed lines: one JSON object a line, whose last key `crc` is the CRC-32 of all that stands before it.

A person can read them and DuckDB can query them as they are; a changed byte anywhere in a line is found.
"""

import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

_START = re.compile(rb'\{"schema":')
_SEAL = re.compile(rb',"crc":"([0-9a-f]{8})"\}')
_SEAL_BYTES = 18
_EXACT_UP_TO = 2**63  # beyond, orjson reads a whole number as a float


@dataclass(frozen=True, slots=True)
class Entry:
    """What stands at one place of a file of sealed lines: an object, a damage, or an object amid damage."""

    line: int  # from 1
    offset: int  # of the line's first byte in the file
    value: dict[str, Any] | None
    damage: str  # empty when all is well
    text: bytes = b""  # the object's own sealed text, perhaps with its newline
    start: int = 0  # of that text within the line
    is_strict: bool = False  # the text is JSON by the letter: no NaN, no half surrogate


def seal(data: Mapping[str, Any]) -> bytes:
    """The sealed line of an object whose first key is `schema`, newline included."""
    if next(iter(data), None) != "schema":
        raise ValueError("a sealed line begins with its schema version")
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    body = text[:-1].encode("utf-8", "backslashreplace")  # a lone surrogate becomes its own JSON escape
    return body + b',"crc":"%08x"}\n' % zlib.crc32(body)


def scan(raw_lines: Iterable[bytes], line: int = 1, offset: int = 0) -> Iterator[Entry]:
    """Every object found in the lines and every damage, in order; never raises for what the bytes are."""
    for number, raw in enumerate(raw_lines, line):
        value, is_strict = _unsealed(raw)
        if value is None:
            yield from _damaged(raw.removesuffix(b"\n"), number, offset, has_newline=raw.endswith(b"\n"))
        else:
            damage = "" if raw.endswith(b"\n") else "no newline after its record"
            yield Entry(number, offset, value, damage, raw, is_strict=is_strict)
        offset += len(raw)


def unseal(text: bytes) -> dict[str, Any] | None:
    """The object that a whole sealed line holds, its checksum aside, or None."""
    return _unsealed(text)[0]


def sealed_part(text: bytes) -> memoryview | None:
    """What the checksum of a whole sealed line covers, all but its end, or None where it does not hold."""
    end = len(text) - text.endswith(b"\n")
    mark = _SEAL.fullmatch(text, max(0, end - _SEAL_BYTES), end)
    if mark is None:
        return None
    covered = memoryview(text)[: mark.start()]
    return covered if zlib.crc32(covered) == int(mark[1], 16) else None


def _unsealed(text: bytes) -> tuple[dict[str, Any] | None, bool]:
    """The object that a whole sealed line holds, or None, and whether its text is JSON by the letter."""
    if sealed_part(text) is None:
        return None, False
    try:
        value, is_strict = _parsed(text)
    except (ValueError, RecursionError):
        return None, False
    if not isinstance(value, dict):
        return None, False
    value.pop("crc", None)
    return value, is_strict


def _parsed(text: bytes) -> tuple[Any, bool]:
    """The values as Python's reader gives them, which also takes NaN, half a surrogate and any integer."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return json.loads(text), False
    params = value.get("params") if isinstance(value, dict) else None
    values = params.values() if isinstance(params, dict) else ()
    if float in set(map(type, values)) and any(type(v) is float and abs(v) >= _EXACT_UP_TO for v in values):
        return json.loads(text), True
    return value, True


def _damaged(text: bytes, line: int, offset: int, has_newline: bool) -> Iterator[Entry]:
    """The damage of a line that is not whole, and any whole object still standing in it."""
    found = list(_whole_objects(text))
    damage = _what_is_wrong(text, has_newline)
    if found:
        damage += f"; {len(found)} whole {'record' if len(found) == 1 else 'records'} in it could be read"
    yield Entry(line, offset, None, damage)
    for start, end, value in found:
        yield Entry(line, offset, value, "", text[start:end], start)


def _whole_objects(text: bytes) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Objects whose seal holds, although bytes before or after them were changed, and where they stand."""
    since = 0
    for mark in _SEAL.finditer(text):
        for start in _START.finditer(text, since, mark.start()):
            value = unseal(text[start.start() : mark.end()])
            if value is not None:
                yield start.start(), mark.end(), value
                since = mark.end()
                break


def _what_is_wrong(text: bytes, has_newline: bool) -> str:
    if not text:
        return "an empty line"
    if not has_newline:
        return "cut short: its writer died or the disk filled up while it was written"
    if b"\0" in text:
        return "holds NUL bytes: the machine went down while it was written"
    try:
        text.decode("utf-8")
    except UnicodeDecodeError as error:
        return f"not UTF-8 at byte {error.start} of the line"
    if not _SEAL.search(text):
        return "no checksum: cut short, or not written by Corewise"
    return "its checksum does not match: bytes were changed, added or lost"
