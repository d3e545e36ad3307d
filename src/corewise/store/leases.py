"""Leases: one holder at a time, on any shared file system with hard links; no flock.

A lease is the file NAME.json. A contender writes a temporary file and links it to that name, which succeeds
for one contender only. A dead holder leaves its file behind. The right to remove that file is another lease,
named after the token of the file, so a slow contender cannot remove the lease of the next, living holder.
"""

import contextlib
import os
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType

from corewise.errors import UserError
from corewise.store.process_identity import ProcessIdentity
from corewise.store.sealed_lines import scan_lines, seal
from corewise.study.record import format_utc_now

# Holders on other hosts count as dead after this time without a heartbeat.
STALE_AFTER_S = 120.0
_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_MAX_TRIES = 100


@dataclass(frozen=True)
class Holder:
    """The holder of a lease, read from its file.

    Attributes:
        process: None if the file is damaged.
        beat_at_s: last heartbeat by the clock of the file system.
    """

    name: str
    process: ProcessIdentity | None
    since: str
    token: str
    beat_at_s: float
    info: Mapping[str, str] = field(default_factory=dict)

    def is_stale(self, now_s: float, stale_after_s: float = STALE_AFTER_S) -> bool:
        """Return True if a holder on this host is dead, or one elsewhere sent no heartbeat for too long."""
        if self.process is not None and self.process.is_here():
            return not self.process.is_alive_here()
        return now_s - self.beat_at_s > stale_after_s

    def __str__(self) -> str:
        if self.process is None:
            return "an unknown process (the lease file is damaged)"
        return f"process {self.process.pid} on {self.process.host} since {self.since}"


class LeaseHeld(UserError):
    """Another process holds the lease."""

    def __init__(self, path: Path, holder: Holder) -> None:
        self.holder = holder
        end = "end it"
        if holder.process is not None:
            end = f"end it with `kill {holder.process.pid}` on {holder.process.host}"
        super().__init__(f"{path} is held by {holder}: wait until it ends, or {end}, then run again")


class LeaseLost(Exception):
    """Another process took over the lease because this one sent no heartbeat for too long."""


class Lease:
    """A lease held by this process; a context manager that releases it."""

    def __init__(self, path: Path, token: str) -> None:
        self.path = path
        self.token = token
        self._pid = os.getpid()

    def send_heartbeat(self) -> None:
        """Update the heartbeat; raises LeaseLost if another process took over."""
        holder = _read_lease_file(self.path)
        try:
            if holder is not None and holder.token == self.token:
                os.utime(self.path)
                return
        except FileNotFoundError:
            pass
        raise LeaseLost(f"{self.path} is now held by {holder or 'nobody'}")

    def release(self) -> None:
        """Release the lease; does nothing if it is lost, or in a forked child."""
        holder = _read_lease_file(self.path)
        if os.getpid() == self._pid and holder is not None and holder.token == self.token:
            self.path.unlink(missing_ok=True)

    def __enter__(self) -> "Lease":
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def acquire_lease(
    folder: Path, name: str, info: Mapping[str, str] | None = None, stale_after_s: float = STALE_AFTER_S
) -> Lease:
    """Acquire the lease of that name for this process.

    Raises:
        LeaseHeld: if another process holds it.
        UserError: if the folder cannot be used.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a valid lease name")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return _try_acquire(folder, name, dict(info or {}), stale_after_s)
    except OSError as error:
        raise UserError(
            f"no lease can be acquired in {folder}: {error.strerror or error}; fix this and run again"
        ) from error


def read_holder(folder: Path, name: str) -> Holder | None:
    """Return the holder of the lease, alive or not, or None."""
    return _read_lease_file(folder / f"{name}.json")


def list_holders(folder: Path) -> list[Holder]:
    """Return the holders of all leases of a folder, alive or not."""
    try:
        paths = [path for path in folder.glob("*.json") if "~" not in path.name]
    except OSError:
        return []
    holders = [each for path in paths if (each := _read_lease_file(path)) is not None]
    return sorted(holders, key=lambda each: each.name)


def read_clock_s(folder: Path) -> float:
    """Read the clock of the file system of a folder; the local clock if the folder is read-only."""
    probe = folder / f".{secrets.token_hex(8)}.clock"
    try:
        probe.touch()
        return probe.stat().st_mtime
    except OSError:
        return time.time()
    finally:
        _remove(probe)


def _try_acquire(folder: Path, name: str, info: dict[str, str], stale_after_s: float) -> Lease:
    path = folder / f"{name}.json"
    token = secrets.token_hex(8)
    aside = folder / f".{name}.{token}.part"
    try:
        _write_aside(aside, token, info)
        for _ in range(_MAX_TRIES):
            if _link(aside, path):
                _remove_leftovers(folder, name, token, now_s=aside.stat().st_mtime, stale_after_s=stale_after_s)
                return Lease(path, token)
            holder = _read_lease_file(path)
            if holder is None:
                # It was released in the meantime.
                continue
            os.utime(aside)
            if not holder.is_stale(aside.stat().st_mtime, stale_after_s):
                raise LeaseHeld(path, holder)
            _remove_stale(folder, holder, info, stale_after_s)
        raise UserError(f"{path} changes its holder too often: run again later")
    finally:
        _remove(aside)


def _remove_stale(folder: Path, holder: Holder, info: dict[str, str], stale_after_s: float) -> None:
    """Remove the lease file of a dead holder; raises LeaseHeld if another process is removing it."""
    path = folder / f"{holder.name}.json"
    try:
        right = _try_acquire(folder, f"{holder.name}~{holder.token}", info, stale_after_s)
    except LeaseHeld as error:
        raise LeaseHeld(path, error.holder) from None
    with right:
        current = _read_lease_file(path)
        if current is not None and current.token == holder.token:
            path.unlink()


def _write_aside(aside: Path, token: str, info: dict[str, str]) -> None:
    process = asdict(ProcessIdentity.from_current_process())
    with open(aside, "wb") as file:
        file.write(seal({"schema": 1, "token": token, "since": format_utc_now(), "process": process, "info": info}))


def _link(aside: Path, path: Path) -> bool:
    """Link the file to its final name; True for the one contender that succeeds."""
    try:
        os.link(aside, path)
    except FileExistsError:
        # A network file system may have created the link and lost the reply.
        return aside.stat().st_nlink == 2
    except OSError as error:
        if aside.exists() and aside.stat().st_nlink == 2:
            return True
        raise UserError(
            f"no hard link can be created in {path.parent} ({error.strerror or error}): "
            "put the store on a file system that supports them"
        ) from error
    return True


def _read_lease_file(path: Path) -> Holder | None:
    """Read the holder from a lease file, or None if there is no file."""
    try:
        with open(path, "rb") as file:
            stat = os.fstat(file.fileno())
            raw = file.read()
    except FileNotFoundError:
        return None
    name = path.name.removesuffix(".json")
    content = next((entry.value for entry in scan_lines([raw]) if entry.value is not None), {})
    try:
        return Holder(
            name=name,
            process=ProcessIdentity(**content["process"]),
            since=str(content["since"]),
            token=str(content["token"]),
            beat_at_s=stat.st_mtime,
            info=dict(content["info"]),
        )
    except (TypeError, KeyError):
        token = f"{stat.st_ino:x}-{stat.st_mtime_ns:x}"
        return Holder(name=name, process=None, since="", token=token, beat_at_s=stat.st_mtime)


def _remove_leftovers(folder: Path, name: str, token: str, now_s: float, stale_after_s: float) -> None:
    """Remove files of dead contenders: rights to remove former holders, and unlinked temporary files."""
    for path in folder.iterdir():
        if path.name.startswith(f"{name}~") and not path.name.startswith(f"{name}~{token}"):
            _remove(path)
        elif path.name.startswith(".") and path.suffix in (".part", ".clock"):
            try:
                if now_s - path.stat().st_mtime > stale_after_s:
                    _remove(path)
            except OSError:
                continue


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
