"""Reads the record files of a store: every record that is whole, and a name for every damage."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from corewise.spec.record import Record, UnreadableRecord
from corewise.store.lines import Entry, scan

_SETTLE_S = 0.01  # a line without its newline may still be on its way from a live writer


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


@dataclass(frozen=True)
class ReadResult:
    """What a store holds: one record per trial in the order they finished, and all that was wrong.

    A trial recorded twice counts once: an ok record stands before a failed or skipped one; of several ok
    ones the first to finish stands, of several others the last. The rest are kept as duplicates.
    """

    records: tuple[Record, ...]
    damage: tuple[Damage, ...]
    duplicates: tuple[Record, ...] = ()


def read_files(paths: Iterable[Path]) -> ReadResult:
    """The records of all files together."""
    found: list[Record] = []
    damage: list[Damage] = []
    for path in paths:
        records, faults = read_file(path)
        found += records
        damage += faults
    kept: dict[str, Record] = {}
    duplicates: list[Record] = []
    for record in sorted(found, key=_standing):
        if kept.setdefault(record.trial_id, record) is not record:
            duplicates.append(record)
    return ReadResult(tuple(sorted(kept.values(), key=_finished)), tuple(damage), tuple(duplicates))


def read_file(path: Path, settle_s: float = _SETTLE_S) -> tuple[list[Record], list[Damage]]:
    """The whole records of one file and what is wrong with the rest."""
    records: list[Record] = []
    damage: list[Damage] = []
    try:
        for entry in _entries(path, settle_s):
            if entry.damage:
                damage.append(Damage(path, entry.line, entry.offset, entry.damage))
            if entry.value is None:
                continue
            try:
                records.append(Record.from_json(entry.value))
            except UnreadableRecord as error:
                damage.append(Damage(path, entry.line, entry.offset, str(error)))
    except OSError as error:
        damage.append(Damage(path, 0, 0, f"cannot be read: {error.strerror or error}"))
    return records, damage


def _entries(path: Path, settle_s: float) -> Iterator[Entry]:
    """The entries of a file; a last line that is not ended is looked at once more."""
    with open(path, "rb") as file:
        line, offset = 1, 0
        for raw in file:
            if not raw.endswith(b"\n") and settle_s > 0:
                time.sleep(settle_s)
                file.seek(offset)
                yield from scan(file, line, offset)
                return
            yield from scan([raw], line, offset)
            line, offset = line + 1, offset + len(raw)


def _standing(record: Record) -> tuple[bool, float]:
    """Good records first, the earliest of them; then the others, the latest of them."""
    finished = _finished(record).timestamp()
    return (False, finished) if record.status == "ok" else (True, -finished)


def _finished(record: Record) -> datetime:
    try:
        moment = datetime.fromisoformat(record.finished_at)
    except ValueError:
        return datetime.max.replace(tzinfo=UTC)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
