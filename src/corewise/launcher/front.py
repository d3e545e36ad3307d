"""The process the user started: it passes signals on to the supervisor, its child, and outlives it.

Two processes guard a launch. The supervisor starts the ranks and sits in a session of its own; when the
front dies, it sees the end of their pipe and kills everything. When the supervisor dies, its ranks die with
it and what they had started becomes the front's, which kills it. Both adopt orphans, so that nothing escapes
by leaving its session.
"""

import ctypes
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from corewise.launcher.descendants import children_so_far, end_descendants, reaped
from corewise.machine import pinning
from corewise.worker.signals import signal_name

FORWARDED = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2),
    signal.SIGWINCH,
)
BY_KERNEL = 0x80  # si_code of what a terminal sends to all that runs on it
END_LIMIT_S = 5.0
INTERNAL_ERROR = 70  # sysexits.h
_ARG_START = 45  # field 48 of /proc/self/stat, counted from the state


@dataclass(frozen=True)
class Guard:
    """What the supervisor gets from the front."""

    signals_fd: int  # two bytes a signal: its number, and 1 when the terminal sent it; ends with the front
    watched: frozenset[signal.Signals]  # blocked when the supervisor starts
    mask: frozenset[int]  # the signals that were blocked when the user started us


def run_guarded(supervise: Callable[[Guard], int], *, on_terminal: bool) -> int:
    """The exit code of `supervise`, run in a child that is told which signals we were sent.

    On a terminal that the rank shares, stopping (Ctrl-Z) is left to the kernel; elsewhere it is passed on.
    """
    not_ours = children_so_far()
    pinning.adopt_orphans()
    passed_on = FORWARDED if on_terminal else (*FORWARDED, signal.SIGTSTP)
    watched = {number for number in passed_on if signal.getsignal(number) != signal.SIG_IGN}  # nohup, cmd &
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, watched | {signal.SIGCHLD})
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write_end)
        _be_supervisor(supervise, Guard(read_end, frozenset(watched), frozenset(mask)))
    os.close(read_end)
    status = _pass_signals_on(child, write_end, watched)
    if os.WIFSIGNALED(status):
        name = signal_name(os.WTERMSIG(status))
        say(f"the supervisor was killed by {name}; ending its ranks")
    if not end_descendants(END_LIMIT_S, spared=not_ours):
        say("some processes would not die; see `ps`")
    return exit_code(status)


def say(text: str) -> None:
    """Write a message to the error output, whatever became of it."""
    with suppress(OSError):
        os.write(2, f"corewise: {text}\n".encode("utf-8", "replace"))


def exit_code(status: int) -> int:
    """A wait status as shells say it: 128 + n for a signal."""
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _be_supervisor(supervise: Callable[[Guard], int], guard: Guard) -> None:
    code = INTERNAL_ERROR
    try:
        pinning.set_process_name("cw-launch")
        retitle(f"cw-launch: supervises for process {os.getppid()}")
        pinning.adopt_orphans()
        code = supervise(guard)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)  # our buffers are the front's, which writes them itself


def retitle(title: str) -> None:
    """Show `ps` another command line than the front's: `pkill -f train.py` shall not end both guards."""
    with suppress(OSError, IndexError, ValueError):
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        start, end = int(fields[_ARG_START]), int(fields[_ARG_START + 1])
        if 0 < start < end:
            size = end - start
            ctypes.memmove(start, title.encode()[: size - 1].ljust(size, b"\0"), size)


def _pass_signals_on(child: int, write_end: int, watched: set[signal.Signals]) -> int:
    """The child's wait status, once it has ended; sleeps in the kernel until then."""
    while True:
        told = signal.sigwaitinfo(watched | {signal.SIGCHLD})
        if told.si_signo == signal.SIGCHLD:
            status = _reaped(child)
            if status is not None:
                return status
            continue
        with suppress(BrokenPipeError):
            os.write(write_end, bytes([told.si_signo, told.si_code == BY_KERNEL]))
            if told.si_signo == signal.SIGTSTP:
                os.kill(os.getpid(), signal.SIGSTOP)
                os.write(write_end, bytes([signal.SIGCONT, 0]))


def _reaped(child: int) -> int | None:
    """The child's status if it is among those that have ended; the others were orphans."""
    return next((status for pid, status in reaped() if pid == child), None)


def open_standard_descriptors() -> None:
    """Have something at 0, 1 and 2: closed ones would be taken by the next file, pipe or socket."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the command's, too
