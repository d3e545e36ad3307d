"""Parts of large stores read by several processes side by side; what they keep comes back over a pipe.

The processes are started anew, not forked, because the caller may have threads, and they never load the
caller's own script. One that dies costs time only: what it had to read is read here.
"""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

from corewise.store.parts import Keep, Part, PartRead, T, read_part

MIN_BYTES = 64 * 2**20  # below, starting processes costs more than it saves
MAX_PROCESSES = 4  # login nodes are shared
_NUM_AHEAD = 2  # parts given to a process at a time, so that it never waits for the next
_START = "import sys; sys.path[:] = {path!r}; from corewise.store.side_readers import serve; serve({fd})"


def read_side_by_side(parts: Sequence[Part], keep: Keep[T]) -> list[PartRead[T]]:
    """What every part holds, in the order of the parts."""
    reads: dict[int, PartRead[T]] = {}
    if _num_bytes(parts) >= MIN_BYTES:
        reads = _read_elsewhere(parts, keep, min(MAX_PROCESSES, len(os.sched_getaffinity(0))))
    return [reads[i] if i in reads else read_part(part, keep) for i, part in enumerate(parts)]


def serve(fd: int) -> None:
    """Read the parts asked for until no more are; run in a process of its own."""
    import gc

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that asked decides
    gc.disable()
    with Connection(fd) as pipe, contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        keep = pipe.recv()
        while True:
            pipe.send(read_part(pipe.recv(), keep))


def _read_elsewhere(parts: Sequence[Part], keep: Keep[T], num_processes: int) -> dict[int, PartRead[T]]:
    """The parts that other processes could read, by their place in the list."""
    if num_processes < 2 or not _can_be_sent(keep):
        return {}
    reads: dict[int, PartRead[T]] = {}
    todo = deque(enumerate(parts))
    with contextlib.ExitStack() as stack:
        asked: dict[Connection[Any, Any], deque[int]] = {}
        for _ in range(num_processes):
            with contextlib.suppress(OSError):  # no memory or no number left for a process
                pipe = stack.enter_context(_helper())
                pipe.send(keep)
                asked[pipe] = deque()
                for _ in range(_NUM_AHEAD):
                    _ask(pipe, asked[pipe], todo)
        while any(asked.values()):
            ready = wait([pipe for pipe, ones in asked.items() if ones])
            for each in [each for each in asked if each in ready]:
                try:
                    reads[asked[each].popleft()] = each.recv()
                    _ask(each, asked[each], todo)
                except (OSError, EOFError, pickle.UnpicklingError):
                    asked[each].clear()
    return reads


def _ask(pipe: "Connection[Any, Any]", asked: deque[int], todo: "deque[tuple[int, Part]]") -> None:
    if todo:
        number, part = todo.popleft()
        asked.append(number)
        pipe.send(part)


@contextlib.contextmanager
def _helper() -> "Iterator[Connection[Any, Any]]":
    """A pipe to a new process that serves; the process ends when the pipe is closed."""
    ours, theirs = Pipe()
    with ours:
        with theirs:
            code = _START.format(path=sys.path, fd=theirs.fileno())
            process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # what goes wrong there goes wrong here too, where it is told
                pass_fds=[theirs.fileno()],
            )
        with process:
            try:
                yield ours
            finally:
                ours.close()


def _num_bytes(parts: Sequence[Part]) -> int:
    """How large the files of the parts are together."""
    sizes = 0
    for path in {part.file for part in parts}:
        with contextlib.suppress(OSError):  # whoever reads the part names it
            sizes += path.stat().st_size
    return sizes


def _can_be_sent(keep: Keep[Any]) -> bool:
    """True for a function that another process finds by its name, in a module it can load."""
    try:
        return b"__main__" not in pickle.dumps(keep)
    except (pickle.PicklingError, AttributeError, TypeError):
        return False
