"""Read the record files of a store: every intact record, and a description of all damage."""

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic

from corewise.store.file_parts import (
    SETTLE_S,
    Damage,
    Extractor,
    FilePart,
    FoundRecord,
    PartContents,
    RecordPlace,
    T,
    read_part,
    split_files,
)
from corewise.store.parallel_readers import read_in_parallel
from corewise.store.sealed_lines import SealedEntry
from corewise.study.record import Record

Shorten = Callable[[Record], Record]


@dataclass(frozen=True)
class ReadResult:
    """The records of a store, one per trial in the order they finished, and all damage.

    If a trial has several records, one counts: an ok record before a failed or skipped one, the first of
    several ok records, the last of several others. The rest are duplicates. A late record, whose process had
    lost its lease to the process of another record, counts only if all of them are late.

    Attributes:
        places: the position of each of `records`.
        late: late records that do not count.
    """

    records: tuple[Record, ...]
    damage: tuple[Damage, ...]
    duplicates: tuple[Record, ...] = ()
    places: tuple[RecordPlace, ...] = ()
    late: tuple[Record, ...] = ()


@dataclass(frozen=True)
class StoreContents(Generic[T]):
    """Like ReadResult, with an extracted value instead of each record."""

    records: tuple[FoundRecord[T], ...]
    damage: tuple[Damage, ...]
    duplicates: tuple[FoundRecord[T], ...]
    late: tuple[FoundRecord[T], ...] = ()


def read_files(paths: Iterable[Path], shorten: Shorten | None = None) -> ReadResult:
    """Read the records of all files, each shortened as soon as it is read."""
    extract: Extractor[Record] = partial(_apply_shorten, shorten) if shorten else _keep_whole
    contents = read_contents(paths, extract)
    return ReadResult(
        records=tuple(each.value for each in contents.records),
        damage=contents.damage,
        duplicates=tuple(each.value for each in contents.duplicates),
        places=tuple(each.place for each in contents.records),
        late=tuple(each.value for each in contents.late),
    )


def read_contents(paths: Iterable[Path], extract: Extractor[T]) -> StoreContents[T]:
    """Extract a value from every record of the files; several processes read large stores."""
    parts = list(split_files(paths))
    with suspend_collector():
        # Sending full records between processes takes longer than reading them.
        if extract is _keep_whole:
            reads: Sequence[PartContents[Any]] = [read_part(part, extract) for part in parts]
        else:
            reads = read_in_parallel(parts, extract)
        found_records = [each for read in reads for each in read.records]
        records, duplicates, late = _choose_records(found_records)
    return StoreContents(records, tuple(_collect_damage(parts, reads)), duplicates, late)


def read_file(path: Path, settle_s: float = SETTLE_S) -> tuple[list[Record], list[Damage]]:
    """Read the intact records of one file and the damage of the rest."""
    read = read_part(FilePart(path, 0, None), _keep_whole, settle_s)
    return [each.value for each in read.records], read.damage


def describe_damage(damage: Sequence[Damage], limit: int = 10) -> list[str]:
    """Describe damage in at most `limit` lines; equal damage of a file shares a line."""
    groups: dict[tuple[Path, str], list[Damage]] = {}
    for each in damage:
        groups.setdefault((each.file, each.reason), []).append(each)
    lines = [
        str(ones[0]) if len(ones) == 1 else f"{file}, {len(ones)} lines from {ones[0].line} on: {reason}"
        for (file, reason), ones in groups.items()
    ]
    more = len(lines) - limit
    return [*lines[:limit], f"and {more} more: see `corewise status --json`"] if more > 1 else lines


def _keep_whole(record: Record, entry: SealedEntry) -> Record:
    return record


def _apply_shorten(shorten: Shorten, record: Record, entry: SealedEntry) -> Record:
    return shorten(record)


def _choose_records(
    found_records: list[FoundRecord[T]],
) -> tuple[tuple[FoundRecord[T], ...], tuple[FoundRecord[T], ...], tuple[FoundRecord[T], ...]]:
    """Split records into those that count, in the order they finished, duplicates and late ones."""
    # Tokens are unique, so the trial need not be looked at.
    lost_leases = {token for each in found_records for token in each.replaced_leases if token}
    chosen: dict[str, FoundRecord[T]] = {}
    duplicates: list[FoundRecord[T]] = []
    late: list[FoundRecord[T]] = []
    for each in sorted(found_records, key=lambda each: (each.lease in lost_leases, *_rank_precedence(each))):
        if chosen.setdefault(each.trial_id, each) is not each:
            (late if each.lease in lost_leases else duplicates).append(each)
    return tuple(sorted(chosen.values(), key=lambda each: each.finished_s)), tuple(duplicates), tuple(late)


def _rank_precedence(record: FoundRecord[Any]) -> tuple[bool, float, str, int]:
    """Return a key that puts ok records first, from the earliest, then the others, from the latest."""
    place = (record.place.file.name, record.place.offset)
    return (False, record.finished_s, *place) if record.is_ok else (True, -record.finished_s, *place)


def _collect_damage(parts: Sequence[FilePart], reads: Sequence[PartContents[Any]]) -> Iterator[Damage]:
    """Yield all damage with lines counted from the start of the file."""
    first_line = 0
    for part, read in zip(parts, reads, strict=True):
        if part.start == 0:
            first_line = 0
        for each in read.damage:
            yield replace(each, line=first_line + each.line) if each.line else each
        first_line += read.num_lines


@contextmanager
def suspend_collector() -> Iterator[None]:
    """Suspend garbage collection: records have no cycles, and its cost grows with their number."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
