"""Leases: one holder at a time, on any shared file system that can make hard links; no flock.

A lease is the file NAME.json, made by writing a file aside and linking it, which one contender alone can do.
A holder that died leaves its file behind. The right to remove that one file is itself a lease, named after
the file's token, so that a slow contender can never remove the lease of the next, living holder.
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

from corewise.spec.errors import UserError
from corewise.spec.record import utc_now
from corewise.store.lines import scan, seal
from corewise.store.processes import ProcessName

STALE_AFTER_S = 120.0  # for holders on other hosts, whose heartbeat is all we see
_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_MAX_TRIES = 100


@dataclass(frozen=True)
class Holder:
    """Who holds a lease, as its file says."""

    name: str
    process: ProcessName | None  # None: the file is damaged
    since: str
    token: str
    beat_at_s: float  # by the file system's clock
    info: Mapping[str, str] = field(default_factory=dict)

    def is_stale(self, now_s: float, stale_after_s: float = STALE_AFTER_S) -> bool:
        """True when the holder is dead here, or silent elsewhere for too long."""
        if self.process is not None and self.process.is_here():
            return not self.process.is_alive_here()
        return now_s - self.beat_at_s > stale_after_s

    def __str__(self) -> str:
        if self.process is None:
            return "somebody unknown (the lease file is damaged)"
        return f"process {self.process.pid} on {self.process.host} since {self.since}"


class LeaseHeld(UserError):
    """Another process holds the lease."""

    def __init__(self, path: Path, holder: Holder) -> None:
        self.holder = holder
        end = "end it"
        if holder.process is not None:
            end = f"end it with `kill {holder.process.pid}` on {holder.process.host}"
        super().__init__(f"{path} is held by {holder}: wait until it has ended, or {end}, then run again")


class LeaseLost(Exception):
    """Another process took the lease over because this one showed no sign of life for too long."""


class Lease:
    """A lease held by this process; a context manager that gives it back."""

    def __init__(self, path: Path, token: str) -> None:
        self.path = path
        self.token = token
        self._pid = os.getpid()

    def beat(self) -> None:
        """Show that the holder lives; raises LeaseLost when another has taken over."""
        holder = _read(self.path)
        try:
            if holder is not None and holder.token == self.token:
                os.utime(self.path)
                return
        except FileNotFoundError:
            pass
        raise LeaseLost(f"{self.path} is now held by {holder or 'nobody'}")

    def release(self) -> None:
        """Give the lease back; nothing happens when it is lost already, or in a forked child."""
        holder = _read(self.path)
        if os.getpid() == self._pid and holder is not None and holder.token == self.token:
            self.path.unlink(missing_ok=True)

    def __enter__(self) -> "Lease":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def acquire(
    folder: Path, name: str, info: Mapping[str, str] | None = None, stale_after_s: float = STALE_AFTER_S
) -> Lease:
    """The lease of that name, held by this process; raises LeaseHeld when another holds it."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name for a lease")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return _acquire(folder, name, dict(info or {}), stale_after_s)
    except OSError as error:
        raise UserError(
            f"no lease can be taken in {folder}: {error.strerror or error}; mend this and run again"
        ) from error


def holder(folder: Path, name: str) -> Holder | None:
    """Who holds the lease, alive or not, or None."""
    return _read(folder / f"{name}.json")


def holders(folder: Path) -> list[Holder]:
    """The holders of all leases of a folder, alive or not."""
    try:
        paths = [path for path in folder.glob("*.json") if "~" not in path.name]
    except OSError:
        return []
    found = [each for path in paths if (each := _read(path)) is not None]
    return sorted(found, key=lambda each: each.name)


def clock_s(folder: Path) -> float:
    """The time by the clock of the file system under a folder; our own where we may not write."""
    probe = folder / f".{secrets.token_hex(8)}.clock"
    try:
        probe.touch()
        return probe.stat().st_mtime
    except OSError:
        return time.time()
    finally:
        _remove(probe)


def _acquire(folder: Path, name: str, info: dict[str, str], stale_after_s: float) -> Lease:
    path = folder / f"{name}.json"
    token = secrets.token_hex(8)
    aside = folder / f".{name}.{token}.part"
    try:
        _write_aside(aside, token, info)
        for _ in range(_MAX_TRIES):
            if _link(aside, path):
                _sweep(folder, name, token, now_s=aside.stat().st_mtime, stale_after_s=stale_after_s)
                return Lease(path, token)
            found = _read(path)
            if found is None:
                continue  # released in between
            os.utime(aside)
            if not found.is_stale(aside.stat().st_mtime, stale_after_s):
                raise LeaseHeld(path, found)
            _remove_stale(folder, found, info, stale_after_s)
        raise UserError(f"{path} changes hands all the time: run again later")
    finally:
        _remove(aside)


def _remove_stale(folder: Path, found: Holder, info: dict[str, str], stale_after_s: float) -> None:
    """Remove a dead holder's lease file, if it is still there; raises LeaseHeld when another is at it."""
    path = folder / f"{found.name}.json"
    try:
        right = _acquire(folder, f"{found.name}~{found.token}", info, stale_after_s)
    except LeaseHeld as error:
        raise LeaseHeld(path, error.holder) from None
    with right:
        current = _read(path)
        if current is not None and current.token == found.token:
            path.unlink()


def _write_aside(aside: Path, token: str, info: dict[str, str]) -> None:
    process = asdict(ProcessName.own())
    with open(aside, "wb") as file:
        file.write(seal({"schema": 1, "token": token, "since": utc_now(), "process": process, "info": info}))


def _link(aside: Path, path: Path) -> bool:
    """True when the file now stands under its name too; one contender alone is told so."""
    try:
        os.link(aside, path)
    except FileExistsError:
        # A network file system may have done it and lost its answer.
        return aside.stat().st_nlink == 2
    except OSError as error:
        if aside.exists() and aside.stat().st_nlink == 2:
            return True
        raise UserError(
            f"no hard link can be made in {path.parent} ({error.strerror or error}): "
            "put the store on a file system that has them"
        ) from error
    return True


def _read(path: Path) -> Holder | None:
    """The holder a lease file names, or None when there is no file."""
    try:
        with open(path, "rb") as file:
            stat = os.fstat(file.fileno())
            raw = file.read()
    except FileNotFoundError:
        return None
    name = path.name.removesuffix(".json")
    content = next((entry.value for entry in scan([raw]) if entry.value is not None), {})
    try:
        return Holder(
            name=name,
            process=ProcessName(**content["process"]),
            since=str(content["since"]),
            token=str(content["token"]),
            beat_at_s=stat.st_mtime,
            info=dict(content["info"]),
        )
    except (TypeError, KeyError):
        token = f"{stat.st_ino:x}-{stat.st_mtime_ns:x}"
        return Holder(name=name, process=None, since="", token=token, beat_at_s=stat.st_mtime)


def _sweep(folder: Path, name: str, token: str, now_s: float, stale_after_s: float) -> None:
    """Clear away what contenders that died left: rights to remove holders long gone, files never linked."""
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
