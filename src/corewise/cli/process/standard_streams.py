"""The standard streams of the command line: errors of writing do not become tracebacks."""

import io
import os
import sys
from contextlib import suppress
from typing import Any

from corewise.cli.exit_codes import SOME_FAILED


class StandardStream(io.FileIO):
    """Standard output or standard error, which discards everything after the first error.

    A closed pipe raises BrokenPipeError once: the reader has left, and the command should end. Other errors
    are only kept in `problem`, so a full disk for the output does not stop a measurement.
    """

    def __init__(self, fd: int) -> None:
        super().__init__(fd, "w", closefd=False)
        self.problem, self._is_broken = "", False

    def write(self, data: Any, /) -> int:
        """Write the data, or discard it."""
        if not self._is_broken:
            try:
                return super().write(data)
            except BrokenPipeError:
                self._is_broken = True
                raise
            except OSError as problem:
                self._is_broken, self.problem = True, problem.strerror or str(problem)
        return memoryview(data).nbytes


def open_standard_streams() -> StandardStream:
    """Replace standard output and error by guarded streams, and return the former."""
    open_standard_descriptors()
    stdout, stderr = StandardStream(1), StandardStream(2)
    sys.stdout = _open_text(stdout, sys.stdout)
    sys.stderr = _open_text(stderr, sys.stderr)
    return stdout


def open_standard_descriptors() -> None:
    """Open 0, 1 and 2 if they are closed; the next file, pipe or socket would take their numbers."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # Commands that we start inherit these descriptors.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


def close_output(stdout: StandardStream, code: int) -> int:
    """Write what is buffered; return the exit code, which is not 0 if the output is incomplete."""
    with suppress(BrokenPipeError):
        sys.stdout.flush()
    if not stdout.problem:
        return code
    print(f"corewise: standard output is incomplete: {stdout.problem}; redirect it elsewhere", file=sys.stderr)
    return code or SOME_FAILED


def _open_text(raw: StandardStream, replaced: Any) -> io.TextIOWrapper:
    """Open a text stream that behaves as the replaced one, which is None if its descriptor was closed."""
    buffered = io.BufferedWriter(raw)
    if replaced is None:
        return io.TextIOWrapper(buffered, encoding="utf-8")
    return io.TextIOWrapper(
        buffered,
        encoding=replaced.encoding,
        errors=replaced.errors,
        line_buffering=replaced.line_buffering,
        write_through=replaced.write_through,
    )
