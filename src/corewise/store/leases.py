"""Leases: one holder at a time, on any shared file system with hard links; no flock.

A lease is the file NAME.json. A contender writes a temporary file and links it to that name, which succeeds
for one contender only. A dead holder leaves its file behind. The right to replace that file is another lease,
named after the token of the file, so a slow contender cannot replace the lease of the next, living holder.

A holder that was only paused may wake up after its lease was replaced. A lease therefore names the tokens of
those that it replaced, and so do the records written under it: readers recognise the late ones.
"""

import contextlib
import errno
import math
import os
import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType

from corewise.errors import UserError
from corewise.store.process_identity import ProcessIdentity
from corewise.store.sealed_lines import scan_lines, seal
from corewise.study.record import format_utc_now

# Seconds without a heartbeat after which holders on other hosts count as dead; set it alike on all hosts.
STALE_VARIABLE = "COREWISE_LEASE_STALE_S"
STALE_AFTER_S = 120.0
# The name of a trial's lease is this prefix and the trial's id.
TRIAL_LEASE = "trial-"
_MIN_STALE_AFTER_S = 0.5
# Files of the lease protocol have some hundred bytes.
_MAX_FILE_BYTES = 2**20
# A holder elsewhere that seems dead is watched for this share of the stale time: three heartbeats.
_SILENT_SHARE = 0.5
# The last heartbeat of each lease that seemed stale, and when this process first saw it.
_known_beats: dict[Path, tuple[tuple[str, float], float]] = {}
_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_MAX_TRIES = 100


@dataclass(frozen=True)
class Holder:
    """The holder of a lease, read from its file.

    Attributes:
        process: None if the file is damaged.
        beat_at_s: last heartbeat by the clock of the file system.
        replaced: tokens of the holders that lost the lease before, the last one last.
    """

    name: str
    process: ProcessIdentity | None
    since: str
    token: str
    beat_at_s: float
    info: Mapping[str, str] = field(default_factory=dict)
    replaced: tuple[str, ...] = ()

    @property
    def is_here(self) -> bool:
        """Whether the process ran on this host, so that it is known to be alive or dead."""
        return self.process is not None and self.process.is_here()

    def is_stale(self, now_s: float, stale_after_s: float | None = None) -> bool:
        """Return True if a holder on this host is dead, or one elsewhere seems to have sent no heartbeat for long."""
        if self.process is not None and self.is_here:
            return not self.process.is_alive_here()
        # A time far in the future is no recent heartbeat: a clock was wrong when it was written.
        return abs(now_s - self.beat_at_s) > (read_stale_after_s() if stale_after_s is None else stale_after_s)

    def __str__(self) -> str:
        if self.process is None:
            return "an unknown process (the lease file is damaged)"
        return f"process {self.process.pid} on {self.process.host} since {self.since}"


class LeaseHeld(UserError):
    """Another process holds the lease.

    Attributes:
        seems_dead: the holder sent no heartbeat for long, but the clocks of hosts may differ: try again.
    """

    def __init__(self, path: Path, holder: Holder, seems_dead: bool = False) -> None:
        self.holder, self.seems_dead = holder, seems_dead
        end = "end it"
        if holder.process is not None:
            end = f"end it with `kill {holder.process.pid}` on {holder.process.host}"
        super().__init__(f"{path} is held by {holder}: wait until it ends, or {end}, then run again")


class LeaseLost(Exception):
    """Another process took over the lease because this one sent no heartbeat for too long."""


class Lease:
    """A lease held by this process; a context manager that releases it.

    Attributes:
        replaced: tokens of the holders that lost it before.
    """

    def __init__(self, path: Path, token: str, replaced: tuple[str, ...] = ()) -> None:
        self.path = path
        self.token = token
        self.replaced = replaced
        self._pid = os.getpid()

    def is_held(self) -> bool:
        """Return False once another process took over or the file is gone."""
        holder = _read_lease_file(self.path)
        return holder is not None and holder.token == self.token

    def send_heartbeat(self) -> None:
        """Update the heartbeat; raises LeaseLost if another process took over."""
        if self.is_held():
            with contextlib.suppress(FileNotFoundError):
                os.utime(self.path)
                return
        raise LeaseLost(f"{self.path} is now held by {_read_lease_file(self.path) or 'nobody'}")

    def release(self) -> None:
        """Release the lease; does nothing if it is lost, or in a forked child."""
        if os.getpid() == self._pid and self.is_held():
            self.path.unlink(missing_ok=True)

    def __enter__(self) -> "Lease":
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def read_stale_after_s() -> float:
    """Return the seconds without a heartbeat after which a holder on another host counts as dead."""
    text = os.environ.get(STALE_VARIABLE, "")
    try:
        seconds = float(text) if text else STALE_AFTER_S
    except ValueError:
        seconds = math.nan
    if not _MIN_STALE_AFTER_S <= seconds < math.inf:
        raise UserError(f"{STALE_VARIABLE}={text!r}: expected a number of seconds from {_MIN_STALE_AFTER_S}")
    return seconds


def acquire_lease(
    folder: Path, name: str, info: Mapping[str, str] | None = None, stale_after_s: float | None = None
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
        limit_s = read_stale_after_s() if stale_after_s is None else stale_after_s
        return _try_acquire(folder, name, dict(info or {}), limit_s)
    except OSError as error:
        raise UserError(
            f"no lease can be acquired in {folder}: {error.strerror or error}; fix this and run again"
        ) from error


def acquire_when_free(
    folder: Path, name: str, info: Mapping[str, str] | None = None, report_waiting: Callable[[], None] = lambda: None
) -> Lease:
    """Acquire a lease like `acquire_lease`; if its holder seems dead, wait until that is certain."""
    while True:
        try:
            return acquire_lease(folder, name, info)
        except LeaseHeld as held:
            if not held.seems_dead:
                raise
        report_waiting()
        time.sleep(read_stale_after_s() / 20)


def read_holder(folder: Path, name: str) -> Holder | None:
    """Return the holder of the lease, alive or not, or None."""
    return _read_lease_file(folder / f"{name}.json")


def list_holders(folder: Path) -> list[Holder]:
    """Return the holders of all leases of a folder, alive or not."""
    try:
        paths = [path for path in folder.glob("*.json") if "~" not in path.name]
    except OSError:
        return []
    holders: list[Holder] = []
    for path in paths:
        # A file that cannot be read belongs to another user.
        with contextlib.suppress(OSError):
            holders += [each for each in (_read_lease_file(path),) if each is not None]
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


def remove_stale_leases(folder: Path, is_finished: Callable[[str], bool]) -> None:
    """Remove the leases of dead holders whose work is finished; nobody would ever acquire them again."""
    holders = [holder for holder in list_holders(folder) if is_finished(holder.name)]
    now_s = read_clock_s(folder) if holders else 0.0
    for holder in holders:
        if holder.is_stale(now_s):
            with contextlib.suppress(LeaseHeld, OSError):
                _try_acquire(folder, holder.name, {}, read_stale_after_s()).release()


def _try_acquire(folder: Path, name: str, info: dict[str, str], stale_after_s: float) -> Lease:
    path = folder / f"{name}.json"
    token = secrets.token_hex(8)
    aside = folder / f".{name}.{token}.part"
    try:
        _write_aside(aside, token, info)
        for _ in range(_MAX_TRIES):
            try:
                if _link(aside, path):
                    _remove_leftovers(path, token, stale_after_s)
                    return Lease(path, token)
                holder = _read_lease_file(path)
                if holder is None:
                    # It was released in the meantime.
                    continue
                os.utime(aside)
                now_s = aside.stat().st_mtime
            except FileNotFoundError:
                # Another process took the temporary file for a leftover: this one was paused, or a clock is wrong.
                _write_aside(aside, token, info)
                continue
            is_stale = holder.is_stale(now_s, stale_after_s)
            if not is_stale or not _is_surely_dead(path, holder, stale_after_s):
                raise LeaseHeld(path, holder, seems_dead=is_stale)
            lease = _replace_stale(folder, holder, aside, token, info, stale_after_s)
            if lease is not None:
                _remove_leftovers(path, token, stale_after_s)
                return lease
            _write_aside(aside, token, info)
        raise UserError(f"{path} changes its holder too often: run again later")
    finally:
        _remove(aside)


def _is_surely_dead(path: Path, holder: Holder, stale_after_s: float) -> bool:
    """Return True for a dead process on this host, or if this process has seen no heartbeat for long enough.

    A process elsewhere may have a wrong clock, so only changes of its heartbeat count.
    """
    if holder.is_here:
        return True
    beat = (holder.token, holder.beat_at_s)
    known_beat, since_s = _known_beats.get(path, (None, 0.0))
    if known_beat != beat:
        _known_beats[path] = (beat, time.monotonic())
        return False
    return time.monotonic() - since_s > _SILENT_SHARE * stale_after_s


def _replace_stale(
    folder: Path, holder: Holder, aside: Path, token: str, info: dict[str, str], stale_after_s: float
) -> Lease | None:
    """Replace the lease file of a dead holder; None if it has changed since.

    Raises:
        LeaseHeld: if another process is replacing it.
    """
    path = folder / f"{holder.name}.json"
    replaced = (*holder.replaced, holder.token)
    try:
        right = _try_acquire(folder, f"{holder.name}~{holder.token}", info, stale_after_s)
    except LeaseHeld as error:
        raise LeaseHeld(path, error.holder) from None
    with right:
        current = _read_lease_file(path)
        if current is None or current.token != holder.token:
            return None
        _write_aside(aside, token, info, replaced)
        with contextlib.suppress(FileNotFoundError):
            # A network file system may have renamed the file and lost the reply.
            os.replace(aside, path)
    lease = Lease(path, token, replaced)
    return lease if lease.is_held() else None


def _write_aside(aside: Path, token: str, info: dict[str, str], replaced: tuple[str, ...] = ()) -> None:
    process = asdict(ProcessIdentity.from_current_process())
    values = {"schema": 1, "token": token, "since": format_utc_now(), "process": process, "info": info}
    with open(aside, "wb") as file:
        file.write(seal({**values, "replaced": replaced}))


def _link(aside: Path, path: Path) -> bool:
    """Link the file to its final name; True for the one contender that succeeds."""
    try:
        os.link(aside, path)
    except FileNotFoundError:
        raise
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
            raw = file.read(_MAX_FILE_BYTES)
    except OSError as error:
        # On a network file system, the file may have been replaced between two requests.
        if error.errno in (errno.ENOENT, errno.ESTALE):
            return None
        raise
    name = path.name.removesuffix(".json")
    content = next((entry.value for entry in scan_lines([raw]) if entry.value is not None), {})
    try:
        return Holder(
            name=name,
            process=ProcessIdentity.from_json(content["process"]),
            since=str(content["since"]),
            token=str(content["token"]),
            beat_at_s=stat.st_mtime,
            info={str(key): str(value) for key, value in content["info"].items()},
            replaced=tuple(map(str, content.get("replaced", ()))),
        )
    except (TypeError, KeyError, AttributeError):
        token = f"{stat.st_ino:x}-{stat.st_mtime_ns:x}"
        return Holder(name=name, process=None, since="", token=token, beat_at_s=stat.st_mtime)


def _remove_leftovers(lease_path: Path, token: str, stale_after_s: float) -> None:
    """Remove files of dead contenders: rights to replace former holders, and unlinked temporary files."""
    name = lease_path.name.removesuffix(".json")
    # The lease is held already. What cannot be removed now is removed by a later holder.
    with contextlib.suppress(OSError):
        now_s = lease_path.stat().st_mtime
        for path in lease_path.parent.iterdir():
            if path.name.startswith(f"{name}~") and not path.name.startswith(f"{name}~{token}"):
                _remove(path)
            elif path.name.startswith(".") and path.suffix in (".part", ".clock"):
                with contextlib.suppress(OSError):
                    if abs(now_s - path.stat().st_mtime) > stale_after_s:
                        _remove(path)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
