"""The keeper of a command: a small process between the command and its owner that cleans up after it.

The owner holds the other end of the keeper's standard input. When the owner closes it or dies, the keeper
kills all processes that the command has started. The keeper adopts orphans, so this includes daemons. The
keeper is never stopped, so this includes stopped processes. It writes to a file how the command ended.
"""

import json
import os
import select
import signal
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from corewise import process_control
from corewise.launch.supervision.descendants import collect_ended_children, has_children, kill_descendants
from corewise.launch.supervision.front_process import END_LIMIT_S, set_process_title

END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Shells return this exit code for a command that cannot start.
NOT_STARTED = 127
# Helper processes get this time to end after the command has ended.
PATIENCE_S = 0.2


@dataclass(frozen=True)
class CommandEnd:
    """How a command ended.

    Attributes:
        code: The exit code; negative for the signal that killed the command.
        seconds: The time from its start to its end.
        problem: Why the command could not start, empty when it did.
    """

    code: int
    seconds: float = 0.0
    problem: str = ""


def build_keeper_command(command: list[str], end_file: Path) -> list[str]:
    """Build the command that starts `command` under a keeper, which writes its end to `end_file`."""
    root = Path(__file__).parents[3]
    code = f"import sys; sys.path.insert(0, {str(root)!r}); from {__name__} import main; main()"
    return [sys.executable, "-I", "-S", "-c", code, str(end_file), *command]


def read_command_end(end_file: Path) -> CommandEnd:
    """Read how the command ended after its keeper has ended; a killed keeper leaves no file."""
    try:
        return CommandEnd(**json.loads(end_file.read_text()))
    except (OSError, ValueError):
        return CommandEnd(-signal.SIGKILL)


def main() -> None:
    """Run a keeper; the arguments are the file for the command's end and the command."""
    end_file, command = Path(sys.argv[1]), sys.argv[2:]
    process_control.adopt_orphans()
    process_control.set_process_name("cw-keeper")
    set_process_title(f"cw-keeper: for process {os.getppid()}")
    end = _Keeper().run(command)
    with suppress(OSError):
        end_file.write_text(json.dumps(asdict(end)))
    kill_descendants(END_LIMIT_S)


class _Keeper:
    def __init__(self) -> None:
        self.end_requested = False
        self._wake, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        for number in END_SIGNALS:
            # Signals that nohup ignores stay ignored for the command.
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._handle_signal)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def run(self, command: list[str]) -> CommandEnd:
        """Run the command, wait briefly for processes that it left behind, and return how it ended."""
        began = time.monotonic()
        child, problem = _start_command(command)
        status: int | None = None
        while status is None and not self.end_requested:
            status = next((status for pid, status in collect_ended_children() if pid == child), None)
            if status is None:
                self._sleep(None)
        seconds = time.monotonic() - began
        until = time.monotonic() + PATIENCE_S
        while not self.end_requested and has_children() and time.monotonic() < until:
            self._sleep(until - time.monotonic())
            for _ in collect_ended_children():
                pass
        code = -signal.SIGKILL if status is None else os.waitstatus_to_exitcode(status)
        return CommandEnd(code, seconds, problem)

    def _handle_signal(self, *_: object) -> None:
        self.end_requested = True

    def _sleep(self, limit_s: float | None) -> None:
        """Sleep until a child ends, a signal arrives, the owner closes the pipe, or time is up."""
        ready, _, _ = select.select([0, self._wake], [], [], None if limit_s is None else max(0.0, limit_s))
        if self._wake in ready:
            os.read(self._wake, 512)
        if 0 in ready and not os.read(0, 512):
            self.end_requested = True


def _start_command(command: list[str]) -> tuple[int, str]:
    """Start the command; return its pid and why it could not start, empty when it did."""
    read_end, write_end = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        _execute_command(command, parent, write_end)
    os.close(write_end)
    with open(read_end, "rb") as file:
        return child, file.read().decode("utf-8", "replace")


def _execute_command(command: list[str], parent: int, write_end: int) -> NoReturn:
    try:
        process_control.end_with_parent(parent)
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        # Python ignores these signals; programs expect the default.
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.execvp(command[0], command)
    except OSError as problem:
        os.write(write_end, (problem.strerror or str(problem)).encode())
    finally:
        os._exit(NOT_STARTED)
