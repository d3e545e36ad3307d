"""Appends sealed lines to a file of this process's own, whole or not at all."""

import errno
import os
import re
import secrets
import socket
import time
from pathlib import Path

from corewise.spec.errors import UserError

_FULL = {errno.ENOSPC, errno.EDQUOT}
_NAME = re.compile(r"[A-Za-z0-9_.-]+-[0-9]+-[0-9]{8}T[0-9]{6}Z-[0-9a-f]{8}\.jsonl")


class StoreFull(UserError):
    """The disk under a store has no room for one more record; what was written before is safe."""


class RecordWriter:
    """The one writer of one record file."""

    def __init__(self, folder: Path) -> None:
        self.pid = os.getpid()
        self.path = folder / file_name()
        folder.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(
            self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o666
        )
        _sync_folder(folder)
        self._torn = False

    def append(self, line: bytes) -> None:
        """Put a line that ends in a newline on disk; after an error the file is as it was before."""
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
            # The half line stays: the next one starts on a line of its own and readers name the damage.
            self._torn = os.fstat(self._fd).st_size > size


def file_name() -> str:
    """A name for a record file that no other writer has or will have."""
    host = re.sub(r"[^A-Za-z0-9_.-]", "_", socket.gethostname()) or "host"
    moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    return f"{host}-{os.getpid()}-{moment}-{secrets.token_hex(4)}.jsonl"


def is_record_file(name: str) -> bool:
    """True for names that `file_name` gives."""
    return _NAME.fullmatch(name) is not None


def is_full(error: OSError) -> bool:
    """True when the error says that the disk or the user's share of it is used up."""
    return error.errno in _FULL


def _write_all(fd: int, data: bytes) -> None:
    """One write as a rule; what a short write left is tried again, so that the kernel says what is wrong."""
    while data:
        data = data[os.write(fd, data) :]


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    except OSError:  # some network file systems cannot; the file itself is still synced
        pass
    finally:
        os.close(fd)
