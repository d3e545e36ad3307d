"""A launch leaves no process behind, whichever process is killed."""

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from corewise.measured.worker.descendants import find_descendants, read_parents, read_process_name, send_signal

from .conftest import Bench
from .test_launch import TWO, launch, start_launch, write_script

# Children in the rank's session, in a separate group, daemonised, and ignoring SIGTERM.
CHILDREN = """
import os, signal, subprocess, sys, time
subprocess.Popen(["sleep", "600"])
subprocess.Popen(["sleep", "601"], process_group=0)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execlp("sleep", "sleep", "602")
    os._exit(0)
arguments = ["sh", "-c", "trap '' TERM; echo ready; sleep 603 & wait; wait"]
stubborn = subprocess.Popen(arguments, stdout=subprocess.PIPE)
stubborn.stdout.readline()
print("ready", flush=True)
time.sleep(float(sys.argv[1]))
sys.exit(int(sys.argv[2]))
"""
one_or_two_ranks = pytest.mark.parametrize("arguments", [("-t", "1"), TWO], ids=["one", "two"])


def wait_until_gone(bench: Bench, within_s: float = 60.0) -> bool:
    until = time.monotonic() + within_s
    while bench.find_processes() and time.monotonic() < until:
        time.sleep(0.05)
    return not bench.find_processes()


def find_supervisor(process: "subprocess.Popen[str]") -> int:
    [supervisor] = [pid for pid, parent in read_parents().items() if parent == process.pid]
    return supervisor


@pytest.mark.slow
@one_or_two_ranks
@pytest.mark.parametrize("code", [0, 4])
def test_daemons_are_ended_with_the_ranks(arguments: tuple[str, ...], code: int, bench: Bench) -> None:
    done = launch(bench, *arguments, "--grace", "100ms", *write_script(bench, CHILDREN), "0.1", str(code))
    assert done.returncode == code
    assert bench.find_processes() == []
    assert "left behind by the command: sleep 60" in done.stderr


@one_or_two_ranks
def test_everything_dies_when_launch_is_killed(arguments: tuple[str, ...], bench: Bench) -> None:
    with start_launch(bench, *arguments, *write_script(bench, CHILDREN), "600", "0") as process:
        process.kill()
        assert wait_until_gone(bench)


@pytest.mark.slow
@one_or_two_ranks
def test_everything_dies_when_the_supervisor_is_killed(arguments: tuple[str, ...], bench: Bench) -> None:
    with start_launch(bench, *arguments, *write_script(bench, CHILDREN), "600", "0") as process:
        os.kill(find_supervisor(process), signal.SIGKILL)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGKILL
    assert "the supervisor was killed by SIGKILL; killing its ranks" in errors
    assert bench.find_processes() == []


@pytest.mark.slow
def test_everything_dies_when_launchs_whole_process_group_is_killed(bench: Bench) -> None:
    process = subprocess.Popen(
        bench.build_command("launch", "-t", "1", *write_script(bench, CHILDREN), "600", "0"),
        cwd=bench.folder,
        env=bench.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        process_group=0,
    )
    assert process.stdout is not None
    process.stdout.readline()
    os.killpg(process.pid, signal.SIGKILL)
    assert wait_until_gone(bench)
    process.communicate()


@one_or_two_ranks
def test_everything_dies_on_a_signal_to_end(arguments: tuple[str, ...], bench: Bench) -> None:
    with start_launch(bench, *arguments, "--grace", "100ms", *write_script(bench, CHILDREN), "600", "0") as process:
        process.terminate()
        assert process.wait(timeout=60) == 128 + signal.SIGTERM
        assert bench.find_processes() == []


@pytest.mark.slow
def test_a_child_of_the_shell_that_launch_replaced_is_spared(bench: Bench) -> None:
    leaves = "import subprocess; subprocess.Popen(['sleep', '605'])"
    arguments = shlex.join(bench.build_command("launch", *write_script(bench, leaves)))
    line = f"sleep 604 > /dev/null 2>&1 & echo $!; exec {arguments}"
    done = subprocess.run(
        ["sh", "-c", line], cwd=bench.folder, env=bench.env, capture_output=True, text=True, timeout=60
    )
    helper = int(done.stdout)
    try:
        assert read_process_name(helper) == "sleep 604"
        assert "left behind by the command: sleep 605" in done.stderr
    finally:
        send_signal([helper], signal.SIGKILL)
        wait_until_gone(bench)


def test_the_supervisor_has_another_title_than_the_command(bench: Bench) -> None:
    with start_launch(bench, *TWO, "--", "sh", "-c", "echo ready; exec sleep 600") as process:
        title = Path(f"/proc/{find_supervisor(process)}/cmdline").read_bytes()
        assert title.startswith(b"cw-launch: supervises")
        assert b"sleep 600" not in title


@pytest.mark.slow
def test_a_signal_ends_the_wait_for_leftovers(bench: Bench) -> None:
    code = (
        "import os\n"
        "if os.fork() == 0:\n"
        "    os.execlp('sh', 'sh', '-c', \"trap '' TERM; echo ready; sleep 600 & wait; wait\")\n"
    )
    with start_launch(bench, *TWO, "--grace", "300s", *write_script(bench, code)) as process:
        process.terminate()
        process.communicate(timeout=60)
        assert bench.find_processes() == []


DEAF = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
while True: time.sleep(0.05)
"""


@one_or_two_ranks
@pytest.mark.parametrize(("code", "expected"), [("PLAIN", 128 + signal.SIGTERM), ("DEAF", 128 + signal.SIGKILL)])
def test_a_stopped_rank_does_not_hold_off_sigterm(
    arguments: tuple[str, ...], code: str, expected: int, bench: Bench
) -> None:
    script = write_script(bench, DEAF if code == "DEAF" else "import time; print('ready', flush=True); time.sleep(600)")
    with start_launch(bench, *arguments, "--grace", "200ms", *script) as process:
        ranks = [pid for pid, parent in read_parents().items() if parent == find_supervisor(process)]
        os.kill(ranks[-1], signal.SIGSTOP)
        assert wait_for(lambda: read_state(ranks[-1]) == "T")
        process.terminate()
        assert process.wait(timeout=60) == expected
        assert bench.find_processes() == []


# A terminal


@pytest.mark.slow
def test_one_process_owns_the_terminal(bench: Bench) -> None:
    code = "import os, sys; print(sys.stdin.isatty(), os.tcgetpgrp(0) == os.getpgrp()); print('got', input())"
    screen = run_on_terminal(
        bench.build_command("launch", *write_script(bench, code)), bench, ("True True",), b"hello\n"
    )
    assert "got hello" in screen


INTERRUPTED = """
import signal, time
received_at = []
signal.signal(signal.SIGINT, lambda *_: received_at.append(time.monotonic()))
print("ready", flush=True)
while not received_at:
    time.sleep(0.02)
while time.monotonic() < received_at[-1] + 0.4:
    time.sleep(0.02)
print("interrupted", len(received_at), flush=True)
"""


@pytest.mark.slow
@one_or_two_ranks
def test_an_interrupt_from_the_keyboard_reaches_each_rank_once(arguments: tuple[str, ...], bench: Bench) -> None:
    command = bench.build_command("launch", *arguments, *write_script(bench, INTERRUPTED))
    prefixes = ("[0] ", "[1] ") if arguments == TWO else ("",)
    screen = run_on_terminal(command, bench, tuple(f"{prefix}ready" for prefix in prefixes), b"\x03")
    assert all(f"{prefix}interrupted 1" in screen for prefix in prefixes), screen


@pytest.mark.slow
def test_ranks_stop_and_continue_with_launch(bench: Bench) -> None:
    with start_launch(bench, *TWO, "--", "sh", "-c", "echo ready; exec sleep 600") as process:
        assert process.stdout is not None
        process.stdout.readline()
        ranks = find_descendants(find_supervisor(process), read_parents())
        assert len(ranks) == 2
        process.send_signal(signal.SIGTSTP)
        assert wait_for(lambda: {read_state(pid) for pid in (*ranks, process.pid)} == {"T"})
        process.send_signal(signal.SIGCONT)
        assert wait_for(lambda: "T" not in {read_state(pid) for pid in (*ranks, process.pid)})
        process.terminate()
        assert process.wait(timeout=60) == 128 + signal.SIGTERM


def wait_for(is_reached: Callable[[], bool], within_s: float = 60.0) -> bool:
    until = time.monotonic() + within_s
    while not is_reached() and time.monotonic() < until:
        time.sleep(0.02)
    return is_reached()


def read_state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def run_on_terminal(command: list[str], bench: Bench, cues: tuple[str, ...], answer: bytes) -> str:
    """Run a command on a new terminal and return its screen; type the answer after all cues."""
    import pty

    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(bench.folder)
        os.execve(command[0], command, bench.env)
    screen, answered = "", False
    try:
        while True:
            screen += os.read(terminal, 4096).decode()
            if not answered and all(cue in screen for cue in cues):
                # Give the command time to wait for the answer.
                time.sleep(0.2)
                os.write(terminal, answer)
                answered = True
    except OSError:
        # The last process has closed the terminal.
        pass
    finally:
        os.close(terminal)
        os.waitpid(pid, 0)
    return screen
