"""The temporary folder of one run. Its name shows whether its owner is still alive.

Measured side: standard library only, Python 3.9.
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

from corewise.trusted_paths import create_private_folder

PREFIX = "corewise-trial"


def create_trial_folder() -> str:
    """Create a private folder below TMPDIR whose name identifies this process as its owner."""
    pid = os.getpid()
    return create_private_folder(f"{PREFIX}-{_hash_host()}-{pid}-{_read_start_ticks(pid)}-")


def clear_abandoned(parent: Optional[str] = None) -> int:
    """Remove the folders of owners on this host that have ended; return their number."""
    num_cleared = 0
    for folder in Path(parent or tempfile.gettempdir()).glob(f"{PREFIX}-{_hash_host()}-*"):
        parts = folder.name[len(PREFIX) + 1 :].split("-")
        if len(parts) < 4 or not parts[1].isdigit() or parts[2] == _read_start_ticks(int(parts[1])):
            continue
        with contextlib.suppress(OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            shutil.rmtree(folder, ignore_errors=True)
            num_cleared += 1
    return num_cleared


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
