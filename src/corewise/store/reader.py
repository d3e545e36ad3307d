"""Reads the record files of a store: every record that is whole, and a name for every damage."""

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic

from corewise.spec.record import Record
from corewise.store.lines import Entry
from corewise.store.parts import SETTLE_S, Damage, Found, Keep, Part, PartRead, Place, T, parts_of, read_part
from corewise.store.side_readers import read_side_by_side

Shorten = Callable[[Record], Record]


@dataclass(frozen=True)
class ReadResult:
    """What a store holds: one record per trial in the order they finished, and all that was wrong.

    A trial recorded twice counts once: an ok record stands before a failed or skipped one; of several ok
    ones the first to finish stands, of several others the last. The rest are kept as duplicates.
    """

    records: tuple[Record, ...]
    damage: tuple[Damage, ...]
    duplicates: tuple[Record, ...] = ()
    places: tuple[Place, ...] = ()  # where each of `records` stands


@dataclass(frozen=True)
class Contents(Generic[T]):
    """As a ReadResult, with what a caller chose to keep in place of each record."""

    standing: tuple[Found[T], ...]
    damage: tuple[Damage, ...]
    duplicates: tuple[Found[T], ...]


def read_files(paths: Iterable[Path], shorten: Shorten | None = None) -> ReadResult:
    """The records of all files together, each shortened as soon as it is read."""
    keep: Keep[Record] = partial(_shortened, shorten) if shorten else _whole
    contents = read_contents(paths, keep)
    return ReadResult(
        records=tuple(each.kept for each in contents.standing),
        damage=contents.damage,
        duplicates=tuple(each.kept for each in contents.duplicates),
        places=tuple(each.place for each in contents.standing),
    )


def read_contents(paths: Iterable[Path], keep: Keep[T]) -> Contents[T]:
    """What `keep` gives for every record of the files; large stores are read by several processes."""
    parts = list(parts_of(paths))
    with collector_paused():
        if keep is _whole:  # whole records cost more to send than to read
            reads: Sequence[PartRead[Any]] = [read_part(part, keep) for part in parts]
        else:
            reads = read_side_by_side(parts, keep)
        found = [each for read in reads for each in read.found]
        standing, duplicates = _chosen(found)
    return Contents(standing, tuple(_damage(parts, reads)), duplicates)


def read_file(path: Path, settle_s: float = SETTLE_S) -> tuple[list[Record], list[Damage]]:
    """The whole records of one file and what is wrong with the rest."""
    read = read_part(Part(path, 0, None), _whole, settle_s)
    return [each.kept for each in read.found], read.damage


def told_damage(damage: Sequence[Damage], limit: int = 10) -> list[str]:
    """The damage in lines for a person: like places of a file in one, and no more lines than the limit."""
    groups: dict[tuple[Path, str], list[Damage]] = {}
    for each in damage:
        groups.setdefault((each.file, each.reason), []).append(each)
    lines = [
        str(ones[0]) if len(ones) == 1 else f"{file}, {len(ones)} lines from {ones[0].line} on: {reason}"
        for (file, reason), ones in groups.items()
    ]
    more = len(lines) - limit
    return [*lines[:limit], f"and {more} more: see `corewise status --json`"] if more > 1 else lines


def _whole(record: Record, entry: Entry) -> Record:
    return record


def _shortened(shorten: Shorten, record: Record, entry: Entry) -> Record:
    return shorten(record)


def _chosen(found: list[Found[T]]) -> tuple[tuple[Found[T], ...], tuple[Found[T], ...]]:
    """The records that stand, in the order they finished, and the others."""
    kept: dict[str, Found[T]] = {}
    duplicates: list[Found[T]] = []
    for each in sorted(found, key=_standing):
        if kept.setdefault(each.trial_id, each) is not each:
            duplicates.append(each)
    return tuple(sorted(kept.values(), key=lambda each: each.finished_s)), tuple(duplicates)


def _standing(found: Found[Any]) -> tuple[bool, float]:
    """Good records first, the earliest of them; then the others, the latest of them."""
    return (False, found.finished_s) if found.is_ok else (True, -found.finished_s)


def _damage(parts: Sequence[Part], reads: Sequence[PartRead[Any]]) -> Iterator[Damage]:
    """All damage with its line counted from the start of its file."""
    first_line = 0
    for part, read in zip(parts, reads, strict=True):
        if part.start == 0:
            first_line = 0
        for each in read.damage:
            yield replace(each, line=first_line + each.line) if each.line else each
        first_line += read.num_lines


@contextmanager
def collector_paused() -> Iterator[None]:
    """Hold back the search for cycles, which records have none of and which costs more the more there are."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
