"""Record files read in parts: what each part holds, whoever reads it."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from corewise.spec.record import Record, UnreadableRecord
from corewise.store.lines import Entry, scan

T = TypeVar("T")
# What is kept of a record, which is then let go; given the place it was read from too.
Keep = Callable[[Record, Entry], T]

SETTLE_S = 0.01  # a line without its newline may still be on its way from a live writer
_BUFFER_BYTES = 2**20
_PART_BYTES = 16 * 2**20
_NEVER_S = datetime.max.replace(tzinfo=UTC).timestamp()


@dataclass(frozen=True)
class Damage:
    """A place in a store that could not be read as it was written."""

    file: Path
    line: int  # from 1; 0 when the whole file is meant
    offset: int
    reason: str

    def __str__(self) -> str:
        where = f", line {self.line} (byte {self.offset})" if self.line else ""
        return f"{self.file}{where}: {self.reason}"


class Place(NamedTuple):
    """Where the sealed text of a record stands."""

    file: Path
    offset: int
    num_bytes: int


class Found(NamedTuple, Generic[T]):
    """A whole record: what tells it from others of its trial, where it stands, and what was kept of it."""

    trial_id: str
    is_ok: bool
    finished_s: float
    place: Place
    kept: T


class Part(NamedTuple):
    """Some whole lines of a record file; the last part of a file ends where the file does when it is read."""

    file: Path
    start: int
    end: int | None


class PartRead(NamedTuple, Generic[T]):
    """What a part holds; lines of damage are counted from the part's first."""

    found: list[Found[T]]
    damage: list[Damage]
    num_lines: int


def parts_of(paths: Iterable[Path], part_bytes: int = _PART_BYTES) -> Iterator[Part]:
    """The files cut between lines into parts of about one size."""
    for path in paths:
        start = 0
        try:
            with open(path, "rb") as file:
                while file.seek(start + part_bytes) and file.readline() and file.read(1):
                    end = file.tell() - 1
                    yield Part(path, start, end)
                    start = end
        except OSError:
            pass  # whoever reads the part names it
        yield Part(path, start, None)


def read_part(part: Part, keep: Keep[T], settle_s: float = SETTLE_S) -> PartRead[T]:
    """Every whole record of a part, and what is wrong with the rest."""
    found: list[Found[T]] = []
    damage: list[Damage] = []
    line = 0
    try:
        for entry in _entries(part, settle_s):
            line = entry.line
            if entry.damage:
                damage.append(Damage(part.file, line, entry.offset, entry.damage))
            if entry.value is None:
                continue
            try:
                record = Record.from_json(entry.value)
            except UnreadableRecord as error:
                damage.append(Damage(part.file, line, entry.offset, str(error)))
                continue
            found.append(
                _found(record, Place(part.file, entry.offset + entry.start, len(entry.text)), entry, keep)
            )
    except OSError as error:
        damage.append(Damage(part.file, 0, 0, f"cannot be read: {error.strerror or error}"))
    return PartRead(found, damage, line)


def _found(record: Record, place: Place, entry: Entry, keep: Keep[Any]) -> Found[Any]:
    finished_s = _finished_s(record.finished_at)
    return Found(record.trial_id, record.status == "ok", finished_s, place, keep(record, entry))


def _entries(part: Part, settle_s: float) -> Iterator[Entry]:
    """The entries of a part; a last line of a file that is not ended is looked at once more."""
    with open(part.file, "rb", buffering=_BUFFER_BYTES) as file:
        file.seek(part.start)
        line, offset = 1, part.start
        for raw in file:
            if not raw.endswith(b"\n") and settle_s > 0:
                time.sleep(settle_s)
                file.seek(offset)
                yield from scan(file, line, offset)
                return
            yield from scan((raw,), line, offset)
            line, offset = line + 1, offset + len(raw)
            if part.end is not None and offset >= part.end:
                return


def _finished_s(finished_at: str) -> float:
    """When a record was finished, in seconds since 1970; one that does not say comes last."""
    try:
        moment = datetime.fromisoformat(finished_at)
    except ValueError:
        return _NEVER_S
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
