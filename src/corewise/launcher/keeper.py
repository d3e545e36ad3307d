"""The keeper of a command: a small process between it and its owner that leaves nothing of it behind.

The owner holds the other end of the keeper's standard input: when the owner closes it, or dies in whatever
way, the keeper kills all that the command has started. It has adopted orphans, so daemons are among them, and
it is never stopped, so stopped ones die too. How the command ended is in a file once the keeper has.
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

from corewise.launcher.descendants import end_descendants, has_children, reaped
from corewise.launcher.front import END_LIMIT_S, retitle
from corewise.machine import pinning

ASKED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
NOT_STARTED = 127  # as shells say it
PATIENCE_S = 0.2  # for helpers that end by themselves once the command has


@dataclass(frozen=True)
class CommandEnd:
    """How a command ended."""

    code: int  # negative: the signal that killed it
    seconds: float = 0.0  # from its start to its end
    problem: str = ""  # why it could not start


def keeping(words: list[str], told: Path) -> list[str]:
    """The words that start a command under a keeper, which tells a file how it ended."""
    root = Path(__file__).parents[2]
    run = f"import sys; sys.path.insert(0, {str(root)!r}); from corewise.launcher.keeper import main; main()"
    return [sys.executable, "-I", "-S", "-c", run, str(told), *words]


def read_end(told: Path) -> CommandEnd:
    """How the command ended, once its keeper has; one that was killed could not tell."""
    try:
        return CommandEnd(**json.loads(told.read_text()))
    except (OSError, ValueError):
        return CommandEnd(-signal.SIGKILL)


def main() -> None:
    """Keep the command of the command line: the file to tell, then its words."""
    told, words = Path(sys.argv[1]), sys.argv[2:]
    pinning.adopt_orphans()
    pinning.set_process_name("cw-keeper")
    retitle(f"cw-keeper: for process {os.getppid()}")
    end = _Keeper().run(words)
    with suppress(OSError):
        told.write_text(json.dumps(asdict(end)))
    end_descendants(END_LIMIT_S)


class _Keeper:
    def __init__(self) -> None:
        self.asked = False
        self._wake, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        for number in ASKED:
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup: the command shall find it so
                signal.signal(number, self._be_asked)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def run(self, words: list[str]) -> CommandEnd:
        """How the command ended; what it left had a moment to end by itself."""
        began = time.monotonic()
        child, problem = _started(words)
        status: int | None = None
        while status is None and not self.asked:
            status = next((status for pid, status in reaped() if pid == child), None)
            if status is None:
                self._sleep(None)
        seconds = time.monotonic() - began
        until = time.monotonic() + PATIENCE_S
        while not self.asked and has_children() and time.monotonic() < until:
            self._sleep(until - time.monotonic())
            for _ in reaped():
                pass
        code = -signal.SIGKILL if status is None else os.waitstatus_to_exitcode(status)
        return CommandEnd(code, seconds, problem)

    def _be_asked(self, *_: object) -> None:
        self.asked = True

    def _sleep(self, limit_s: float | None) -> None:
        """Sleep in the kernel until a child ends, a signal comes, the owner goes or the time is up."""
        ready, _, _ = select.select([0, self._wake], [], [], None if limit_s is None else max(0.0, limit_s))
        if self._wake in ready:
            os.read(self._wake, 512)
        if 0 in ready and not os.read(0, 512):
            self.asked = True


def _started(words: list[str]) -> tuple[int, str]:
    """The command's process, and why it could not start, empty when it did."""
    told, tell = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        _be_command(words, parent, tell)
    os.close(tell)
    with open(told, "rb") as file:
        return child, file.read().decode("utf-8", "replace")


def _be_command(words: list[str], parent: int, tell: int) -> NoReturn:
    try:
        pinning.die_with_parent(parent)
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores and programs do not
            signal.signal(number, signal.SIG_DFL)
        os.execvp(words[0], words)
    except OSError as problem:
        os.write(tell, (problem.strerror or str(problem)).encode())
    finally:
        os._exit(NOT_STARTED)
