"""Ask the kernel to end this process with its parent, to name it, or to make it adopt orphans.

Used by both sides and by the library that users call: standard library only, Python 3.9.
"""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path
from typing import Optional

# Option numbers of prctl(2), from linux/prctl.h. Python has no function for them.
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36


def set_oom_first() -> bool:
    """Make this process the first that the out-of-memory killer ends; return False if the kernel refuses."""
    try:
        Path("/proc/self/oom_score_adj").write_text("1000")
    except OSError:
        return False
    return True


def end_with_parent(parent_pid: Optional[int] = None) -> None:
    """Have the kernel kill this process when the thread that forked it ends.

    A forked child passes the process id of its parent. If that parent has died already, the child ends now.
    """
    end_with_parent_by(signal.SIGKILL, os.getppid() if parent_pid is None else parent_pid)


def end_with_parent_by(number: int, parent_pid: int) -> None:
    """Have the kernel send this process a signal when its parent ends, so that it can clean up first."""
    _call_prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(number))
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), number)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies, including daemons."""
    _call_prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1))


def set_process_name(name: str) -> None:
    """Set the name that `ps` and `top` show for this thread and those it will start (15 bytes)."""
    _call_prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode("utf-8", "replace")[:15]))


def _call_prctl(option: int, argument: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    zero = ctypes.c_ulong(0)
    if libc.prctl(ctypes.c_int(option), argument, zero, zero, zero) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
