"""Append sealed lines atomically to a file that only this process writes."""

import errno
import os
import re
import secrets
import socket
import time
from pathlib import Path

from corewise.errors import UserError

_FULL = {errno.ENOSPC, errno.EDQUOT}
_NAME = re.compile(r"[A-Za-z0-9_.-]+-[0-9]+-[0-9]{8}T[0-9]{6}Z-[0-9a-f]{8}\.jsonl")


class StoreFull(UserError):
    """The disk of a store is full; records written before are safe."""


class RecordWriter:
    """The only writer of a record file."""

    def __init__(self, folder: Path) -> None:
        self.pid = os.getpid()
        self.path = folder / build_file_name()
        folder.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o666)
        _sync_folder(folder)
        self._torn = False

    def append(self, line: bytes) -> None:
        """Write a line that ends in a newline to disk; an error leaves the file unchanged."""
        start = os.fstat(self._fd).st_size
        if self._torn:
            line = b"\n" + line
        try:
            _write_all(self._fd, line)
            os.fsync(self._fd)
        except OSError:
            self._cut_back_to(start)
            raise
        self._torn = False

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def _cut_back_to(self, size: int) -> None:
        try:
            os.ftruncate(self._fd, size)
            os.fsync(self._fd)
        except OSError:
            # The partial line stays. The next record starts on a new line, and readers report the damage.
            self._torn = os.fstat(self._fd).st_size > size


def build_file_name() -> str:
    """Build a unique name for a record file."""
    host = re.sub(r"[^A-Za-z0-9_.-]", "_", socket.gethostname()) or "host"
    moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    return f"{host}-{os.getpid()}-{moment}-{secrets.token_hex(4)}.jsonl"


def is_record_file(name: str) -> bool:
    """Return True for names from `build_file_name`."""
    return _NAME.fullmatch(name) is not None


def is_full(error: OSError) -> bool:
    """Return True if the disk or the user's quota is full."""
    return error.errno in _FULL


def _write_all(fd: int, data: bytes) -> None:
    """Write all data; a short write is continued, so that the kernel reports the error."""
    while data:
        data = data[os.write(fd, data) :]


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    except OSError:
        # Some network file systems cannot sync folders. The file itself is still synced.
        pass
    finally:
        os.close(fd)
