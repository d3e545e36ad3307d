"""A command under a keeper, as its owner controls it: suspend, resume, and end with all its processes."""

import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from corewise.launch.supervision.keeper_process import (
    CommandEnd,
    build_keeper_command,
    format_request,
    parse_command_end,
)
from corewise.measured.worker.descendants import find_descendants, read_parents, send_signal

# The keeper itself gives up after a shorter time.
END_LIMIT_S = 15.0
# A file, or a constant of subprocess.
Stream = IO[bytes] | int


class SupervisedCommand:
    """A command that never outlives its owner; `end` leaves no process behind."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        folder: Path | None = None,
        stdin: Stream = subprocess.DEVNULL,
        stdout: Stream = subprocess.DEVNULL,
        stderr: Stream = subprocess.DEVNULL,
    ) -> None:
        self._end: CommandEnd | None = None
        self._socket, keepers_end = socket.socketpair()
        with keepers_end:
            self._keeper = subprocess.Popen(
                build_keeper_command(keepers_end.fileno()),
                pass_fds=[keepers_end.fileno()],
                cwd=folder,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
        # A keeper that could not start has closed its end.
        with suppress(OSError):
            self._socket.sendall(format_request(command, env))

    @property
    def pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        """Our ends of the command's standard input and output, if both are pipes."""
        assert self._keeper.stdin is not None
        assert self._keeper.stdout is not None
        return self._keeper.stdin, self._keeper.stdout

    @property
    def has_ended(self) -> bool:
        """Whether the command and all processes that it started have ended."""
        return self._keeper.poll() is not None

    def wait(self, limit_s: float | None = None) -> bool:
        """Wait for the command to end; False when the time limit is reached first."""
        with suppress(subprocess.TimeoutExpired):
            self._keeper.wait(timeout=limit_s)
        return self.has_ended

    def read_end(self) -> CommandEnd:
        """Read how the command ended, after it has ended."""
        if self._end is None:
            data = b""
            # A keeper that is killed before it has read its request resets the connection.
            with self._socket, suppress(ConnectionError):
                data = self._socket.recv(1 << 16)
            self._end = parse_command_end(data)
        return self._end

    def list_processes(self, depth: int = 0) -> list[int]:
        """List the command's processes, parents first, without the first `depth` generations."""
        parents = read_parents()
        above = {self._keeper.pid}
        for _ in range(depth):
            above |= {pid for pid, parent in parents.items() if parent in above}
        return [pid for pid in find_descendants(self._keeper.pid, parents) if pid not in above]

    def suspend(self) -> None:
        """Stop the command's processes; the keeper keeps running."""
        if not self.has_ended:
            # Children stop first, so no parent notices that they stop.
            send_signal(reversed(self.list_processes()), signal.SIGSTOP)

    def resume(self) -> None:
        """Continue the command's processes."""
        send_signal(self.list_processes(), signal.SIGCONT)

    def end(self, grace_s: float = 0.0) -> None:
        """End the command and all processes that it started; with a grace period, SIGTERM comes first."""
        if grace_s and not self.has_ended:
            processes = self.list_processes()
            send_signal(processes, signal.SIGTERM)
            # A stopped process handles no signal.
            send_signal(processes, signal.SIGCONT)
            self.wait(grace_s)
        # The keeper sees that no more data can come.
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        if not self.wait(END_LIMIT_S):
            send_signal([*self.list_processes(), self._keeper.pid], signal.SIGKILL)
            self._keeper.wait()
        self.read_end()
