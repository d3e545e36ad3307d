"""The folder of one run's own, named so that what a killed process left can be told from what is in use.

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

PREFIX = "corewise-trial"


def make_trial_folder() -> str:
    """A new folder in the folder for temporary files (TMPDIR), whose name tells this process as its owner."""
    pid = os.getpid()
    return tempfile.mkdtemp(prefix=f"{PREFIX}-{_where()}-{pid}-{_started(pid)}-")


def clear_abandoned(parent: Optional[str] = None) -> int:
    """Removes the folders whose owner ran here and is no more; how many there were."""
    num_cleared = 0
    for folder in Path(parent or tempfile.gettempdir()).glob(f"{PREFIX}-{_where()}-*"):
        words = folder.name[len(PREFIX) + 1 :].split("-")
        if len(words) < 4 or not words[1].isdigit() or words[2] == _started(int(words[1])):
            continue
        with contextlib.suppress(OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            shutil.rmtree(folder, ignore_errors=True)
            num_cleared += 1
    return num_cleared


def _where() -> str:
    """This host and its numbering of processes: elsewhere the same number is another process."""
    try:
        numbering = os.readlink("/proc/self/ns/pid")
    except OSError:
        numbering = ""
    return hashlib.sha256(f"{socket.gethostname()} {numbering}".encode()).hexdigest()[:8]


def _started(pid: int) -> str:
    """When the process began, in ticks since the machine did; `gone` where there is none, or a dead one."""
    try:
        text = Path("/proc", str(pid), "stat").read_text()
    except OSError:
        return "gone"
    fields = text[text.rindex(")") + 2 :].split()
    return "gone" if fields[0] in "ZX" else fields[19]
