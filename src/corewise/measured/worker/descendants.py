"""Finds, signals and kills the descendants of this process, including orphans.

The caller has adopted orphans (process_control.adopt_orphans). A process without children therefore has no
descendants.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Collection, Iterable, Iterator, Mapping, Optional

# Processes that cannot be killed within this time are left behind.
END_LIMIT_S = 5.0
# Helper processes get this time to end after the process that started them.
PATIENCE_S = 0.2
# The pause between two rounds of killing, during which processes may still fork.
RETRY_S = 0.02


def read_parents(proc: str = "/proc") -> dict[int, int]:
    """Read the parent of every visible process; empty when /proc cannot be read."""
    parents = {}
    with suppress(OSError):
        for name in os.listdir(proc):
            if name.isdigit():
                with suppress(OSError, IndexError, ValueError):
                    stat = Path(proc, name, "stat").read_bytes()
                    parents[int(name)] = int(stat.rpartition(b")")[2].split()[1])
    return parents


def find_descendants(root: int, parents: Mapping[int, int]) -> list[int]:
    """Find every process below `root`, parents before their children."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    below_root, waiting = [], [root]
    while waiting:
        next_children = sorted(children.pop(waiting.pop(0), ()))
        below_root += next_children
        waiting += next_children
    return below_root


def send_signal(pids: Iterable[int], number: int) -> None:
    """Send a signal to each process that still exists and that we may signal."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def is_stopped(pid: int, proc: str = "/proc") -> bool:
    """Return True when the process is stopped, by SIGSTOP or a debugger."""
    with suppress(OSError, IndexError):
        return Path(proc, str(pid), "stat").read_bytes().rpartition(b")")[2].split()[0] in (b"T", b"t")
    return False


def read_process_name(pid: int, proc: str = "/proc") -> str:
    """Read the command line of a process, or its short name; empty when the process has ended."""
    with suppress(OSError):
        command = Path(proc, str(pid), "cmdline").read_bytes().split(b"\0")
        return b" ".join(command).strip().decode("utf-8", "replace") or read_short_name(pid, proc)
    return ""


def read_short_name(pid: int, proc: str = "/proc") -> str:
    """Read the short name of a process, which is that of its parent after a fork; empty when it has ended."""
    with suppress(OSError):
        return Path(proc, str(pid), "comm").read_bytes().strip().decode("utf-8", "replace")
    return ""


def find_children() -> frozenset[int]:
    """Find the children of this process, such as those of a shell that was replaced by this process."""
    if not has_children():
        return frozenset()
    return frozenset(pid for pid, parent in read_parents().items() if parent == os.getpid())


def end_leftovers(spared: Collection[int] = ()) -> list[str]:
    """Wait briefly for the descendants of this process to end, kill the others, and return their short names."""
    until = time.monotonic() + PATIENCE_S
    left = find_living_descendants(spared)
    while left and time.monotonic() < until:
        time.sleep(RETRY_S)
        left = find_living_descendants(spared)
    names = [name for name in map(read_short_name, left) if name]
    if left:
        kill_descendants(END_LIMIT_S, spared)
    return names


def kill_descendants(limit_s: float, spared: Collection[int] = ()) -> bool:
    """Kill and reap until this process has no descendants; False when the time limit is reached first.

    Spared children and their descendants are not killed.
    """
    until = time.monotonic() + limit_s
    while True:
        left = find_living_descendants(spared)
        if not left and (spared or not has_children()):
            return True
        send_signal(left, signal.SIGKILL)
        if time.monotonic() > until:
            return False
        time.sleep(RETRY_S)


def find_living_descendants(spared: Collection[int] = ()) -> list[int]:
    """Reap the children that have ended and find all other descendants, except below spared children."""
    for _ in collect_ended_children():
        pass
    if not has_children():
        return []
    parents = read_parents()
    spared_pids = {*spared, *(pid for each in spared for pid in find_descendants(each, parents))}
    return [pid for pid in find_descendants(os.getpid(), parents) if pid not in spared_pids]


def has_children() -> bool:
    """Return True when a child is running or waits to be reaped."""
    try:
        find_ended_child()
    except ChildProcessError:
        return False
    return True


def find_ended_child() -> Optional[int]:
    """Find a child that waits to be reaped; None when all run, ChildProcessError when there is none."""
    ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    return None if ended is None else ended.si_pid


def collect_ended_children() -> Iterator[tuple[int, int]]:
    """Reap each child that has ended and yield its pid and wait status."""
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            yield pid, status
