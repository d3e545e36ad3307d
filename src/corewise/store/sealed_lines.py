"""Sealed lines: one JSON object per line, whose last key `crc` is the CRC-32 of all bytes before it.

People can read them and DuckDB can query them directly. Any changed byte in a line is detected.
"""

import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import orjson

_START = re.compile(rb'\{"schema":')
_SEAL = re.compile(rb',"crc":"([0-9a-f]{8})"\}')
_SEAL_BYTES = 18
# Orjson reads larger integers as floats.
_EXACT_UP_TO = 2**63
# Longer lines are damage. Records have kilobytes; a reader keeps a few copies of one line in memory.
MAX_LINE_BYTES = 64 * 2**20
TOO_LONG = f"longer than {MAX_LINE_BYTES // 2**20} MiB: not written by Corewise"
# An object may contain others that begin like a record, so this many possible beginnings are tried.
_MAX_STARTS = 8


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
        is_open: the line has no newline, so it may still be in writing.
    """

    line: int
    offset: int
    value: dict[str, Any] | None
    damage: str
    text: bytes = b""
    start: int = 0
    is_strict: bool = False
    is_open: bool = False


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
            is_open = not raw.endswith(b"\n")
            damage = "no newline after its record" if is_open else ""
            yield SealedEntry(number, offset, value, damage, raw, is_strict=is_strict, is_open=is_open)
        offset += len(raw)


def scan_file(file: BinaryIO, line: int = 1, offset: int = 0) -> Iterator[SealedEntry]:
    """Yield the entries of a file from its current position on; memory is bounded whatever it contains.

    Args:
        line: number of the line at the current position.
        offset: the current position.
    """
    for raw, num_bytes in iterate_lines(file):
        if raw:
            yield from scan_lines((raw,), line, offset)
        else:
            yield SealedEntry(line, offset, None, TOO_LONG)
        line, offset = line + 1, offset + num_bytes


def iterate_lines(file: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """Yield each line and its length; of a line longer than any record only the length, with empty bytes."""
    while raw := file.readline(MAX_LINE_BYTES):
        num_bytes = len(raw)
        if num_bytes == MAX_LINE_BYTES and not raw.endswith(b"\n"):
            raw = b""
            num_bytes += skip_line(file)
        yield raw, num_bytes


def skip_line(file: BinaryIO, chunk_bytes: int = 2**20) -> int:
    """Move to the next line in bounded memory; returns the number of bytes skipped."""
    skipped = 0
    while chunk := file.readline(chunk_bytes):
        skipped += len(chunk)
        if chunk.endswith(b"\n"):
            break
    return skipped


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
    yield SealedEntry(line, offset, None, damage, is_open=not has_newline)
    for start, end, value in objects:
        yield SealedEntry(line, offset, value, "", text[start:end], start)


def _find_whole_objects(text: bytes) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Find objects with a valid seal in a damaged line, with their positions.

    No object contains the seal of another, because quotation marks in texts are escaped. So each one lies
    between two seals, and the time is linear in the length of the line.
    """
    searched_to = 0
    for mark in _SEAL.finditer(text):
        starts = [start.start() for start in _START.finditer(text, searched_to, mark.start())]
        for start in reversed(starts[-_MAX_STARTS:]):
            value = unseal(text[start : mark.end()])
            if value is not None:
                yield start, mark.end(), value
                break
        searched_to = mark.end()


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
