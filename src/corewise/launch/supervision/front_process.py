"""The process that the user started: it forwards signals to its child, the supervisor, and outlives it.

Two processes guard a launch. The supervisor starts the ranks and runs in a separate session. When the front
dies, the supervisor sees the end of their pipe and kills everything. When the supervisor dies, its ranks die
too; the front adopts the processes that they started and kills them. Both adopt orphans, so no process
escapes by leaving its session.
"""

import ctypes
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from corewise import process_control
from corewise.measured.worker.descendants import END_LIMIT_S, collect_ended_children, find_children, kill_descendants
from corewise.measured.worker.signal_names import name_signal

FORWARDED = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2),
    signal.SIGWINCH,
)
# The si_code of signals that a terminal sends to its foreground processes.
BY_KERNEL = 0x80
# EX_SOFTWARE in sysexits.h.
INTERNAL_ERROR = 70
# The index of field 48 of /proc/self/stat, counted from the state field.
_ARG_START = 45


@dataclass(frozen=True)
class SignalSetup:
    """The signal state that the supervisor gets from the front.

    Attributes:
        signals_fd: A pipe with two bytes per signal: its number, and 1 when the terminal sent it.
            It closes when the front ends.
        watched: Signals that are blocked when the supervisor starts.
        mask: Signals that were blocked when the user started us.
    """

    signals_fd: int
    watched: frozenset[signal.Signals]
    mask: frozenset[int]


def run_guarded(supervise: Callable[[SignalSetup], int], *, on_terminal: bool) -> int:
    """Run `supervise` in a child, forward our signals to it, and return its exit code.

    On a terminal shared with the rank, the kernel handles stopping (Ctrl-Z); elsewhere we forward it.
    """
    inherited = find_children()
    process_control.adopt_orphans()
    forwarded = FORWARDED if on_terminal else (*FORWARDED, signal.SIGTSTP)
    # Signals that nohup or a background shell job ignore stay ignored.
    watched = {number for number in forwarded if signal.getsignal(number) != signal.SIG_IGN}
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, watched | {signal.SIGCHLD})
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write_end)
        _run_supervisor(supervise, SignalSetup(read_end, frozenset(watched), frozenset(mask)))
    os.close(read_end)
    status = _forward_signals(child, write_end, watched)
    if os.WIFSIGNALED(status):
        name = name_signal(os.WTERMSIG(status))
        print_message(f"the supervisor was killed by {name}; killing its ranks")
    if not kill_descendants(END_LIMIT_S, spared=inherited):
        print_message("some processes could not be killed; look for them with `ps`")
    return compute_exit_code(status)


def print_message(text: str) -> None:
    """Write a message to standard error; ignore a closed one."""
    with suppress(OSError):
        os.write(2, f"corewise: {text}\n".encode("utf-8", "replace"))


def compute_exit_code(status: int) -> int:
    """Convert a wait status to an exit code as shells do: 128 + n for signal n."""
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _run_supervisor(supervise: Callable[[SignalSetup], int], guard: SignalSetup) -> None:
    code = INTERNAL_ERROR
    try:
        process_control.set_process_name("cw-launch")
        set_process_title(f"cw-launch: supervises for process {os.getppid()}")
        process_control.adopt_orphans()
        code = supervise(guard)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        # Skip flushing: the front writes the buffers that we inherited.
        os._exit(code)


def set_process_title(title: str) -> None:
    """Change the command line that `ps` shows, so `pkill -f train.py` does not kill both guards."""
    with suppress(OSError, IndexError, ValueError):
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        start, end = int(fields[_ARG_START]), int(fields[_ARG_START + 1])
        if 0 < start < end:
            size = end - start
            ctypes.memmove(start, title.encode()[: size - 1].ljust(size, b"\0"), size)


def _forward_signals(child: int, write_end: int, watched: set[signal.Signals]) -> int:
    """Forward signals until the child ends, and return its wait status; sleeps in the kernel meanwhile."""
    while True:
        received = signal.sigwaitinfo(watched | {signal.SIGCHLD})
        if received.si_signo == signal.SIGCHLD:
            status = _find_child_status(child)
            if status is not None:
                return status
            continue
        with suppress(BrokenPipeError):
            os.write(write_end, bytes([received.si_signo, received.si_code == BY_KERNEL]))
            if received.si_signo == signal.SIGTSTP:
                os.kill(os.getpid(), signal.SIGSTOP)
                os.write(write_end, bytes([signal.SIGCONT, 0]))


def _find_child_status(child: int) -> int | None:
    """Return the child's wait status if it has ended; other ended processes were orphans."""
    return next((status for pid, status in collect_ended_children() if pid == child), None)
