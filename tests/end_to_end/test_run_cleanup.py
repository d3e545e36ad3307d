"""No process outlives `corewise run` or `corewise tune`, whichever process is killed, and records say what was left."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from corewise.measured.worker.descendants import find_descendants, read_parents, read_short_name

from .conftest import QUICK_PROTOCOL, SHORT_SEARCH, Bench
from .test_launch_cleanup import wait_for, wait_until_gone

# The first step leaves two daemons, which have left the session of the rank.
DAEMONS = """
import os, time
def factory(batch, mode):
    started = []
    def step():
        if not started:
            started.append(True)
            for _ in range(2):
                if os.fork() == 0:
                    os.setsid()
                    if os.fork() == 0:
                        os.execlp("sleep", "sleep", "620")
                    os._exit(0)
                os.wait()
        while os.path.exists("hold"):
            time.sleep(0.01)
        time.sleep(0.001)
    return {"step": step, "samples_per_step": 1}
"""
NOTE = "the workload left processes behind, which were killed: 2 × sleep"


def write_daemon_study(bench: Bench, extra: str = "") -> str:
    bench.write_factory(DAEMONS)
    return bench.write_study(
        f"""
        question: What is left?
        workload: own.py:factory
        mode: infer
        runtime: numpy
        fixed: {{threads: 1, batch: 1}}
        protocol: {QUICK_PROTOCOL}
        {extra}
        """
    )


def list_names(pid: int) -> dict[str, int]:
    """Map the short name of each descendant to its process; of several the last."""
    return {read_short_name(each): each for each in find_descendants(pid, read_parents())}


def start_held_run(bench: Bench) -> "subprocess.Popen[str]":
    """Start a run whose rank has left its daemons and waits."""
    (bench.folder / "hold").touch()
    process = subprocess.Popen(
        bench.build_command("run", write_daemon_study(bench), "--store", "store"),
        cwd=bench.folder,
        env=bench.env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert wait_for(lambda: sum("sleep 620" in each for each in bench.find_processes()) == 2)
    return process


def test_daemons_end_with_their_run_and_the_record_says_so(bench: Bench) -> None:
    done = bench.run("run", write_daemon_study(bench), "--store", "store")
    assert done.returncode == 0, done.stderr
    assert bench.find_processes() == []
    [record] = bench.read_records()
    assert (record["status"], record["notes"]) == ("ok", [NOTE])
    assert len(record["runs"]) == 2


@pytest.mark.slow
def test_daemons_of_a_rank_that_crashes_are_ended_and_noted(bench: Bench) -> None:
    study = write_daemon_study(bench)
    bench.write_factory(DAEMONS.replace("time.sleep(0.001)", "os.abort()"))
    assert bench.run("run", study, "--store", "store").returncode == 1
    assert bench.find_processes() == []
    [record] = bench.read_records()
    assert (record["kind"], record["notes"]) == ("crash", [NOTE])


@pytest.mark.slow
def test_children_in_the_group_of_the_rank_are_killed_without_a_note(bench: Bench) -> None:
    """A rank ends without the clean-up of Python, so its loader workers are no fault of the workload."""
    study = write_daemon_study(bench)
    bench.write_factory(DAEMONS.replace("os.setsid()", "pass"))
    assert bench.run("run", study, "--store", "store").returncode == 0
    assert bench.find_processes() == []
    assert bench.read_records()[0]["notes"] == []


@pytest.mark.parametrize("killed", ["corewise", "cw-keeper", "cw-warm", "cw-rank-0"])
def test_no_process_is_left_whichever_is_killed(killed: str, bench: Bench) -> None:
    with start_held_run(bench) as process:
        os.kill(process.pid if killed == "corewise" else list_names(process.pid)[killed], signal.SIGKILL)
        # A run that lost its warm parent starts another one.
        (bench.folder / "hold").unlink()
        process.communicate(timeout=60)
    assert wait_until_gone(bench)
    assert bench.run("run", "study.yaml", "--store", "store").returncode == (1 if killed == "cw-rank-0" else 0)
    assert len(bench.read_records()) == 1


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 130), (signal.SIGHUP, 129)])
def test_a_signal_ends_a_run_in_order_even_if_its_rank_is_stopped(
    number: signal.Signals, code: int, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = bench.folder / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    with start_held_run(bench) as process:
        assert list(temporary.glob("corewise-*"))
        os.kill(list_names(process.pid)["cw-rank-0"], signal.SIGSTOP)
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == code
    assert "Run the same command again to resume" in errors
    assert bench.find_processes() == []
    assert list(temporary.glob("corewise-*")) == []
    (bench.folder / "hold").unlink()
    assert bench.run("run", "study.yaml", "--store", "store").returncode == 0


@pytest.mark.slow
def test_daemons_end_with_a_tuning_and_its_records_say_so(bench: Bench) -> None:
    bench.write_factory(DAEMONS)
    options = ["--batch", "1", "--runtime", "numpy", "--budget", "20s", "--store", "store"]
    done = bench.run("tune", "own.py:factory", *options, before=SHORT_SEARCH)
    assert done.returncode == 0, done.stderr
    assert bench.find_processes() == []
    assert all(NOTE in record["notes"] for record in bench.read_records())


def test_a_full_disk_for_the_output_does_not_stop_a_study(bench: Bench) -> None:
    """Each finished trial prints a line."""
    study = write_daemon_study(bench, "axes: {args.k: [1, 2]}")
    bench.write_factory("def factory(batch, mode, k): return {'step': lambda: None, 'samples_per_step': 1}")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            bench.build_command("run", study, "--store", "store"),
            cwd=bench.folder,
            env=bench.env,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    problem = "corewise: standard output is incomplete: No space left on device; redirect it elsewhere\n"
    # On a busy machine a warning of the load comes first.
    said = [line for line in done.stderr.splitlines() if not line.startswith("corewise: warning: ")]
    assert (done.returncode, said) == (1, [problem.strip()])
    assert [record["status"] for record in bench.read_records()] == ["ok", "ok"]


HANGING_COMPILER = "#!/bin/sh\nsleep 621 &\nwait\n"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_tuning_that_is_killed_during_the_build_leaves_no_compiler(
    number: signal.Signals, bench: Bench, monkeypatch: pytest.MonkeyPatch, need: Callable[[bool, str], None]
) -> None:
    pytest.importorskip("torch")
    compiler, cache = bench.folder / "c++", bench.folder / "cache"
    compiler.write_text(HANGING_COMPILER)
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.delenv("COREWISE_NATIVE_CACHE")
    pid = bench.start("tune", "resnet18", "--budget", "20s", "--store", "store")
    assert wait_for(lambda: any("sleep 621" in each for each in bench.find_processes()))
    os.kill(pid, number)
    bench.command.wait()
    assert wait_until_gone(bench)
    left = list(cache.rglob(".building-*"))
    assert len(left) == (1 if number == signal.SIGKILL else 0)
    compiler.write_text("#!/bin/sh\nexit 1\n")
    code = "from corewise.accelerate.kernels.__main__ import main; main()"
    subprocess.run([sys.executable, "-c", code], env=bench.env, stderr=subprocess.DEVNULL, check=True)
    assert list(cache.rglob(".building-*")) == []
