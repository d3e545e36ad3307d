"""Read parts of large stores in several processes; the extracted values return over pipes.

The processes are started, not forked, because the caller may have threads. They never load the caller's
script. If one dies, this process reads its parts, which only costs time.
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

from corewise.store.file_parts import Extractor, FilePart, PartContents, T, read_part

# For smaller stores, starting processes takes longer than it saves.
MIN_BYTES = 64 * 2**20
# Login nodes are shared, so few processes are used.
MAX_PROCESSES = 4
# Parts assigned to a process at a time, so that it never waits for the next.
_NUM_AHEAD = 2
_START = "import sys; sys.path[:] = {path!r}; from corewise.store.parallel_readers import serve; serve({fd})"


def read_in_parallel(parts: Sequence[FilePart], extract: Extractor[T]) -> list[PartContents[T]]:
    """Read all parts; the results have the order of the parts."""
    reads: dict[int, PartContents[T]] = {}
    if _count_bytes(parts) >= MIN_BYTES:
        reads = _read_in_processes(parts, extract, min(MAX_PROCESSES, len(os.sched_getaffinity(0))))
    return [reads[i] if i in reads else read_part(part, extract) for i, part in enumerate(parts)]


def serve(fd: int) -> None:
    """Read requested parts until the pipe closes; runs in a reader process."""
    import gc

    # The parent process decides what an interrupt means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()
    with Connection(fd) as pipe, contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        extract = pipe.recv()
        while True:
            pipe.send(read_part(pipe.recv(), extract))


def _read_in_processes(
    parts: Sequence[FilePart], extract: Extractor[T], num_processes: int
) -> dict[int, PartContents[T]]:
    """Read parts in other processes; returns those that succeeded, by index."""
    if num_processes < 2 or not _can_be_sent(extract):
        return {}
    reads: dict[int, PartContents[T]] = {}
    todo = deque(enumerate(parts))
    with contextlib.ExitStack() as stack:
        asked: dict[Connection[Any, Any], deque[int]] = {}
        for _ in range(num_processes):
            # Without memory or process numbers, fewer processes are used.
            with contextlib.suppress(OSError):
                pipe = stack.enter_context(_start_reader())
                pipe.send(extract)
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


def _ask(pipe: "Connection[Any, Any]", asked: deque[int], todo: "deque[tuple[int, FilePart]]") -> None:
    if todo:
        number, part = todo.popleft()
        asked.append(number)
        pipe.send(part)


@contextlib.contextmanager
def _start_reader() -> "Iterator[Connection[Any, Any]]":
    """Start a reader process and yield a pipe to it; the process ends when the pipe closes."""
    ours, theirs = Pipe()
    with ours:
        with theirs:
            code = _START.format(path=sys.path, fd=theirs.fileno())
            process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.DEVNULL,
                # Errors are dropped here because this process meets and reports the same errors.
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        with process:
            try:
                yield ours
            finally:
                ours.close()


def _count_bytes(parts: Sequence[FilePart]) -> int:
    """Return the total size of the files of the parts."""
    sizes = 0
    for path in {part.file for part in parts}:
        # The reader of the part reports the error.
        with contextlib.suppress(OSError):
            sizes += path.stat().st_size
    return sizes


def _can_be_sent(extract: Extractor[Any]) -> bool:
    """Return True for a function that another process can import."""
    try:
        return b"__main__" not in pickle.dumps(extract)
    except (pickle.PicklingError, AttributeError, TypeError):
        return False
