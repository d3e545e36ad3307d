"""The keeper of a command: a small process between the command and its owner that cleans up after it.

The owner and the keeper share a socket. The owner sends the command. When the owner closes its end or dies,
the keeper kills all processes that the command has started. The keeper adopts orphans, so this includes
daemons. The keeper is never stopped, so this includes stopped processes. When the command has ended, the
keeper sends how.
"""

import json
import os
import select
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from corewise import process_control
from corewise.launch.supervision.front_process import set_process_title
from corewise.measured.worker.descendants import END_LIMIT_S, collect_ended_children, end_leftovers, kill_descendants

END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Shells return this exit code for a command that cannot start.
NOT_STARTED = 127


@dataclass(frozen=True)
class CommandEnd:
    """How a command ended.

    Attributes:
        code: The exit code; negative for the signal that killed the command.
        seconds: The time from its start to its end.
        problem: Why the command could not start, empty when it did.
        leftovers: The short names of processes that the command left behind when it ended by itself.
    """

    code: int
    seconds: float = 0.0
    problem: str = ""
    leftovers: Sequence[str] = ()


def build_keeper_command(socket_fd: int) -> list[str]:
    """Build the command that starts a keeper, which inherits its end of the socket."""
    root = Path(__file__).parents[3]
    code = f"import sys; sys.path.insert(0, {str(root)!r}); from {__name__} import main; main()"
    return [sys.executable, "-I", "-S", "-c", code, str(socket_fd)]


def format_request(command: Sequence[str], env: Mapping[str, str]) -> bytes:
    """Format what the owner sends; the environment is that of the command, not of the keeper."""
    return json.dumps({"command": list(command), "env": dict(env)}).encode() + b"\n"


def parse_command_end(data: bytes) -> CommandEnd:
    """Parse what the keeper has sent; a killed keeper sends nothing."""
    try:
        return CommandEnd(**json.loads(data))
    except ValueError:
        return CommandEnd(-signal.SIGKILL)


def main() -> None:
    """Run a keeper; the argument is the descriptor of its end of the socket."""
    socket_fd = int(sys.argv[1])
    os.set_inheritable(socket_fd, False)
    process_control.adopt_orphans()
    process_control.set_process_name("cw-keeper")
    set_process_title(f"cw-keeper: for process {os.getppid()}")
    keeper = _Keeper(socket_fd)
    request = _read_line(socket_fd)
    # Without a request, the owner has died.
    if request:
        end = keeper.run(**json.loads(request))
        with suppress(OSError):
            os.write(socket_fd, json.dumps(asdict(end)).encode())
    kill_descendants(END_LIMIT_S)


def _read_line(fd: int) -> bytes:
    data = b""
    while not data.endswith(b"\n"):
        part = os.read(fd, 1 << 16)
        if not part:
            return b""
        data += part
    return data


class _Keeper:
    def __init__(self, socket_fd: int) -> None:
        self.socket_fd = socket_fd
        self.end_requested = False
        self._wake, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        for number in END_SIGNALS:
            # Signals that nohup ignores stay ignored for the command.
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._handle_signal)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def run(self, command: list[str], env: dict[str, str]) -> CommandEnd:
        """Run the command, end the processes that it leaves behind, and return how it ended."""
        began = time.monotonic()
        child, problem = _start_command(command, env)
        _close_standard_streams()
        status: int | None = None
        while status is None and not self.end_requested:
            status = next((status for pid, status in collect_ended_children() if pid == child), None)
            if status is None:
                self._sleep()
        seconds = time.monotonic() - began
        if status is None:
            return CommandEnd(-signal.SIGKILL, seconds, problem)
        return CommandEnd(os.waitstatus_to_exitcode(status), seconds, problem, end_leftovers())

    def _handle_signal(self, *_: object) -> None:
        self.end_requested = True

    def _sleep(self) -> None:
        """Sleep until a child ends, a signal arrives, or the owner closes the socket."""
        ready, _, _ = select.select([self.socket_fd, self._wake], [], [])
        if self._wake in ready:
            os.read(self._wake, 512)
        if self.socket_fd in ready and not os.read(self.socket_fd, 512):
            self.end_requested = True


def _start_command(command: list[str], env: dict[str, str]) -> tuple[int, str]:
    """Start the command; return its pid and why it could not start, empty when it did."""
    read_end, write_end = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        _execute_command(command, env, parent, write_end)
    os.close(write_end)
    with open(read_end, "rb") as file:
        return child, file.read().decode("utf-8", "replace")


def _execute_command(command: list[str], env: dict[str, str], parent: int, write_end: int) -> NoReturn:
    try:
        process_control.end_with_parent(parent)
        os.setsid()
        # Python ignores these signals; programs expect the default.
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.execvpe(command[0], command, env)
    except OSError as problem:
        os.write(write_end, (problem.strerror or str(problem)).encode())
    finally:
        os._exit(NOT_STARTED)


def _close_standard_streams() -> None:
    """Close the command's input and output here, so that their other ends notice when the command ends."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1):
        os.dup2(null, number)
    os.close(null)
