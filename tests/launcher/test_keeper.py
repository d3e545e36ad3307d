"""Commands under a keeper: how they ended, and that nothing of them outlives their owner."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from corewise.launcher.kept import KeptCommand

# A daemon that has left its session and has no environment by which it could be found.
DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open(sys.argv[1], "w").write(str(os.getpid()))
        os.execve("/bin/sleep", ["sleep", "600"], {})
    os._exit(0)
time.sleep(600)
"""
OWNER = """
import os, sys, time
from pathlib import Path
from corewise.launcher.kept import KeptCommand

here = Path(sys.argv[1])
words = [sys.executable, "-c", sys.argv[2], "daemon"]
kept = KeptCommand(words, folder=here, env=os.environ, output=here / "output", told=here / "told")
while not (here / "daemon").exists() or not (here / "daemon").read_text():
    time.sleep(0.01)
kept.stop()
print(*kept.processes(), flush=True)
time.sleep(600)
"""


def kept(folder: Path, *words: str) -> KeptCommand:
    return KeptCommand(words, folder=folder, env=os.environ, output=folder / "output", told=folder / "told")


def are_gone(pids: list[int], within_s: float = 60.0) -> bool:
    until = time.monotonic() + within_s
    while any(Path("/proc", str(pid)).exists() for pid in pids) and time.monotonic() < until:
        time.sleep(0.01)
    return not any(Path("/proc", str(pid)).exists() for pid in pids)


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        (("sh", "-c", "exit 3"), 3, ""),
        (("sh", "-c", "kill -9 $$"), -signal.SIGKILL, ""),
        (("./no-such-program",), 127, "No such file or directory"),
    ],
)
def test_how_a_command_ended_is_told(tmp_path: Path, words: tuple[str, ...], code: int, problem: str) -> None:
    command = kept(tmp_path, *words)
    assert command.wait(60.0)
    end = command.how_it_ended()
    command.end()
    assert (end.code, end.problem) == (code, problem)
    assert end.seconds > 0


def test_a_stopped_command_and_its_daemon_are_ended(tmp_path: Path) -> None:
    command = kept(tmp_path, sys.executable, "-c", DAEMON, "daemon")
    while len(command.processes()) < 2 or command.processes(
        depth=2
    ):  # the daemon has become the keeper's own
        time.sleep(0.01)
    pids = command.processes()
    command.stop()
    command.end()
    assert are_gone(pids)


def test_nothing_is_left_when_the_owner_is_killed(tmp_path: Path) -> None:
    words = [sys.executable, "-c", OWNER, str(tmp_path), DAEMON]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pids = [int(word) for word in owner.stdout.readline().split()]
        owner.kill()
    assert len(pids) >= 2
    assert are_gone(pids)
