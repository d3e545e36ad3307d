"""The control pipe between processes: JSON lines over a pair of file descriptors.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any, Optional

READ_BYTES = 65536


class Channel:
    """A connection to one peer; `closed` is True once the peer has ended."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self.read_fd = read_fd
        self.write_fd = write_fd
        self.closed = False
        self._buffer = b""
        # Messages of a read that `receive` has not returned yet.
        self._pending: list[dict[str, Any]] = []
        self._open_fds = {read_fd, write_fd}

    def send(self, **message: Any) -> bool:
        """Send a message; return False if the peer has ended."""
        data = (json.dumps(message, separators=(",", ":")) + "\n").encode()
        try:
            while data:
                data = data[os.write(self.write_fd, data) :]
        except OSError:
            self.closed = True
            return False
        return True

    def take_pending(self) -> list[dict[str, Any]]:
        """Return messages that were read together with the last one that `receive` returned.

        Call it before waiting for the descriptor, which does not become readable for them.
        """
        pending, self._pending = self._pending, []
        return pending

    def receive_available(self) -> list[dict[str, Any]]:
        """Return the messages of one read; call it when the descriptor is readable."""
        pending = self.take_pending()
        try:
            data = os.read(self.read_fd, READ_BYTES)
        except OSError:
            data = b""
        if not data:
            self.closed = True
            return pending
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        return [*pending, *(json.loads(line) for line in lines if line)]

    def receive(self) -> Optional[dict[str, Any]]:
        """Wait for the next message; return None if the peer has ended."""
        while not self._pending:
            if self.closed:
                return None
            self._pending = self.receive_available()
        return self._pending.pop(0)

    def stop_sending(self) -> None:
        """Close our sending end, so that the peer sees that no more comes; receiving is still possible."""
        if self.write_fd in self._open_fds:
            self._open_fds.remove(self.write_fd)
            os.close(self.write_fd)

    def close(self) -> None:
        # A second close must not hit a descriptor that has the same number by now.
        while self._open_fds:
            with contextlib.suppress(OSError):
                os.close(self._open_fds.pop())
        self.closed = True
