"""Whatever is killed, a launch leaves no process behind: real daemons, real kills."""

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from corewise.launcher.descendants import descendants, process_name, read_parents, signal_all

from .conftest import Bench
from .test_launch import TWO, launch, launched, python

# Children in the rank's session, in a group of their own, daemonised, and deaf to SIGTERM.
BROOD = """
import os, signal, subprocess, sys, time
subprocess.Popen(["sleep", "600"])
subprocess.Popen(["sleep", "601"], process_group=0)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execlp("sleep", "sleep", "602")
    os._exit(0)
words = ["sh", "-c", "trap '' TERM; echo deaf; sleep 603 & wait; wait"]
deaf = subprocess.Popen(words, stdout=subprocess.PIPE)
deaf.stdout.readline()
print("ready", flush=True)
time.sleep(float(sys.argv[1]))
sys.exit(int(sys.argv[2]))
"""
each_kind = pytest.mark.parametrize("words", [("-t", "1"), TWO], ids=["one", "two"])


def all_gone(bench: Bench, within_s: float = 60.0) -> bool:
    until = time.monotonic() + within_s
    while bench.processes_left() and time.monotonic() < until:
        time.sleep(0.05)
    return not bench.processes_left()


def supervisor_of(process: "subprocess.Popen[str]") -> int:
    [supervisor] = [pid for pid, parent in read_parents().items() if parent == process.pid]
    return supervisor


@each_kind
@pytest.mark.parametrize("code", [0, 4])
def test_daemons_are_ended_with_the_ranks(words: tuple[str, ...], code: int, bench: Bench) -> None:
    done = launch(bench, *words, "--grace", "100ms", *python(bench, BROOD), "0.1", str(code))
    assert done.returncode == code
    assert bench.processes_left() == []
    assert "that had been left behind: sleep 60" in done.stderr


@each_kind
def test_everything_dies_when_launch_is_killed(words: tuple[str, ...], bench: Bench) -> None:
    with launched(bench, *words, *python(bench, BROOD), "600", "0") as process:
        process.kill()
        assert all_gone(bench)


@each_kind
def test_everything_dies_when_the_supervisor_is_killed(words: tuple[str, ...], bench: Bench) -> None:
    with launched(bench, *words, *python(bench, BROOD), "600", "0") as process:
        os.kill(supervisor_of(process), signal.SIGKILL)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGKILL
    assert "the supervisor was killed by SIGKILL; ending its ranks" in said
    assert bench.processes_left() == []


def test_everything_dies_when_launchs_whole_process_group_is_killed(bench: Bench) -> None:
    process = subprocess.Popen(
        bench.words("launch", "-t", "1", *python(bench, BROOD), "600", "0"),
        cwd=bench.folder,
        env=bench.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        process_group=0,
    )
    assert process.stdout is not None
    process.stdout.readline()
    os.killpg(process.pid, signal.SIGKILL)
    assert all_gone(bench)
    process.communicate()


@each_kind
def test_everything_dies_on_a_signal_to_end(words: tuple[str, ...], bench: Bench) -> None:
    with launched(bench, *words, "--grace", "100ms", *python(bench, BROOD), "600", "0") as process:
        process.terminate()
        assert process.wait(timeout=60) == 128 + signal.SIGTERM
        assert bench.processes_left() == []


def test_a_helper_that_a_shell_had_started_before_it_became_us_is_spared(bench: Bench) -> None:
    leaves = "import subprocess; subprocess.Popen(['sleep', '605'])"  # returns once it goes by that name
    words = shlex.join(bench.words("launch", *python(bench, leaves)))
    line = f"sleep 604 > /dev/null 2>&1 & echo $!; exec {words}"
    done = subprocess.run(
        ["sh", "-c", line], cwd=bench.folder, env=bench.env, capture_output=True, text=True, timeout=60
    )
    helper = int(done.stdout)
    try:
        assert process_name(helper) == "sleep 604"
        assert "left behind: sleep 605" in done.stderr
    finally:
        signal_all([helper], signal.SIGKILL)
        all_gone(bench)  # who was killed takes a moment to end


def test_the_supervisor_goes_by_another_name_than_the_command(bench: Bench) -> None:
    with launched(bench, *TWO, "--", "sh", "-c", "echo ready; exec sleep 600") as process:
        title = Path(f"/proc/{supervisor_of(process)}/cmdline").read_bytes()
        assert title.startswith(b"cw-launch: supervises")
        assert b"sleep 600" not in title


def test_a_signal_ends_the_wait_for_what_was_left_behind(bench: Bench) -> None:
    code = (
        "import os\n"
        "if os.fork() == 0:\n"
        "    os.execlp('sh', 'sh', '-c', \"trap '' TERM; echo ready; sleep 600 & wait; wait\")\n"
    )
    with launched(bench, *TWO, "--grace", "300s", *python(bench, code)) as process:
        process.terminate()
        process.communicate(timeout=60)
        assert bench.processes_left() == []


# A terminal


def test_one_process_owns_the_terminal(bench: Bench) -> None:
    code = "import os, sys; print(sys.stdin.isatty(), os.tcgetpgrp(0) == os.getpgrp()); print('got', input())"
    screen = on_terminal(bench.words("launch", *python(bench, code)), bench, ("True True",), b"hello\n")
    assert "got hello" in screen


INTERRUPTED = """
import signal, time
came_at = []
signal.signal(signal.SIGINT, lambda *_: came_at.append(time.monotonic()))
print("ready", flush=True)
while not came_at:
    time.sleep(0.02)
while time.monotonic() < came_at[-1] + 0.4:  # for a second one
    time.sleep(0.02)
print("interrupted", len(came_at), flush=True)
"""


@each_kind
def test_an_interrupt_at_the_keyboard_reaches_each_rank_once(words: tuple[str, ...], bench: Bench) -> None:
    launch_words = bench.words("launch", *words, *python(bench, INTERRUPTED))
    prefixes = ("[0] ", "[1] ") if words == TWO else ("",)
    screen = on_terminal(launch_words, bench, tuple(f"{prefix}ready" for prefix in prefixes), b"\x03")
    assert all(f"{prefix}interrupted 1" in screen for prefix in prefixes), screen


def test_ranks_stop_and_go_on_with_launch(bench: Bench) -> None:
    with launched(bench, *TWO, "--", "sh", "-c", "echo ready; exec sleep 600") as process:
        assert process.stdout is not None
        process.stdout.readline()
        ranks = descendants(supervisor_of(process), read_parents())
        assert len(ranks) == 2
        process.send_signal(signal.SIGTSTP)
        assert reach(lambda: {state(pid) for pid in (*ranks, process.pid)} == {"T"})
        process.send_signal(signal.SIGCONT)
        assert reach(lambda: "T" not in {state(pid) for pid in (*ranks, process.pid)})
        process.terminate()
        assert process.wait(timeout=60) == 128 + signal.SIGTERM


def reach(is_so: Callable[[], bool], within_s: float = 60.0) -> bool:
    until = time.monotonic() + within_s
    while not is_so() and time.monotonic() < until:
        time.sleep(0.02)
    return is_so()


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def on_terminal(words: list[str], bench: Bench, cues: tuple[str, ...], answer: bytes) -> str:
    """What a new terminal shows of a command; the answer is typed once every cue is seen."""
    import pty

    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(bench.folder)
        os.execve(words[0], words, bench.env)
    screen, answered = "", False
    try:
        while True:
            screen += os.read(terminal, 4096).decode()
            if not answered and all(cue in screen for cue in cues):
                time.sleep(0.2)  # until the command waits for it
                os.write(terminal, answer)
                answered = True
    except OSError:  # the terminal's last process has gone
        pass
    finally:
        os.close(terminal)
        os.waitpid(pid, 0)
    return screen
