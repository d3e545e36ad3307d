"""Read record files in parts, in this process or in others."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from corewise.store.sealed_lines import SealedEntry, scan_file, skip_line
from corewise.study.record import Record, UnreadableRecord

T = TypeVar("T")
# Extracts from a record, given its entry, what a caller keeps of it.
Extractor = Callable[[Record, SealedEntry], T]

# A last line without a newline may still be in writing: wait this long and read it again.
SETTLE_S = 0.01
_BUFFER_BYTES = 2**20
_PART_BYTES = 16 * 2**20
_UNKNOWN_FINISH_S = datetime.max.replace(tzinfo=UTC).timestamp()


@dataclass(frozen=True)
class Damage:
    """A place in a store that cannot be read.

    Attributes:
        line: from 1; 0 for the whole file.
    """

    file: Path
    line: int
    offset: int
    reason: str

    def __str__(self) -> str:
        where = f", line {self.line} (byte {self.offset})" if self.line else ""
        return f"{self.file}{where}: {self.reason}"


class RecordPlace(NamedTuple):
    """The position of a record's sealed text."""

    file: Path
    offset: int
    num_bytes: int


class FoundRecord(NamedTuple, Generic[T]):
    """An intact record: its trial, status, finish time, leases and place, and the extracted value."""

    trial_id: str
    is_ok: bool
    finished_s: float
    place: RecordPlace
    value: T
    lease: str = ""
    replaced_leases: tuple[str, ...] = ()


class FilePart(NamedTuple):
    """Some complete lines of a record file; `end` is None for the last part."""

    file: Path
    start: int
    end: int | None


class PartContents(NamedTuple, Generic[T]):
    """The records and damage of a part; lines are counted from the start of the part."""

    records: list[FoundRecord[T]]
    damage: list[Damage]
    num_lines: int


def split_files(paths: Iterable[Path], part_bytes: int = _PART_BYTES) -> Iterator[FilePart]:
    """Split files at line ends into parts of similar size."""
    for path in paths:
        start = 0
        try:
            with open(path, "rb") as file:
                while file.seek(start + part_bytes) and skip_line(file) and file.read(1):
                    end = file.tell() - 1
                    yield FilePart(path, start, end)
                    start = end
        except OSError:
            # The reader of the part reports the error.
            pass
        yield FilePart(path, start, None)


def read_part(part: FilePart, extract: Extractor[T], settle_s: float = SETTLE_S) -> PartContents[T]:
    """Read every intact record of a part, and describe the damage of the rest."""
    records: list[FoundRecord[T]] = []
    damage: list[Damage] = []
    line = 0
    try:
        for entry in _read_entries(part, settle_s):
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
            records.append(
                _build_found_record(
                    record, RecordPlace(part.file, entry.offset + entry.start, len(entry.text)), entry, extract
                )
            )
    except OSError as error:
        damage.append(Damage(part.file, 0, 0, f"cannot be read: {error.strerror or error}"))
    return PartContents(records, damage, line)


def _build_found_record(
    record: Record, place: RecordPlace, entry: SealedEntry, extract: Extractor[Any]
) -> FoundRecord[Any]:
    finished_s = _parse_finish_time(record.finished_at)
    value = extract(record, entry)
    is_ok, replaced = record.status == "ok", tuple(map(str, record.replaced_leases))
    return FoundRecord(record.trial_id, is_ok, finished_s, place, value, record.lease, replaced)


def _read_entries(part: FilePart, settle_s: float) -> Iterator[SealedEntry]:
    """Read the entries of a part; an incomplete last line of a file is read once more."""
    with open(part.file, "rb", buffering=_BUFFER_BYTES) as file:
        file.seek(part.start)
        for entry in scan_file(file, 1, part.start):
            if part.end is not None and entry.offset >= part.end:
                return
            if entry.is_open and settle_s > 0:
                time.sleep(settle_s)
                file.seek(entry.offset)
                yield from scan_file(file, entry.line, entry.offset)
                return
            yield entry


def _parse_finish_time(finished_at: str) -> float:
    """Parse a finish time as seconds since 1970; an invalid time sorts last."""
    try:
        moment = datetime.fromisoformat(finished_at)
    except ValueError:
        return _UNKNOWN_FINISH_S
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
