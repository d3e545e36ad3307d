"""Who a process is, so that another one, perhaps elsewhere, can tell whether it still lives."""

import os
import socket
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ProcessName:
    """A process named beyond doubt: numbers are used again, start times and boots are not."""

    host: str
    boot_id: str
    pid_namespace: str  # containers on one host number their processes each on their own
    pid: int
    start_ticks: int  # since boot

    @classmethod
    def own(cls) -> "ProcessName":
        """The name of the calling process."""
        pid = os.getpid()
        return cls(
            host=socket.gethostname(),
            boot_id=_boot_id(),
            pid_namespace=_pid_namespace(),
            pid=pid,
            start_ticks=_start_ticks(pid) or 0,
        )

    def is_here(self) -> bool:
        """True when the process is or was one this process could see."""
        here = (socket.gethostname(), _boot_id(), _pid_namespace())
        return bool(self.boot_id) and (self.host, self.boot_id, self.pid_namespace) == here

    def is_alive_here(self) -> bool:
        """True unless the process has surely ended; only to be asked of one that `is_here`."""
        ticks = _start_ticks(self.pid)
        if ticks is not None:
            return ticks == self.start_ticks
        try:
            os.kill(self.pid, 0)  # /proc may hide other people's processes; a signal's answer does not
        except ProcessLookupError:
            return False
        except (PermissionError, OverflowError):
            return True
        return not _is_zombie(self.pid)


def _stat_fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third one on, or nothing."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def _start_ticks(pid: int) -> int | None:
    """When the process started (field 22), or None when it is gone, a zombie or hidden."""
    fields = _stat_fields(pid)
    return int(fields[19]) if len(fields) > 19 and fields[0] not in "ZX" else None


def _is_zombie(pid: int) -> bool:
    fields = _stat_fields(pid)
    return bool(fields) and fields[0] in "ZX"


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
