"""Finds, signals and kills the descendants of this process, including orphans.

The caller has adopted orphans (process_control.adopt_orphans). A process without children therefore has no
descendants.
"""

import os
import signal
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

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


def read_process_name(pid: int, proc: str = "/proc") -> str:
    """Read the command line of a process, or its short name; empty when the process has ended."""
    with suppress(OSError):
        command = Path(proc, str(pid), "cmdline").read_bytes().split(b"\0")
        name = b" ".join(command).strip() or Path(proc, str(pid), "comm").read_bytes().strip()
        return name.decode("utf-8", "replace")
    return ""


def find_children() -> frozenset[int]:
    """Find the children of this process, such as those of a shell that was replaced by this process."""
    if not has_children():
        return frozenset()
    return frozenset(pid for pid, parent in read_parents().items() if parent == os.getpid())


def kill_descendants(limit_s: float, spared: Collection[int] = ()) -> bool:
    """Kill and reap until this process has no descendants; False when the time limit is reached first.

    Spared children and their descendants are not killed.
    """
    until = time.monotonic() + limit_s
    while True:
        for _ in collect_ended_children():
            pass
        if not has_children():
            return True
        parents = read_parents()
        spared_pids = {*spared, *(pid for each in spared for pid in find_descendants(each, parents))}
        left = [pid for pid in find_descendants(os.getpid(), parents) if pid not in spared_pids]
        if spared and not left:
            return True
        send_signal(left, signal.SIGKILL)
        if time.monotonic() > until:
            return False
        time.sleep(RETRY_S)


def has_children() -> bool:
    """Return True when a child is running or waits to be reaped."""
    try:
        find_ended_child()
    except ChildProcessError:
        return False
    return True


def find_ended_child() -> int | None:
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
