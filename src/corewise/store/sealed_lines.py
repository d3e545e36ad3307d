"""Sealed lines: one JSON object per line, whose last key `crc` is the CRC-32 of all bytes before it.

People can read them and DuckDB can query them directly. Any changed byte in a line is detected.
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
# Orjson reads larger integers as floats.
_EXACT_UP_TO = 2**63


@dataclass(frozen=True, slots=True)
class SealedEntry:
    """One entry of a file of sealed lines: an object, damage, or an object within a damaged line.

    Attributes:
        line: from 1.
        offset: of the first byte of the line in the file.
        damage: empty if the line is intact.
        text: the sealed text of the object, perhaps with its newline.
        start: of that text within the line.
        is_strict: the text is strict JSON, without NaN or lone surrogates.
    """

    line: int
    offset: int
    value: dict[str, Any] | None
    damage: str
    text: bytes = b""
    start: int = 0
    is_strict: bool = False


def seal(data: Mapping[str, Any]) -> bytes:
    """Return the sealed line of an object, newline included; its first key must be `schema`."""
    if next(iter(data), None) != "schema":
        raise ValueError("a sealed line must begin with its schema version")
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # A lone surrogate becomes its JSON escape.
    body = text[:-1].encode("utf-8", "backslashreplace")
    return body + b',"crc":"%08x"}\n' % zlib.crc32(body)


def scan_lines(raw_lines: Iterable[bytes], line: int = 1, offset: int = 0) -> Iterator[SealedEntry]:
    """Yield every object and every damage in order; never raises for invalid bytes."""
    for number, raw in enumerate(raw_lines, line):
        value, is_strict = _parse_sealed(raw)
        if value is None:
            yield from _scan_damaged(raw.removesuffix(b"\n"), number, offset, has_newline=raw.endswith(b"\n"))
        else:
            damage = "" if raw.endswith(b"\n") else "no newline after its record"
            yield SealedEntry(number, offset, value, damage, raw, is_strict=is_strict)
        offset += len(raw)


def unseal(text: bytes) -> dict[str, Any] | None:
    """Return the object of an intact sealed line without its checksum, or None."""
    return _parse_sealed(text)[0]


def extract_sealed_part(text: bytes) -> memoryview | None:
    """Return the part of a sealed line that its checksum covers, or None if the checksum is wrong."""
    end = len(text) - text.endswith(b"\n")
    mark = _SEAL.fullmatch(text, max(0, end - _SEAL_BYTES), end)
    if mark is None:
        return None
    covered = memoryview(text)[: mark.start()]
    return covered if zlib.crc32(covered) == int(mark[1], 16) else None


def _parse_sealed(text: bytes) -> tuple[dict[str, Any] | None, bool]:
    """Return the object of an intact sealed line, or None, and whether its text is strict JSON."""
    if extract_sealed_part(text) is None:
        return None, False
    try:
        value, is_strict = _parse_json(text)
    except (ValueError, RecursionError):
        return None, False
    if not isinstance(value, dict):
        return None, False
    value.pop("crc", None)
    return value, is_strict


def _parse_json(text: bytes) -> tuple[Any, bool]:
    """Parse JSON like Python's own module, which accepts NaN, lone surrogates and any integer."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return json.loads(text), False
    params = value.get("params") if isinstance(value, dict) else None
    values = params.values() if isinstance(params, dict) else ()
    if float in set(map(type, values)) and any(type(v) is float and abs(v) >= _EXACT_UP_TO for v in values):
        return json.loads(text), True
    return value, True


def _scan_damaged(text: bytes, line: int, offset: int, has_newline: bool) -> Iterator[SealedEntry]:
    """Yield the damage of a line and any intact objects in it."""
    objects = list(_find_whole_objects(text))
    damage = _describe_damage(text, has_newline)
    if objects:
        damage += f"; {len(objects)} intact {'record' if len(objects) == 1 else 'records'} in it could be read"
    yield SealedEntry(line, offset, None, damage)
    for start, end, value in objects:
        yield SealedEntry(line, offset, value, "", text[start:end], start)


def _find_whole_objects(text: bytes) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Find objects with a valid seal in a damaged line, with their positions."""
    searched_to = 0
    for mark in _SEAL.finditer(text):
        for start in _START.finditer(text, searched_to, mark.start()):
            value = unseal(text[start.start() : mark.end()])
            if value is not None:
                yield start.start(), mark.end(), value
                searched_to = mark.end()
                break


def _describe_damage(text: bytes, has_newline: bool) -> str:
    if not text:
        return "an empty line"
    if not has_newline:
        return "truncated: the writer died or the disk was full"
    if b"\0" in text:
        return "contains NUL bytes: the machine went down during the write"
    try:
        text.decode("utf-8")
    except UnicodeDecodeError as error:
        return f"not UTF-8 at byte {error.start} of the line"
    if not _SEAL.search(text):
        return "no checksum: truncated, or not written by Corewise"
    return "the checksum does not match: bytes were changed, added or lost"
