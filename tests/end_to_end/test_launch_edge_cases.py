"""`corewise launch` with odd names, closed outputs, full disks, low limits and special files."""

import json
import os
import signal
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from corewise.machine.software import find_library

from .conftest import Bench
from .test_launch import TWO, launch, start_launch

# Rare conditions and unusual names; the common cases of a launch are in test_launch.py.
pytestmark = pytest.mark.slow

INVALID_UTF8_NAME = os.fsdecode(b"odd\xff")


def run_shell(bench: Bench, line: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a line of bash in which "$@" is a launch with these arguments."""
    return subprocess.run(
        ["bash", "-c", line, "bash", *bench.build_command("launch", *arguments)],
        cwd=bench.folder,
        env=bench.env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_script_with_an_invalid_name_is_reported(bench: Bench) -> None:
    (bench.folder / INVALID_UTF8_NAME).write_text("echo no interpreter line\n")
    (bench.folder / INVALID_UTF8_NAME).chmod(0o755)
    done = launch(bench, "--", f"./{INVALID_UTF8_NAME}")
    assert done.returncode == 126
    assert "could not start: ./odd" in done.stderr
    assert "does its first line lack a #!" in done.stderr


def test_a_script_with_a_missing_interpreter_is_reported(bench: Bench) -> None:
    (bench.folder / "script").write_text("#!/no/such/interpreter\n")
    (bench.folder / "script").chmod(0o755)
    done = launch(bench, "--", "./script")
    assert done.returncode == 126
    assert "is the interpreter that its first line names there?" in done.stderr


def test_a_dry_run_prints_arguments_byte_for_byte(bench: Bench) -> None:
    arguments = bench.build_command("launch", "--dry-run", "--", "echo", INVALID_UTF8_NAME)
    env = {**bench.env, "PYTHONIOENCODING": "utf-8:strict"}
    done = subprocess.run(arguments, cwd=bench.folder, env=env, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(b" 'odd\xff'\n")


def test_closing_the_output_of_a_dry_run_is_no_error(bench: Bench) -> None:
    line = '"$@" | true; echo "${PIPESTATUS[0]}"'
    done = run_shell(bench, line, "--dry-run", "-p", "300", "--oversubscribe", "--", "true")
    assert (done.stdout, done.stderr) == ("0\n", "")


@pytest.mark.parametrize("soft_only", [True, False])
def test_many_ranks_get_enough_open_files_or_are_refused(soft_only: bool, bench: Bench) -> None:
    line = f'ulimit {"-S" * soft_only} -n 40; exec "$@"'
    done = run_shell(bench, line, "-p", "20", "-t", "1", "--oversubscribe", "--", "bash", "-c", "ulimit -Sn")
    if soft_only:
        assert done.returncode == 0, done.stderr
        assert sorted(done.stdout.splitlines()) == sorted(f"[{rank}] 40" for rank in range(20))
    else:
        assert done.returncode == 1
        assert "could not start: Too many open files; use fewer processes" in done.stderr
        assert "Traceback" not in done.stderr


def test_an_incomplete_log_is_reported(bench: Bench) -> None:
    line = 'ulimit -f 1; exec "$@"'
    done = run_shell(bench, line, "--log-dir", "logs", "--", "bash", "-c", "printf %01500d 7")
    assert done.returncode == 1
    assert len(done.stdout) == 1500
    assert (bench.folder / "logs/rank-0.log").stat().st_size == 1024
    assert "corewise: the log files are incomplete: File too large" in done.stderr


def test_logs_of_an_earlier_launch_are_moved(bench: Bench) -> None:
    assert launch(bench, *TWO, "--log-dir", "logs", "--", "echo", "first").stderr == ""
    later = launch(bench, "--log-dir", "logs", "--", "echo", "second")
    assert later.stderr == "corewise: moved the logs of an earlier launch to logs/older-1\n"
    logs = {str(path.relative_to(bench.folder)): path.read_text() for path in bench.folder.rglob("*.log")}
    assert logs == {
        "logs/rank-0.log": "second\n",
        "logs/older-1/rank-0.log": "first\n",
        "logs/older-1/rank-1.log": "first\n",
    }


def test_an_empty_log_folder_name_is_refused(bench: Bench) -> None:
    done = launch(bench, "--log-dir", "", "--", "true")
    assert done.returncode == 2
    assert list(bench.folder.iterdir()) == []


def test_the_outcome_can_be_written_to_a_named_pipe(bench: Bench) -> None:
    pipe = bench.folder / "pipe"
    os.mkfifo(pipe)
    # Nobody reads the pipe.
    assert launch(bench, "--json", "pipe", "--", "true").returncode == 1
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert launch(bench, "--json", "pipe", "--", "true").returncode == 0
        assert json.loads(os.read(reader, 1 << 16))["exit_code"] == 0
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_the_outcome_follows_a_symbolic_link(bench: Bench) -> None:
    (bench.folder / "link.json").symlink_to("target.json")
    assert launch(bench, "--json", "link.json", "--", "true").returncode == 0
    assert (bench.folder / "link.json").is_symlink()
    assert json.loads((bench.folder / "target.json").read_text())["exit_code"] == 0


def test_the_outcome_of_a_killed_launch_is_written(bench: Bench) -> None:
    with start_launch(bench, *TWO, "--json", "out.json", "--", "sh", "-c", "echo ready; exec sleep 600") as process:
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=60)
        outcome = wait_for(bench.folder / "out.json")
        while bench.find_processes():
            time.sleep(0.02)
    assert outcome["exit_code"] == 137
    assert [rank["exit_code"] for rank in outcome["ranks"]] == [None, None]


def test_a_closed_input_is_empty_for_every_rank(bench: Bench) -> None:
    done = run_shell(bench, 'exec "$@" <&-', *TWO, "--", "cat")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_single_process_gets_the_requested_port(bench: Bench) -> None:
    done = launch(bench, "--master-port", "0", "--", "sh", "-c", "echo port=$MASTER_PORT")
    assert done.stdout == "port=\n"
    given = launch(bench, "-p", "1", "--", "sh", "-c", "echo $MASTER_PORT").stdout.strip()
    done = launch(bench, "--master-port", given, "--", "sh", "-c", "echo $MASTER_PORT")
    assert done.stdout.strip() == given or "leave it out to use a free port" in done.stderr


def test_a_variable_set_by_an_option_overrides_those_of_launch(bench: Bench) -> None:
    done = launch(bench, *TWO, "--env", "MASTER_ADDR=10.0.0.1", "--", "sh", "-c", "echo $MASTER_ADDR")
    assert sorted(done.stdout.splitlines()) == ["[0] 10.0.0.1", "[1] 10.0.0.1"]


def test_an_allocator_replaced_by_a_variable_is_reported(bench: Bench, need: Callable[[bool, str], None]) -> None:
    need(find_library("jemalloc") is not None, "jemalloc")
    done = launch(bench, "--allocator", "jemalloc", "--env", "LD_PRELOAD=", "--", "true")
    assert done.stderr == "corewise: --env LD_PRELOAD replaces the preloading of jemalloc\n"


def test_a_quiet_launch_with_correct_pinning_prints_nothing(bench: Bench) -> None:
    done = launch(bench, "--quiet", "--verify", "--json", "out.json", "--", "true")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads((bench.folder / "out.json").read_text())["verify"]["holds"] is True


def wait_for(file: Path, within_s: float = 60.0) -> dict[str, object]:
    until = time.monotonic() + within_s
    while not file.exists() and time.monotonic() < until:
        time.sleep(0.02)
    return dict(json.loads(file.read_text()))
