"""The store: a folder of append-only record files, one writer each, that survives kills and torn writes."""

import os
import re
import shlex
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from corewise.spec.errors import UserError
from corewise.spec.record import RECORD_SCHEMA, STATUSES, Record, UnreadableRecord, utc_now
from corewise.store.brief import outline
from corewise.store.lines import Entry, scan, seal, sealed_part
from corewise.store.parts import Damage, Keep, Place, T
from corewise.store.places import PlaceReader
from corewise.store.reader import Contents, ReadResult, read_contents, read_files
from corewise.store.writer import RecordWriter, StoreFull, is_full, is_record_file

STORE_SCHEMA = 1
MARKER = "corewise-store.json"
_PARTS = {"records", "work", "leases", "trials", "logs"}
_TRIAL_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
# How a record of this version begins; a sealed one that does can be read.
_HEAD = re.compile(
    rb'\{"schema":%d,"trial_id":"([A-Za-z0-9_.-]+)","study":"(?:[^"\\]|\\.)*","status":"(?:%b)",'
    % (RECORD_SCHEMA, "|".join(STATUSES).encode())
)


class Store:
    """Records on disk. Reading never writes; the first `append` makes this process's own file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._writer: RecordWriter | None = None
        self._read_up_to: dict[Path, int] = {}
        self._done: set[str] = set()

    @classmethod
    def open(
        cls, path: Path | str, create: bool = True, advice: str = "name one with --store DIR"
    ) -> "Store":
        """The store at a path; made there when `create` is given and nothing else lives there.

        `advice` says how the caller's user names another where there is none.
        """
        store = cls(Path(path))
        try:
            if not store._exists():
                if not create:
                    raise UserError(_no_store(store.path, advice))
                store._make()
        except OSError as error:
            raise UserError(
                f"the store {store.path} cannot be used: {error.strerror or error}; "
                "choose another folder with --store"
            ) from error
        store._check_version()
        return store

    @property
    def records_folder(self) -> Path:
        return self.path / "records"

    @property
    def leases_folder(self) -> Path:
        return self.path / "leases"

    def work_dir(self, trial_id: str) -> Path:
        """The folder in which a trial works while it runs; not made here."""
        if not _TRIAL_ID.fullmatch(trial_id):
            raise ValueError(f"{trial_id!r} is no trial id")
        return self.path.absolute() / "work" / trial_id

    def trial_file(self, trial_id: str) -> Path:
        """Where a trial's own file is kept, so that its command can be run by hand; not made here."""
        if not _TRIAL_ID.fullmatch(trial_id):
            raise ValueError(f"{trial_id!r} is no trial id")
        return self.path.absolute() / "trials" / f"{trial_id}.json"

    def work_ids(self) -> list[str]:
        """The trials that have a work folder, done or not."""
        try:
            return sorted(each.name for each in (self.path / "work").iterdir() if each.is_dir())
        except OSError:
            return []

    def append(self, record: Record) -> None:
        """Put the record on disk for good; raises StoreFull, and loses nothing, when there is no room."""
        line = seal(record.to_json())
        with self._lock:
            try:
                self._own_writer().append(line)
            except OSError as error:
                raise self.write_error(error) from error

    def records(
        self, shorten: Callable[[Record], Record] | None = None, only: Collection[str] | None = None
    ) -> ReadResult:
        """All that can be read, one record per trial, and the damage of the rest.

        `shorten` is applied to each record as soon as it is read, before the next: with `brief` very many fit
        into memory. It should be a function of a module, so that other processes can help to read.
        `only` asks for these trials alone; any other record is let go at once.
        """
        if only is not None:
            return self._some_records(shorten, only)
        result = read_files(self._files(), shorten)
        return replace(result, damage=(*self._marker_damage(), *result.damage))

    def iter_records(self) -> Iterator[Record]:
        """The whole records one after the other, one per trial, in the order they finished; little memory."""
        return self.at(self.records(outline).places)

    def at(self, places: Iterable[Place]) -> Iterator[Record]:
        """The whole records at places that `records` gave."""
        with PlaceReader() as reader:
            for place in places:
                yield reader.record(place)

    def contents(self, keep: Keep[T]) -> Contents[T]:
        """What `keep` gives for each record, one per trial, and the damage of the rest."""
        contents = read_contents(self._files(), keep)
        return replace(contents, damage=(*self._marker_damage(), *contents.damage))

    def done_ids(self) -> set[str]:
        """The trials that have a record, whatever its status; cheap to ask again: only new bytes are read."""
        for path in self._files():
            self._read_new(path)
        return set(self._done)

    def close(self) -> None:
        """Let go of this process's record file."""
        with self._lock:
            if self._writer is not None:
                self._writer.close()
            self._writer = None

    def __enter__(self) -> "Store":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _own_writer(self) -> RecordWriter:
        # A forked child must not share its parent's file: one writer, one file.
        if self._writer is None or self._writer.pid != os.getpid():
            self._writer = RecordWriter(self.records_folder)
        return self._writer

    def write_error(self, error: OSError) -> UserError:
        """What to tell the user when something under the store could not be written."""
        num_records = len(self.done_ids())
        safe = "1 record is safe" if num_records == 1 else f"{num_records} records are safe"
        if is_full(error):
            return StoreFull(f"the disk under {self.path} is full: {safe}; free space and run again")
        return UserError(
            f"nothing could be written under {self.path}: {error.strerror or error}; "
            f"{safe}; mend this and run again"
        )

    def _some_records(self, shorten: Callable[[Record], Record] | None, only: Collection[str]) -> ReadResult:
        """The records of some trials; duplicates are given in outline."""
        every = self.records(outline)
        chosen = [i for i, record in enumerate(every.records) if record.trial_id in only]
        places = tuple(every.places[i] for i in chosen)
        records = tuple(shorten(record) if shorten else record for record in self.at(places))
        duplicates = tuple(record for record in every.duplicates if record.trial_id in only)
        return ReadResult(records, every.damage, duplicates, places)

    def _files(self) -> list[Path]:
        try:
            return sorted(each for each in self.records_folder.iterdir() if each.suffix == ".jsonl")
        except FileNotFoundError:
            return []
        except OSError as error:
            raise UserError(
                f"the store {self.path} cannot be read: {error.strerror or error}; "
                "mend this, or choose another with --store"
            ) from error

    def _read_new(self, path: Path) -> None:
        start = self._read_up_to.get(path, 0)
        try:
            with open(path, "rb") as file:
                file.seek(start)
                for raw in file:
                    self._done.update(_trial_ids(raw))
                    if raw.endswith(b"\n"):
                        start += len(raw)
        except OSError:
            return  # `records` names it
        self._read_up_to[path] = start

    def _exists(self) -> bool:
        """True for a store, even one whose marker was lost."""
        if (self.path / MARKER).exists():
            return True
        return any(is_record_file(each.name) for each in self._files())

    def _make(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        others = [each for each in os.listdir(self.path) if each not in _PARTS and MARKER not in each]
        if others:
            raise UserError(
                f"{self.path} is not a Corewise store and holds other things ({sorted(others)[0]}): "
                "name a new or empty folder with --store"
            )
        aside = self.path / f".{MARKER}.{os.getpid()}.part"
        try:
            with open(aside, "wb") as file:
                file.write(seal({"schema": STORE_SCHEMA, "created_at": utc_now()}))
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, self.path / MARKER)
        except OSError as error:
            aside.unlink(missing_ok=True)
            raise self.write_error(error) from error

    def _check_version(self) -> None:
        for entry in self._marker():
            version = _schema(entry)
            if version is None or version == STORE_SCHEMA:
                continue  # a damaged marker harms nothing
            newer = version > STORE_SCHEMA
            raise UserError(
                f"the store {self.path} has schema version {version}, {'newer' if newer else 'older'} than "
                f"this Corewise reads ({STORE_SCHEMA}): "
                + ("update Corewise" if newer else "read it with the version that wrote it")
            )

    def _marker(self) -> list[Entry]:
        try:
            return list(scan([(self.path / MARKER).read_bytes()]))
        except OSError:
            return []

    def _marker_damage(self) -> Iterator[Damage]:
        entries = self._marker()
        if len(entries) != 1 or entries[0].damage or _schema(entries[0]) is None:
            yield Damage(self.path / MARKER, 0, 0, "missing or damaged; the records do not need it")


def _schema(entry: Entry) -> int | None:
    """The schema version that a whole marker names."""
    version = entry.value.get("schema") if entry.value else None
    return version if type(version) is int else None


def _trial_ids(raw: bytes) -> Iterator[str]:
    head = _HEAD.match(raw)
    if head is not None and sealed_part(raw) is not None:  # as we write them: the rest need not be read
        yield head[1].decode("ascii")
        return
    for entry in scan([raw]):
        if entry.value is not None:
            try:
                yield Record.from_json(entry.value).trial_id
            except UnreadableRecord:
                continue


def _no_store(path: Path, advice: str) -> str:
    what = "is not a Corewise store" if path.exists() else "does not exist"
    make = f"corewise run STUDY --store {shlex.quote(str(path))}"
    return f"the store {path} {what}: {advice}, or make one with `{make}`"
