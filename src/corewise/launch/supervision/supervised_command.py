"""A command under a keeper, as its owner controls it: suspend, resume, and end with all its processes."""

import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from corewise.launch.supervision.descendants import find_descendants, read_parents, send_signal
from corewise.launch.supervision.keeper_process import CommandEnd, build_keeper_command, read_command_end

END_LIMIT_S = 15.0


class SupervisedCommand:
    """A command that never outlives its owner; `end` leaves no process behind."""

    def __init__(
        self, command: Sequence[str], *, folder: Path, env: Mapping[str, str], output: Path, end_file: Path
    ) -> None:
        self._end_file = end_file
        with open(output, "wb") as out:
            self._keeper = subprocess.Popen(
                build_keeper_command(list(command), end_file),
                cwd=folder,
                env=dict(env),
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def has_ended(self) -> bool:
        """Whether the command and all processes that it started have ended."""
        return self._keeper.poll() is not None

    def wait(self, limit_s: float) -> bool:
        """Wait for the command to end; False when the time limit is reached first."""
        with suppress(subprocess.TimeoutExpired):
            self._keeper.wait(timeout=limit_s)
        return self.has_ended

    def read_end(self) -> CommandEnd:
        """Read how the command ended, after it has ended."""
        return read_command_end(self._end_file)

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

    def end(self) -> None:
        """End the command and all processes that it started."""
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()
        if not self.wait(END_LIMIT_S):
            send_signal([*self.list_processes(), self._keeper.pid], signal.SIGKILL)
            self._keeper.wait()
