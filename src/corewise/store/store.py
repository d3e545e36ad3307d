"""The store: a folder of append-only record files with one writer each. It survives kills and torn writes."""

import contextlib
import os
import re
import secrets
import shlex
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from corewise.errors import UserError
from corewise.store.brief_records import extract_outline
from corewise.store.file_parts import Damage, Extractor, RecordPlace, T
from corewise.store.line_writer import RecordWriter, StoreFull, is_full, is_record_file
from corewise.store.record_lookup import PlaceReader
from corewise.store.record_reader import ReadResult, StoreContents, read_contents, read_files
from corewise.store.sealed_lines import (
    MAX_LINE_BYTES,
    SealedEntry,
    extract_sealed_part,
    iterate_lines,
    scan_lines,
    seal,
)
from corewise.study.record import RECORD_SCHEMA, STATUSES, Record, UnreadableRecord, format_utc_now

STORE_SCHEMA = 1
MARKER = "corewise-store.json"
_MAX_MARKER_BYTES = 2**16
_PARTS = {"records", "work", "leases", "trials", "logs", "jobs"}
_TRIAL_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
# The beginning of a record of this version. A sealed line that matches is readable.
_HEAD = re.compile(
    rb'\{"schema":%d,"trial_id":"([A-Za-z0-9_.-]+)","study":"(?:[^"\\]|\\.)*","status":"(?:%b)",'
    % (RECORD_SCHEMA, "|".join(STATUSES).encode())
)


class Store:
    """Records on disk. Reading never writes; the first `append` creates the file of this process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._writer: RecordWriter | None = None
        self._read_up_to: dict[Path, int] = {}
        self._done: set[str] = set()

    @classmethod
    def open(cls, path: Path | str, create: bool = True, advice: str = "choose one with --store DIR") -> "Store":
        """Open the store at a path.

        Args:
            create: create the store if the path is missing or an empty folder.
            advice: how the user chooses another store if there is none.

        Raises:
            UserError: if there is no store or it cannot be used.
        """
        store = cls(Path(path))
        try:
            if not store._is_store():
                if not create:
                    raise UserError(_explain_no_store(store.path, advice))
                store._create()
        except OSError as error:
            raise UserError(
                f"the store {store.path} cannot be used: {error.strerror or error}; choose another folder with --store"
            ) from error
        store._check_version()
        return store

    @property
    def records_folder(self) -> Path:
        return self.path / "records"

    @property
    def leases_folder(self) -> Path:
        return self.path / "leases"

    def get_work_dir(self, trial_id: str) -> Path:
        """Return the work folder of a running trial; does not create it."""
        if not _TRIAL_ID.fullmatch(trial_id):
            raise ValueError(f"{trial_id!r} is not a trial id")
        return self.path.absolute() / "work" / trial_id

    def get_trial_file(self, trial_id: str) -> Path:
        """Return the path of a trial file, with which the trial can be run by hand; does not create it."""
        if not _TRIAL_ID.fullmatch(trial_id):
            raise ValueError(f"{trial_id!r} is not a trial id")
        return self.path.absolute() / "trials" / f"{trial_id}.json"

    def list_work_ids(self) -> list[str]:
        """Return the trials that have a work folder, done or not."""
        try:
            return sorted(each.name for each in (self.path / "work").iterdir() if each.is_dir())
        except OSError:
            return []

    def append(self, record: Record) -> None:
        """Write a record to disk.

        Raises:
            StoreFull: if the disk is full; earlier records are safe.
            UserError: if the store cannot be written, or the record is longer than readers accept.
        """
        line = seal(record.to_json())
        if len(line) > MAX_LINE_BYTES:
            raise UserError(
                f"the record of trial {record.trial_id} has {len(line) // 2**20} MiB, more than a store takes "
                f"({MAX_LINE_BYTES // 2**20} MiB): take fewer samples or ranks per trial"
            )
        with self._lock:
            try:
                self._open_writer().append(line)
            except OSError as error:
                raise self.explain_write_error(error) from error

    def read_records(
        self, shorten: Callable[[Record], Record] | None = None, only: Collection[str] | None = None
    ) -> ReadResult:
        """Read one record per trial, and the damage.

        Args:
            shorten: applied to each record as soon as it is read; with `extract_brief`, very many records fit
                into memory. It should be a module-level function, so that other processes can help.
            only: read only these trials.
        """
        if only is not None:
            return self._read_some_records(shorten, only)
        result = read_files(self._list_files(), shorten)
        return replace(result, damage=(*self._check_marker(), *result.damage))

    def iterate_records(self) -> Iterator[Record]:
        """Iterate over full records, one per trial, in the order they finished; needs little memory."""
        return self.read_at(self.read_records(extract_outline).places)

    def read_at(self, places: Iterable[RecordPlace]) -> Iterator[Record]:
        """Read the full records at places from `read_records`."""
        with PlaceReader() as reader:
            for place in places:
                yield reader.read_record(place)

    def read_contents(self, extract: Extractor[T]) -> StoreContents[T]:
        """Extract a value from one record per trial, and collect the damage."""
        contents = read_contents(self._list_files(), extract)
        return replace(contents, damage=(*self._check_marker(), *contents.damage))

    def read_done_ids(self) -> set[str]:
        """Return the trials that have a record of any status; repeated calls only read new bytes."""
        for path in self._list_files():
            self._read_new(path)
        return set(self._done)

    def refresh(self) -> None:
        """Make record files that other hosts created visible: network file systems list a folder from a cache.

        The cache is dropped when this host itself changes the folder.
        """
        probe = self.records_folder / f".{secrets.token_hex(8)}.probe"
        with contextlib.suppress(OSError):
            self.records_folder.mkdir(exist_ok=True)
            probe.touch()
            probe.unlink()

    def close(self) -> None:
        """Close the record file of this process."""
        with self._lock:
            if self._writer is not None:
                self._writer.close()
            self._writer = None

    def __enter__(self) -> "Store":
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open_writer(self) -> RecordWriter:
        # A forked child must not share its parent's file: one writer, one file.
        if self._writer is None or self._writer.pid != os.getpid():
            self._writer = RecordWriter(self.records_folder)
        return self._writer

    def explain_write_error(self, error: OSError) -> UserError:
        """Return the error for a failed write to the store."""
        num_records = len(self.read_done_ids())
        safe = "1 record is safe" if num_records == 1 else f"{num_records} records are safe"
        if is_full(error):
            return StoreFull(f"the disk under {self.path} is full: {safe}; free space and run again")
        return UserError(f"cannot write to {self.path}: {error.strerror or error}; {safe}; fix this and run again")

    def _read_some_records(self, shorten: Callable[[Record], Record] | None, only: Collection[str]) -> ReadResult:
        """Read the records of some trials; duplicates are outlines."""
        every = self.read_records(extract_outline)
        chosen = [i for i, record in enumerate(every.records) if record.trial_id in only]
        places = tuple(every.places[i] for i in chosen)
        records = tuple(shorten(record) if shorten else record for record in self.read_at(places))
        duplicates = tuple(record for record in every.duplicates if record.trial_id in only)
        late = tuple(record for record in every.late if record.trial_id in only)
        return ReadResult(records, every.damage, duplicates, places, late)

    def _list_files(self) -> list[Path]:
        try:
            return sorted(each for each in self.records_folder.iterdir() if each.suffix == ".jsonl")
        except FileNotFoundError:
            return []
        except OSError as error:
            raise UserError(
                f"the store {self.path} cannot be read: {error.strerror or error}; "
                "fix this, or choose another with --store"
            ) from error

    def _read_new(self, path: Path) -> None:
        start = self._read_up_to.get(path, 0)
        try:
            with open(path, "rb") as file:
                file.seek(start)
                for raw, num_bytes in iterate_lines(file):
                    self._done.update(_extract_trial_ids(raw))
                    if not raw or raw.endswith(b"\n"):
                        start += num_bytes
        except OSError:
            # `read_records` reports the error.
            return
        self._read_up_to[path] = start

    def _is_store(self) -> bool:
        """Return True for a store, even if its marker is missing."""
        if (self.path / MARKER).exists():
            return True
        return any(is_record_file(each.name) for each in self._list_files())

    def _create(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        others = [each for each in os.listdir(self.path) if each not in _PARTS and MARKER not in each]
        if others:
            raise UserError(
                f"{self.path} is not a Corewise store and contains other files ({sorted(others)[0]}): "
                "choose a new or empty folder with --store"
            )
        aside = self.path / f".{MARKER}.{os.getpid()}.part"
        try:
            with open(aside, "wb") as file:
                file.write(seal({"schema": STORE_SCHEMA, "created_at": format_utc_now()}))
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, self.path / MARKER)
        except OSError as error:
            aside.unlink(missing_ok=True)
            raise self.explain_write_error(error) from error

    def _check_version(self) -> None:
        for entry in self._read_marker():
            version = _read_schema(entry)
            if version is None or version == STORE_SCHEMA:
                # A damaged marker is harmless.
                continue
            newer = version > STORE_SCHEMA
            raise UserError(
                f"the store {self.path} has schema version {version}, {'newer' if newer else 'older'} than "
                f"this Corewise reads ({STORE_SCHEMA}): "
                + ("update Corewise" if newer else "read it with the version that wrote it")
            )

    def _read_marker(self) -> list[SealedEntry]:
        try:
            with open(self.path / MARKER, "rb") as file:
                return list(scan_lines([file.read(_MAX_MARKER_BYTES)]))
        except OSError:
            return []

    def _check_marker(self) -> Iterator[Damage]:
        entries = self._read_marker()
        if len(entries) != 1 or entries[0].damage or _read_schema(entries[0]) is None:
            yield Damage(self.path / MARKER, 0, 0, "missing or damaged; the records do not need it")


def _read_schema(entry: SealedEntry) -> int | None:
    """Return the schema version of an intact marker, or None."""
    version = entry.value.get("schema") if entry.value else None
    return version if type(version) is int else None


def _extract_trial_ids(raw: bytes) -> Iterator[str]:
    head = _HEAD.match(raw)
    # Records of this version need not be parsed.
    if head is not None and extract_sealed_part(raw) is not None:
        yield head[1].decode("ascii")
        return
    for entry in scan_lines([raw]):
        if entry.value is not None:
            try:
                yield Record.from_json(entry.value).trial_id
            except UnreadableRecord:
                continue


def _explain_no_store(path: Path, advice: str) -> str:
    problem = "is not a Corewise store" if path.exists() else "does not exist"
    make = f"corewise run STUDY --store {shlex.quote(str(path))}"
    return f"the store {path} {problem}: {advice}, or create one with `{make}`"
