"""Sealed lines: one JSON object a line, whose last key `crc` is the CRC-32 of all that stands before it.

A person can read them and DuckDB can query them as they are; a changed byte anywhere in a line is found.
"""

import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_START = re.compile(rb'\{"schema":')
_SEAL = re.compile(rb',"crc":"([0-9a-f]{8})"\}')


@dataclass(frozen=True)
class Entry:
    """What stands at one place of a file of sealed lines: an object, a damage, or an object amid damage."""

    line: int  # from 1
    offset: int  # of the line's first byte in the file
    value: dict[str, Any] | None
    damage: str  # empty when all is well


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
        text = raw.removesuffix(b"\n")
        value = _unseal(text)
        if value is None:
            yield from _damaged(text, number, offset, has_newline=len(text) < len(raw))
        else:
            yield Entry(number, offset, value, "" if len(text) < len(raw) else "no newline after its record")
        offset += len(raw)


def _unseal(text: bytes) -> dict[str, Any] | None:
    """The object a whole sealed line holds, or None."""
    mark = _SEAL.fullmatch(text, max(0, len(text) - 18))
    if mark is None or zlib.crc32(text[: mark.start()]) != int(mark[1], 16):
        return None
    try:
        value = json.loads(text[: mark.start()] + b"}")
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _damaged(text: bytes, line: int, offset: int, has_newline: bool) -> Iterator[Entry]:
    """The damage of a line that is not whole, and any whole object still standing in it."""
    found = list(_whole_objects(text))
    damage = _what_is_wrong(text, has_newline)
    if found:
        damage += f"; {len(found)} whole {'record' if len(found) == 1 else 'records'} in it could be read"
    yield Entry(line, offset, None, damage)
    for value in found:
        yield Entry(line, offset, value, "")


def _whole_objects(text: bytes) -> Iterator[dict[str, Any]]:
    """Objects whose seal holds, although bytes before or after them were changed."""
    since = 0
    for mark in _SEAL.finditer(text):
        for start in _START.finditer(text, since, mark.start()):
            value = _unseal(text[start.start() : mark.end()])
            if value is not None:
                yield value
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
