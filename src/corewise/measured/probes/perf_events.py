"""Open, start and read the kernel's performance events of this process, through perf_event_open.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import ctypes
import dataclasses
import errno
import fcntl
import os
import platform
import struct
from pathlib import Path
from typing import Iterable, Optional, Sequence

# The number of the system call, by machine.
_SYSCALLS = {"x86_64": 298, "aarch64": 241, "riscv64": 241, "ppc64le": 319, "s390x": 331, "loongarch64": 241}
# The types of linux/perf_event.h. RAW holds a code of the processor's manual.
HARDWARE, SOFTWARE, RAW = 0, 1, 4
# Generic hardware events.
CYCLES, INSTRUCTIONS, CACHE_MISSES = 0, 1, 3
# Software events, which need no PMU.
TASK_CLOCK, PAGE_FAULTS, CONTEXT_SWITCHES, MIGRATIONS = 1, 2, 3, 4
_ENABLE, _DISABLE = 0x2400, 0x2401
# The format of a value: the count, the time enabled and the time running.
_READ_FORMAT, _VALUE_BYTES = 1 | 2, 24
_ATTRIBUTE_BYTES, _CLOSE_ON_EXEC = 128, 8
_PARANOID = "kernel/perf_event_paranoid"
# From this value of perf_event_paranoid on, the kernel is not counted; from 3 on (Debian, Ubuntu), nothing is.
USER_ONLY_PARANOID, FORBIDDEN_PARANOID = 2, 3


@dataclasses.dataclass(frozen=True)
class Event:
    """One event of a PMU; on a hybrid processor, each type of core has its own PMU."""

    type: int
    config: int


@dataclasses.dataclass(frozen=True)
class Reading:
    """A count, and for how many nanoseconds the event was enabled and really counted."""

    count: int
    enabled_ns: int
    running_ns: int


class EventsUnavailable(Exception):
    """The kernel does not provide the events; the text says why and what to do, `code` is the error number."""

    def __init__(self, reason: str, code: int = 0) -> None:
        super().__init__(reason)
        self.code = code


class EventSet:
    """Counts one quantity in every thread of the process, and in threads that they start.

    `events` has one event for each PMU. A thread counts on the PMU of the core on which it runs.
    """

    def __init__(self, events: Sequence[Event], tids: Iterable[int], *, user_only: bool) -> None:
        self._fds: list[list[int]] = []
        try:
            for tid in tids:
                fds: list[int] = []
                self._fds.append(fds)
                for event in events:
                    fd = open_event(event, tid, user_only=user_only)
                    # A thread that has just ended has nothing to count.
                    if fd is not None:
                        fds.append(fd)
        except BaseException:
            self.close()
            raise

    def enable(self) -> None:
        for fd in self._list_fds():
            fcntl.ioctl(fd, _ENABLE, 0)

    def disable(self) -> None:
        for fd in self._list_fds():
            fcntl.ioctl(fd, _DISABLE, 0)

    def read(self) -> Optional[float]:
        """Return the corrected count over all threads; None if an event never ran while it was enabled."""
        total = 0.0
        for fds in self._fds:
            corrected = correct_multiplexing([read_event(fd) for fd in fds])
            if corrected is None:
                return None
            total += corrected
        return total

    def read_running_share(self) -> float:
        """Return the smallest share of the time in which the events of a thread counted; 1 if none was enabled."""
        shares = [compute_running_share([read_event(fd) for fd in fds]) for fds in self._fds]
        return min((share for share in shares if share is not None), default=1.0)

    def close(self) -> None:
        for fd in self._list_fds():
            os.close(fd)
        self._fds = []

    def _list_fds(self) -> list[int]:
        return [fd for fds in self._fds for fd in fds]


def correct_multiplexing(readings: Sequence[Reading]) -> Optional[float]:
    """Extrapolate the counts of a thread's PMUs to the time in which they were enabled.

    If more events are open than a PMU has counters, the kernel lets them count in turn. The count then grows by
    time enabled over time running, as `perf stat` does it. A thread runs on one type of core at a time, so the
    times of several PMUs add up. Without any time enabled, the thread did not run: it counts 0.
    """
    enabled_ns = max((each.enabled_ns for each in readings), default=0)
    running_ns = sum(each.running_ns for each in readings)
    count = sum(each.count for each in readings)
    if enabled_ns == 0:
        return 0.0
    if running_ns == 0:
        return None
    return count * max(1.0, enabled_ns / running_ns)


def compute_running_share(readings: Sequence[Reading]) -> Optional[float]:
    """Return the share of the enabled time in which a PMU of the thread counted; None if it never was enabled."""
    enabled_ns = max((each.enabled_ns for each in readings), default=0)
    return min(1.0, sum(each.running_ns for each in readings) / enabled_ns) if enabled_ns else None


def pack_attribute(event: Event, *, user_only: bool) -> bytes:
    """Pack perf_event_attr: disabled, inherited by new threads, without hypervisor, and without the kernel if asked."""
    disabled, inherited, without_kernel, without_hypervisor = 1, 1 << 1, 1 << 5, 1 << 6
    flags = disabled | inherited | (without_kernel if user_only else 0) | without_hypervisor
    attribute = bytearray(_ATTRIBUTE_BYTES)
    struct.pack_into("=IIQ", attribute, 0, event.type, _ATTRIBUTE_BYTES, event.config)
    struct.pack_into("=QQ", attribute, 32, _READ_FORMAT, flags)
    return bytes(attribute)


def open_event(event: Event, tid: int, *, user_only: bool) -> Optional[int]:
    """Open the event for a thread, disabled; None if the thread has ended.

    Raises:
        EventsUnavailable: the kernel refuses.
    """
    number = _SYSCALLS.get(platform.machine())
    if number is None:
        raise EventsUnavailable(f"the number of the system call perf_event_open on {platform.machine()} is unknown")
    libc = ctypes.CDLL(None, use_errno=True)
    attribute = ctypes.create_string_buffer(pack_attribute(event, user_only=user_only), _ATTRIBUTE_BYTES)
    arguments = (ctypes.c_long(tid), ctypes.c_long(-1), ctypes.c_long(-1), ctypes.c_ulong(_CLOSE_ON_EXEC))
    fd = int(libc.syscall(ctypes.c_long(number), attribute, *arguments))
    if fd >= 0:
        return fd
    code = ctypes.get_errno()
    if code == errno.ESRCH:
        return None
    raise EventsUnavailable(explain_refusal(code), code)


def read_event(fd: int) -> Reading:
    """Read an event with its times."""
    return Reading(*struct.unpack("=QQQ", os.read(fd, _VALUE_BYTES)))


def explain_refusal(code: int, proc_sys: Path = Path("/proc/sys")) -> str:
    """Explain an error of perf_event_open, with the remedy."""
    if code in (errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP):
        return _explain_missing_pmu()
    if code in (errno.EACCES, errno.EPERM):
        level = read_paranoid(proc_sys)
        if level is not None and level >= FORBIDDEN_PARANOID:
            return (
                f"perf_event_paranoid is {level}, which forbids counters to users; "
                f"`sudo sysctl kernel.perf_event_paranoid={USER_ONLY_PARANOID}` allows them"
            )
        return (
            "the kernel refuses perf_event_open, although perf_event_paranoid is "
            f"{'unknown' if level is None else level}: a container's seccomp profile may forbid it; "
            "start the container with --cap-add PERFMON or another profile"
        )
    if code == errno.ENOSYS:
        return "the kernel or the container has no perf_event_open"
    if code in (errno.EMFILE, errno.ENFILE):
        return "too many open files: each thread needs one for each counter; raise the limit with `ulimit -n`"
    return f"perf_event_open failed: {os.strerror(code)}"


def read_paranoid(proc_sys: Path = Path("/proc/sys")) -> Optional[int]:
    """Read kernel.perf_event_paranoid; None if the kernel has no events."""
    try:
        return int((proc_sys / _PARANOID).read_text())
    except (OSError, ValueError):
        return None


def list_tids(proc: str = "/proc") -> list[int]:
    """List the threads of this process."""
    return [int(name) for name in os.listdir(f"{proc}/self/task")]


def _explain_missing_pmu() -> str:
    try:
        is_virtual = "hypervisor" in Path("/proc/cpuinfo").read_text(errors="replace").split()
    except OSError:
        is_virtual = False
    if is_virtual:
        return "this virtual machine has no PMU: use bare metal, or enable the virtual PMU in the hypervisor"
    return "the kernel knows no PMU of this processor for this event"
