"""The processes that descend from this one, orphans included, and how to end them all.

Whoever calls has adopted orphans (pinning.adopt_orphans): a process without children then has no descendants.
"""

import os
import signal
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

RETRY_S = 0.02  # between two rounds of killing, while processes may still be born


def read_parents(proc: str = "/proc") -> dict[int, int]:
    """The parent of every process we can see; none where /proc cannot be read."""
    parents = {}
    with suppress(OSError):
        for name in os.listdir(proc):
            if name.isdigit():
                with suppress(OSError, IndexError, ValueError):
                    stat = Path(proc, name, "stat").read_bytes()
                    parents[int(name)] = int(stat.rpartition(b")")[2].split()[1])
    return parents


def descendants(root: int, parents: Mapping[int, int]) -> list[int]:
    """Every process below `root`, parents before their children."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    found, waiting = [], [root]
    while waiting:
        below = sorted(children.pop(waiting.pop(0), ()))
        found += below
        waiting += below
    return found


def signal_all(pids: Iterable[int], number: int) -> None:
    """Send a signal to each process that is still there and ours."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def process_name(pid: int, proc: str = "/proc") -> str:
    """What the process was started as, or its short name; empty once it is gone."""
    with suppress(OSError):
        words = Path(proc, str(pid), "cmdline").read_bytes().split(b"\0")
        shown = b" ".join(words).strip() or Path(proc, str(pid), "comm").read_bytes().strip()
        return shown.decode("utf-8", "replace")
    return ""


def children_so_far() -> frozenset[int]:
    """The children that this process has: a shell that replaced itself by us has left us its own."""
    if not has_children():
        return frozenset()
    return frozenset(pid for pid, parent in read_parents().items() if parent == os.getpid())


def end_descendants(limit_s: float, spared: Collection[int] = ()) -> bool:
    """Kill and reap until nothing descends from this process; False when the limit came first.

    Children that are spared live on, with what descends from them.
    """
    until = time.monotonic() + limit_s
    while True:
        for _ in reaped():
            pass
        if not has_children():
            return True
        parents = read_parents()
        kept = {*spared, *(pid for each in spared for pid in descendants(each, parents))}
        left = [pid for pid in descendants(os.getpid(), parents) if pid not in kept]
        if spared and not left:
            return True
        signal_all(left, signal.SIGKILL)
        if time.monotonic() > until:
            return False
        time.sleep(RETRY_S)


def has_children() -> bool:
    """Whether a child lives or waits to be reaped."""
    try:
        ended_child()
    except ChildProcessError:
        return False
    return True


def ended_child() -> int | None:
    """A child that waits to be reaped, or None where all live; ChildProcessError where there is none."""
    ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    return None if ended is None else ended.si_pid


def reaped() -> Iterator[tuple[int, int]]:
    """Each child that has ended, with its wait status."""
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            yield pid, status
