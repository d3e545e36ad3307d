"""A command under a keeper, seen by its owner: stopped, continued, ended with all that it has started."""

import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from corewise.launcher.descendants import descendants, read_parents, signal_all
from corewise.launcher.keeper import CommandEnd, keeping, read_end

END_LIMIT_S = 15.0


class KeptCommand:
    """A command that does not outlive us, whatever becomes of us; `end` leaves no process behind."""

    def __init__(
        self, words: Sequence[str], *, folder: Path, env: Mapping[str, str], output: Path, told: Path
    ) -> None:
        self._told = told
        with open(output, "wb") as out:
            self._keeper = subprocess.Popen(
                keeping(list(words), told),
                cwd=folder,
                env=dict(env),
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def has_ended(self) -> bool:
        """Whether the command and all it started are gone."""
        return self._keeper.poll() is not None

    def wait(self, limit_s: float) -> bool:
        """True once it has ended, False when the limit came first."""
        with suppress(subprocess.TimeoutExpired):
            self._keeper.wait(timeout=limit_s)
        return self.has_ended

    def how_it_ended(self) -> CommandEnd:
        """How it did; ask when it has."""
        return read_end(self._told)

    def processes(self, depth: int = 0) -> list[int]:
        """The command's processes, parents first, without those of the first generations."""
        parents = read_parents()
        above = {self._keeper.pid}
        for _ in range(depth):
            above |= {pid for pid, parent in parents.items() if parent in above}
        return [pid for pid in descendants(self._keeper.pid, parents) if pid not in above]

    def stop(self) -> None:
        """Have the kernel stop it; its keeper goes on."""
        if not self.has_ended:
            signal_all(reversed(self.processes()), signal.SIGSTOP)  # children first: no parent sees them stop

    def go_on(self) -> None:
        """Let a stopped one run."""
        signal_all(self.processes(), signal.SIGCONT)

    def end(self) -> None:
        """End it and all that it started."""
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()
        if not self.wait(END_LIMIT_S):
            signal_all([*self.processes(), self._keeper.pid], signal.SIGKILL)
            self._keeper.wait()
