"""Identify a process so that another one, perhaps on another host, can check whether it is alive."""

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class ProcessIdentity:
    """A unique identity of a process: process numbers are reused, start times and boot ids are not.

    Attributes:
        pid_namespace: containers on one host number their processes independently.
        start_ticks: clock ticks since boot.
    """

    host: str
    boot_id: str
    pid_namespace: str
    pid: int
    start_ticks: int

    @classmethod
    def from_current_process(cls) -> "ProcessIdentity":
        """Return the identity of the calling process."""
        pid = os.getpid()
        return cls(
            host=socket.gethostname(),
            boot_id=_read_boot_id(),
            pid_namespace=_read_pid_namespace(),
            pid=pid,
            start_ticks=_read_start_ticks(pid) or 0,
        )

    @classmethod
    def from_json(cls, values: Any) -> "ProcessIdentity":
        """Build an identity from parsed JSON; raises TypeError or KeyError if it is none."""
        host, boot_id, pid_namespace = (values[name] for name in ("host", "boot_id", "pid_namespace"))
        pid, start_ticks = values["pid"], values["start_ticks"]
        if {type(host), type(boot_id), type(pid_namespace)} != {str} or {type(pid), type(start_ticks)} != {int}:
            raise TypeError("not the identity of a process")
        return cls(host, boot_id, pid_namespace, pid, start_ticks)

    def is_here(self) -> bool:
        """Return True if the process ran on this host, boot and namespace."""
        local = (socket.gethostname(), _read_boot_id(), _read_pid_namespace())
        return bool(self.boot_id) and (self.host, self.boot_id, self.pid_namespace) == local

    def is_alive_here(self) -> bool:
        """Return False only if the process has certainly ended; valid only if `is_here`."""
        ticks = _read_start_ticks(self.pid)
        if ticks is not None:
            return ticks == self.start_ticks
        try:
            # /proc may hide processes of other users, but signal 0 still shows whether they exist.
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except (PermissionError, OverflowError):
            return True
        return not _is_zombie(self.pid)


def _read_stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the third on, or none if it cannot be read."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def _read_start_ticks(pid: int) -> int | None:
    """Return the start time of a process (field 22), or None if it is gone, a zombie or hidden."""
    fields = _read_stat_fields(pid)
    return int(fields[19]) if len(fields) > 19 and fields[0] not in "ZX" else None


def _is_zombie(pid: int) -> bool:
    fields = _read_stat_fields(pid)
    return bool(fields) and fields[0] in "ZX"


def _read_boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _read_pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
