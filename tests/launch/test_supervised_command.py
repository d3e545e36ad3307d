"""Commands under a keeper: how they ended, and that none of their processes outlives the owner."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from corewise.launch.supervision.supervised_command import SupervisedCommand

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
from corewise.launch.supervision.supervised_command import SupervisedCommand

folder = Path(sys.argv[1])
command = [sys.executable, "-c", sys.argv[2], "daemon"]
supervised = SupervisedCommand(command, folder=folder, env=os.environ)
while not (folder / "daemon").exists() or not (folder / "daemon").read_text():
    time.sleep(0.01)
supervised.suspend()
print(*supervised.list_processes(), flush=True)
time.sleep(600)
"""


def start(folder: Path, *command: str) -> SupervisedCommand:
    return SupervisedCommand(command, folder=folder, env=os.environ)


def are_gone(pids: list[int], within_s: float = 60.0) -> bool:
    until = time.monotonic() + within_s
    while any(Path("/proc", str(pid)).exists() for pid in pids) and time.monotonic() < until:
        time.sleep(0.01)
    return not any(Path("/proc", str(pid)).exists() for pid in pids)


@pytest.mark.parametrize(
    ("arguments", "code", "problem"),
    [
        (("sh", "-c", "exit 3"), 3, ""),
        (("sh", "-c", "kill -9 $$"), -signal.SIGKILL, ""),
        (("./no-such-program",), 127, "No such file or directory"),
    ],
)
def test_the_end_of_a_command_is_reported(tmp_path: Path, arguments: tuple[str, ...], code: int, problem: str) -> None:
    command = start(tmp_path, *arguments)
    assert command.wait(60.0)
    end = command.read_end()
    command.end()
    assert (end.code, end.problem) == (code, problem)
    assert end.seconds > 0


def test_processes_that_a_command_leaves_behind_are_killed_and_reported(tmp_path: Path) -> None:
    command = start(tmp_path, sys.executable, "-c", DAEMON.replace("time.sleep(600)", "time.sleep(0.5)"), "daemon")
    assert command.wait(60.0)
    assert (command.read_end().code, command.read_end().leftovers) == (0, ["sleep"])
    assert are_gone([int((tmp_path / "daemon").read_text())])


def test_the_environment_is_that_of_the_command_alone(tmp_path: Path) -> None:
    """A library path that suits the command may break the interpreter of the keeper."""
    broken = {"LD_PRELOAD": str(tmp_path / "none.so"), "ASKED": "yes"}
    with open(tmp_path / "output", "wb") as out:
        command = SupervisedCommand(["/bin/sh", "-c", "echo $ASKED"], env=broken, stdout=out, stderr=out)
    assert command.wait(60.0)
    command.end()
    lines = (tmp_path / "output").read_text().splitlines()
    assert (lines[-1], sum("none.so" in line for line in lines)) == ("yes", 1)


def test_a_grace_period_lets_a_stopped_command_clean_up(tmp_path: Path) -> None:
    command = start(tmp_path, "sh", "-c", "trap 'touch cleaned; exit 0' TERM; touch ready; while :; do sleep 0.1; done")
    while not (tmp_path / "ready").exists():
        time.sleep(0.01)
    command.suspend()
    command.end(grace_s=60.0)
    assert (tmp_path / "cleaned").exists()


def test_a_stopped_command_and_its_daemon_are_ended(tmp_path: Path) -> None:
    command = start(tmp_path, sys.executable, "-c", DAEMON, "daemon")
    # Wait until the keeper has adopted the daemon.
    while len(command.list_processes()) < 2 or command.list_processes(depth=2):
        time.sleep(0.01)
    pids = command.list_processes()
    command.suspend()
    command.end()
    assert are_gone(pids)


def test_nothing_is_left_when_the_owner_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OWNER, str(tmp_path), DAEMON]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pids = [int(word) for word in owner.stdout.readline().split()]
        owner.kill()
    assert len(pids) >= 2
    assert are_gone(pids)


def test_a_keeper_that_is_killed_before_it_reads_its_request_counts_as_killed(tmp_path: Path) -> None:
    command = start(tmp_path, "true")
    # The keeper is still importing its modules; its end of the connection holds an unread request.
    command._keeper.kill()
    assert command.wait(60)
    assert command.read_end().code == -signal.SIGKILL
