"""What ranks print, line by line: assembled, prefixed, kept in log files, and written without blocking."""

import errno
import os
import select
import selectors
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO

MAX_LINE_BYTES = 1 << 20  # a longer line is cut
READ_BYTES = 1 << 16
WRITE_BYTES = select.PIPE_BUF  # what a pipe that is ready takes without blocking
FULL_BYTES = 1 << 20  # beyond this in a sink, ranks are left waiting in their own write
UPDATE_EVERY_S = 1.0  # how often a progress bar, which ends no line, is shown as a line


class Lines:
    """Bytes in, whole lines out, each with the prefix.

    With a prefix, a line is what a terminal would have left standing of it (the part after the last carriage
    return), and one that never ends is cut. Without one, every byte is passed on.
    """

    def __init__(self, prefix: bytes) -> None:
        self.prefix = prefix
        self._partial = bytearray()
        self._shown = b""  # the progress bar as it was last shown
        self._is_update = False

    def feed(self, data: bytes) -> bytes:
        """The lines that these bytes complete; the rest waits."""
        self._partial += data
        if b"\n" not in data:
            return self._cut()
        *lines, rest = bytes(self._partial).split(b"\n")
        self._partial = bytearray(rest)
        self._is_update = False
        return b"".join(map(self._line, lines)) + self._cut()

    @property
    def has_update(self) -> bool:
        """Whether a progress bar waits to be shown."""
        return self._is_update and self._partial != self._shown

    def update(self) -> bytes:
        """The progress bar as it stands, as a line."""
        self._shown = bytes(self._partial)
        return self._line(self._shown)

    def rest(self) -> bytes:
        """What came after the last line, as a line; for the end of the stream."""
        rest = bytes(self._partial)
        self._partial.clear()
        return self._line(rest) if rest and not (self._is_update and rest == self._shown) else b""

    def _line(self, line: bytes) -> bytes:
        if not self.prefix:
            return line + b"\n"
        return self.prefix + line.removesuffix(b"\r").rpartition(b"\r")[2] + b"\n"

    def _cut(self) -> bytes:
        """What is shown of an unfinished line because it is too long; earlier states of a bar are dropped."""
        bar_began = self._partial.rfind(b"\r", 0, max(0, len(self._partial) - 1))
        if self.prefix and bar_began >= 0:
            del self._partial[: bar_began + 1]
            self._is_update = True
        if len(self._partial) <= MAX_LINE_BYTES:
            return b""
        cut = bytes(self._partial)
        self._partial.clear()
        return self._line(cut) if self.prefix else cut


class Raw:
    """Bytes as they come, for a single process."""

    has_update = False

    def feed(self, data: bytes) -> bytes:
        return data

    def update(self) -> bytes:
        return b""

    def rest(self) -> bytes:
        return b""


class Sink:
    """One of our own outputs, with what still waits to be written to it."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.size = 0
        self.problem: OSError | None = None  # set once nothing more can be written
        self._waiting: deque[bytes] = deque()

    def put(self, data: bytes) -> None:
        if data and self.problem is None:
            self._waiting.append(data)
            self.size += len(data)

    def write_some(self) -> None:
        """Write as much as cannot block."""
        data = self._next()
        try:
            written = os.write(self.fd, data)
        except BlockingIOError:
            written = 0
        except OSError as problem:
            self.problem = problem
            self._waiting.clear()
            self.size = 0
            return
        self.size -= written
        if written < len(data):
            self._waiting.appendleft(data[written:])

    def _next(self) -> bytes:
        """At most what a pipe takes at once, taken from the queue."""
        parts, size = [], 0
        while self._waiting and size < WRITE_BYTES:
            part = self._waiting.popleft()
            if size + len(part) > WRITE_BYTES:
                self._waiting.appendleft(part[WRITE_BYTES - size :])
                part = part[: WRITE_BYTES - size]
            parts.append(part)
            size += len(part)
        return b"".join(parts)


@dataclass
class _Source:
    fd: int
    lines: Lines | Raw
    sink: Sink
    log: BinaryIO | None


class Relay:
    """Reads every rank's outputs and writes them to ours; all waiting is the selector's."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._sources: list[_Source] = []
        self._registered: set[int] = set()
        one = _same_file(1, 2)
        self.stdout = Sink(1)
        self.stderr = self.stdout if one else Sink(2)
        self.log_problem: OSError | None = None

    @property
    def is_one_stream(self) -> bool:
        """Whether output and error end up in one place, so that a rank can have one pipe for both."""
        return self.stdout is self.stderr

    def add(self, fd: int, lines: Lines | Raw, sink: Sink, log: BinaryIO | None) -> None:
        os.set_blocking(fd, False)
        self._sources.append(_Source(fd, lines, sink, log))

    def update(self) -> None:
        """Tell the selector what to wait for: outputs to write to, and inputs whose sink has room."""
        wanted: dict[int, tuple[int, Callable[[], object]]] = {}
        for sink in self._sinks():
            if sink.size:
                wanted[sink.fd] = (selectors.EVENT_WRITE, sink.write_some)
        for source in self._sources:
            if source.sink.size < FULL_BYTES:
                wanted[source.fd] = (selectors.EVENT_READ, partial(self._read, source))
        for fd in self._registered - set(wanted):
            self._selector.unregister(fd)
        for fd, (events, act) in wanted.items():
            if fd not in self._registered:
                self._selector.register(fd, events, act)
        self._registered = set(wanted)

    def check_sinks(self) -> None:
        """Close the inputs whose sink is gone: ranks are then told by their next write, as without us."""
        for source in list(self._sources):
            if source.sink.problem is not None and source.log is None:
                self._close(source)

    @property
    def has_updates(self) -> bool:
        return any(source.lines.has_update for source in self._sources)

    def show_updates(self) -> None:
        """Put progress bars that have moved into the outputs."""
        for source in self._sources:
            if source.lines.has_update:
                source.sink.put(source.lines.update())

    def drain(self) -> None:
        """Take in what has been written so far, however full the outputs are, and end each stream."""
        for source in list(self._sources):
            while source in self._sources and self._read(source):
                pass
            if source in self._sources:
                self._close(source)

    @property
    def num_waiting_bytes(self) -> int:
        return sum(sink.size for sink in self._sinks())

    def problems(self) -> list[str]:
        """Sentences on outputs and logs that failed, but for a reader that has seen enough."""
        found = []
        for name, sink in (("output", self.stdout), ("error output", self.stderr)):
            if sink.problem is not None and sink.problem.errno != errno.EPIPE:
                found.append(f"the standard {name} failed: {sink.problem.strerror}")
        if self.log_problem is not None:
            found.append(f"the log files are not whole: {self.log_problem.strerror}")
        return list(dict.fromkeys(found))

    def _sinks(self) -> list[Sink]:
        return [self.stdout] if self.is_one_stream else [self.stdout, self.stderr]

    def _read(self, source: _Source) -> bool:
        """True when there may be more to read at once."""
        if source not in self._sources:  # closed a moment ago
            return False
        try:
            data = os.read(source.fd, READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._close(source)
            return False
        self._keep(source, data)
        source.sink.put(source.lines.feed(data))
        return True

    def _keep(self, source: _Source, data: bytes) -> None:
        if source.log is None:
            return
        try:
            while data:  # a disk that is nearly full takes a part, and says so at the next
                data = data[source.log.write(data) :]
        except OSError as problem:
            self.log_problem = problem
            source.log = None

    def _close(self, source: _Source) -> None:
        source.sink.put(source.lines.rest())
        self._sources.remove(source)
        if source.fd in self._registered:
            self._registered.discard(source.fd)
            self._selector.unregister(source.fd)
        os.close(source.fd)


def _same_file(first: int, second: int) -> bool:
    with suppress(OSError):
        return os.path.samestat(os.fstat(first), os.fstat(second))
    return False
