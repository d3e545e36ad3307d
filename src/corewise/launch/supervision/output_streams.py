"""Relays the output of ranks line by line: prefixes it, logs it, and writes it without blocking."""

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

# A longer line is cut.
MAX_LINE_BYTES = 1 << 20
READ_BYTES = 1 << 16
# A pipe that is ready accepts this many bytes without blocking.
WRITE_BYTES = select.PIPE_BUF
# When a sink holds more than this, ranks block in their write.
FULL_BYTES = 1 << 20
# A progress bar, which never ends its line, is shown as a line this often.
UPDATE_EVERY_S = 1.0


class LineAssembler:
    """Assembles bytes into whole lines, each with the prefix.

    With a prefix, a line is what a terminal would show in the end (the part after the last carriage return),
    and a line that never ends is cut. Without a prefix, every byte is forwarded.
    """

    def __init__(self, prefix: bytes) -> None:
        self.prefix = prefix
        self._partial = bytearray()
        # The progress bar as it was last shown.
        self._shown = b""
        self._is_update = False

    def push(self, data: bytes) -> bytes:
        """Add bytes and return the lines that they complete."""
        self._partial += data
        if b"\n" not in data:
            return self._cut_line()
        *lines, rest = bytes(self._partial).split(b"\n")
        self._partial = bytearray(rest)
        self._is_update = False
        return b"".join(map(self._format_line, lines)) + self._cut_line()

    @property
    def has_update(self) -> bool:
        """Whether a progress bar waits to be shown."""
        return self._is_update and self._partial != self._shown

    def render_update(self) -> bytes:
        """Return the current progress bar as a line."""
        self._shown = bytes(self._partial)
        return self._format_line(self._shown)

    def finish(self) -> bytes:
        """Return the unfinished last line, at the end of the stream."""
        rest = bytes(self._partial)
        self._partial.clear()
        return self._format_line(rest) if rest and not (self._is_update and rest == self._shown) else b""

    def _format_line(self, line: bytes) -> bytes:
        if not self.prefix:
            return line + b"\n"
        return self.prefix + line.removesuffix(b"\r").rpartition(b"\r")[2] + b"\n"

    def _cut_line(self) -> bytes:
        """Return an unfinished line that is too long; drop earlier states of a progress bar."""
        bar_began = self._partial.rfind(b"\r", 0, max(0, len(self._partial) - 1))
        if self.prefix and bar_began >= 0:
            del self._partial[: bar_began + 1]
            self._is_update = True
        if len(self._partial) <= MAX_LINE_BYTES:
            return b""
        cut = bytes(self._partial)
        self._partial.clear()
        return self._format_line(cut) if self.prefix else cut


class PassThrough:
    """Forwards bytes unchanged, for a single process."""

    has_update = False

    def push(self, data: bytes) -> bytes:
        return data

    def render_update(self) -> bytes:
        return b""

    def finish(self) -> bytes:
        return b""


class OutputSink:
    """One of our outputs, with the data that still waits to be written to it."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.size = 0
        # Set when nothing more can be written.
        self.problem: OSError | None = None
        self._waiting: deque[bytes] = deque()

    def put(self, data: bytes) -> None:
        if data and self.problem is None:
            self._waiting.append(data)
            self.size += len(data)

    def write_available(self) -> None:
        """Write as much as possible without blocking."""
        data = self._take_chunk()
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

    def _take_chunk(self) -> bytes:
        """Take from the queue at most what a pipe accepts in one write."""
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
    lines: LineAssembler | PassThrough
    sink: OutputSink
    log: BinaryIO | None


class OutputRelay:
    """Reads the outputs of every rank and writes them to ours; only the selector waits."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._sources: list[_Source] = []
        self._registered: set[int] = set()
        self.stdout = OutputSink(1)
        self.stderr = self.stdout if _is_same_file(1, 2) else OutputSink(2)
        self.log_problem: OSError | None = None

    @property
    def is_one_stream(self) -> bool:
        """Whether standard output and error are the same file, so a rank needs one pipe for both."""
        return self.stdout is self.stderr

    def add(self, fd: int, lines: LineAssembler | PassThrough, sink: OutputSink, log: BinaryIO | None) -> None:
        os.set_blocking(fd, False)
        self._sources.append(_Source(fd, lines, sink, log))

    def update_selector(self) -> None:
        """Register what to wait for: outputs with waiting data, and inputs whose sink has room."""
        wanted: dict[int, tuple[int, Callable[[], object]]] = {}
        for sink in self._list_sinks():
            if sink.size:
                wanted[sink.fd] = (selectors.EVENT_WRITE, sink.write_available)
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
        """Close the inputs whose sink has failed, so the next write of a rank fails, as without us."""
        for source in list(self._sources):
            if source.sink.problem is not None and source.log is None:
                self._close(source)

    @property
    def has_updates(self) -> bool:
        return any(source.lines.has_update for source in self._sources)

    def show_updates(self) -> None:
        """Write the progress bars that have changed to the outputs."""
        for source in self._sources:
            if source.lines.has_update:
                source.sink.put(source.lines.render_update())

    def read_remaining(self) -> None:
        """Read all that ranks have written, however full the sinks are, and end each stream."""
        for source in list(self._sources):
            while source in self._sources and self._read(source):
                pass
            if source in self._sources:
                self._close(source)

    @property
    def num_waiting_bytes(self) -> int:
        return sum(sink.size for sink in self._list_sinks())

    def list_problems(self) -> list[str]:
        """Describe the outputs and logs that failed, except for a reader that closed its pipe."""
        problems = []
        for name, sink in (("output", self.stdout), ("error", self.stderr)):
            if sink.problem is not None and sink.problem.errno != errno.EPIPE:
                problems.append(f"writing to standard {name} failed: {sink.problem.strerror}")
        if self.log_problem is not None:
            problems.append(f"the log files are incomplete: {self.log_problem.strerror}")
        return list(dict.fromkeys(problems))

    def _list_sinks(self) -> list[OutputSink]:
        return [self.stdout] if self.is_one_stream else [self.stdout, self.stderr]

    def _read(self, source: _Source) -> bool:
        """Read once; True when there may be more to read."""
        # The source may have been closed by an earlier event.
        if source not in self._sources:
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
        self._write_log(source, data)
        source.sink.put(source.lines.push(data))
        return True

    def _write_log(self, source: _Source, data: bytes) -> None:
        if source.log is None:
            return
        try:
            # A disk that is nearly full accepts a part of the data and fails on the next write.
            while data:
                data = data[source.log.write(data) :]
        except OSError as problem:
            self.log_problem = problem
            source.log = None

    def _close(self, source: _Source) -> None:
        source.sink.put(source.lines.finish())
        self._sources.remove(source)
        if source.fd in self._registered:
            self._registered.discard(source.fd)
            self._selector.unregister(source.fd)
        os.close(source.fd)


def _is_same_file(first: int, second: int) -> bool:
    with suppress(OSError):
        return os.path.samestat(os.fstat(first), os.fstat(second))
    return False
