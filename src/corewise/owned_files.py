"""Names of temporary files and folders that show whether their owner lives, so the next process can clean up.

Used by both sides and by the library that users call: standard library only, Python 3.9.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import socket
import tempfile
from pathlib import Path
from typing import Optional

# Folders below TMPDIR start with this, then with their purpose.
PREFIX = "corewise"


def build_owned_prefix(name: str) -> str:
    """Build the prefix of a file or folder that names this process as the owner, for functions of tempfile."""
    pid = os.getpid()
    return f"{name}-{_hash_host()}-{pid}-{_read_start_ticks(pid)}-"


def remove_abandoned(name: str = PREFIX, parent: Optional[Path] = None) -> int:
    """Remove the files and folders whose owners on this host have ended; return their number."""
    num_removed = 0
    for path in (parent or Path(tempfile.gettempdir())).glob(f"{name}-*-*-*-*"):
        _, host, pid, ticks, _ = path.name.rsplit("-", 4)
        if host != _hash_host() or not pid.isdigit() or ticks == _read_start_ticks(int(pid)):
            continue
        with contextlib.suppress(OSError):
            if path.is_symlink() or path.stat().st_uid != os.getuid():
                continue
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()
            num_removed += 1
    return num_removed


def _hash_host() -> str:
    """Hash the host and its process namespace, outside of which the same process id means another process."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    return hashlib.sha256(f"{socket.gethostname()} {namespace}".encode()).hexdigest()[:8]


def _read_start_ticks(pid: int) -> str:
    """Read the start time of a process in ticks since boot; `gone` if it has ended."""
    try:
        text = Path("/proc", str(pid), "stat").read_text()
    except OSError:
        return "gone"
    fields = text[text.rindex(")") + 2 :].split()
    return "gone" if fields[0] in "ZX" else fields[19]
