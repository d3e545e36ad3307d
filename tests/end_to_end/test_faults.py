"""A fault inside a rank becomes a record, and the study continues."""

import contextlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.end_to_end.conftest import QUICK_PROTOCOL, Bench

FAULTS = {
    "raises": ("raise ValueError('no such tensor')", "no such tensor"),
    "exits": ("import sys; sys.exit(7)", "sys.exit(7)"),
    "hard exit": ("import os; os._exit(9)", "exit code 9"),
    "killed": ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
    "segfault": ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
    "memory": (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31)); bytearray(2**33)",
        "out of memory",
    ),
    "wrong numbers": ("state['error'] = 0.5", "wrong numbers"),
    "not a number": ("state['error'] = float('nan')", "wrong numbers"),
    "fine": ("pass", ""),
}

OWN = """
import time
def factory(batch, mode, fault):
    state = {"error": 0.0}
    FAULTS = %r
    def check():
        exec(FAULTS[fault][0], {"state": state})
        return state["error"], 1e-3
    return {"step": lambda: None, "samples_per_step": batch, "check": check}
"""


def one_step_study(bench: Bench, body: str, extra: str = "", protocol: str = QUICK_PROTOCOL) -> str:
    own = bench.write_factory(body)
    return bench.write_study(
        f"""
question: What happens?
workload: {own}:factory
mode: infer
runtime: numpy
fixed: {{threads: 1, batch: 1}}
protocol: {protocol}
{extra}
"""
    )


def test_every_fault_is_recorded_and_the_study_continues(bench: Bench) -> None:
    study = one_step_study(bench, OWN % FAULTS, f"axes: {{args.fault: {json.dumps(list(FAULTS))}}}")
    done = bench.run("run", study, "--store", "store")
    assert done.returncode == 1, done.stderr
    records = {r["params"]["args.fault"]: r for r in bench.read_records()}
    assert set(records) == set(FAULTS)
    for fault, (_, message) in FAULTS.items():
        record = records[fault]
        assert record["status"] == ("ok" if fault == "fine" else "failed"), record["reason"]
        assert message in record["reason"], fault
        if fault != "fine":
            assert record["samples_s"] == []
            assert "step_s" not in record["metrics"]


def test_a_hang_is_killed_at_the_time_limit(bench: Bench) -> None:
    body = """
import time
def factory(batch, mode):
    return {"step": lambda: time.sleep(3600), "samples_per_step": 1}
"""
    study = one_step_study(bench, body, protocol="{min_runs: 1, max_runs: 1, timeout_s: 1.5}")
    done = bench.run("run", study, "--store", "store")
    assert done.returncode == 1
    [record] = bench.read_records()
    assert "no result within 1.5 s" in record["reason"]
    assert record["kind"] == "timeout"


@pytest.mark.slow
def test_a_lost_rank_fails_its_trial_and_ends_the_others(bench: Bench, need: Callable[[bool, str], None]) -> None:
    need(len(os.sched_getaffinity(0)) >= 2, "two CPUs")
    body = """
import os, signal, time
def factory(batch, mode):
    def step():
        if os.path.exists("/proc/self/comm") and open("/proc/self/comm").read().strip() == "cw-rank-1":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.01)
    return {"step": step, "samples_per_step": 1}
"""
    study = one_step_study(bench, body, "axes: {processes: [2]}")
    done = bench.run("run", study, "--store", "store")
    assert done.returncode == 1, done.stdout
    [record] = bench.read_records()
    assert record["reason"].startswith("rank 1")
    assert "SIGKILL" in record["reason"]


@pytest.mark.slow
def test_a_crash_is_detected_even_if_a_child_of_the_rank_survives(bench: Bench) -> None:
    body = """
import os, signal, time
def factory(batch, mode):
    def step():
        if os.fork() == 0:
            time.sleep(150)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGSEGV)
    return {"step": step, "samples_per_step": 1}
"""
    done = bench.run("run", one_step_study(bench, body), "--store", "store", timeout=100)
    assert done.returncode == 1
    [record] = bench.read_records()
    assert "SIGSEGV" in record["reason"]


@pytest.mark.slow
def test_a_real_time_signal_is_reported_by_its_number(bench: Bench) -> None:
    body = """
import os
def factory(batch, mode):
    return {"step": lambda: os.kill(os.getpid(), 40), "samples_per_step": 1}
"""
    bench.run("run", one_step_study(bench, body), "--store", "store")
    [record] = bench.read_records()
    assert "signal 40" in record["reason"]


@pytest.mark.slow
def test_a_workload_may_change_its_working_directory(bench: Bench) -> None:
    body = """
import os
def factory(batch, mode):
    os.chdir("/")
    return {"step": lambda: None, "samples_per_step": 1}
"""
    done = bench.run("run", one_step_study(bench, body), "--store", "store")
    assert done.returncode == 0, bench.read_records()[0]["reason"]


def test_failed_trials_are_retried_only_on_request(bench: Bench) -> None:
    body = """
import os
def factory(batch, mode):
    if not os.path.exists("fixed"):
        raise OSError("not yet")
    return {"step": lambda: None, "samples_per_step": 1}
"""
    study = one_step_study(bench, body)
    assert bench.run("run", study, "--store", "store").returncode == 1
    (bench.folder / "fixed").touch()
    # Without --retry-failed, the recorded failure stands.
    assert bench.run("run", study, "--store", "store").returncode == 1
    assert bench.run("run", study, "--store", "store", "--retry-failed").returncode == 0
    assert [r["status"] for r in bench.read_records()] == ["ok"]


def test_a_study_without_a_feasible_point_is_a_user_error(bench: Bench) -> None:
    study = one_step_study(bench, OWN % FAULTS, "axes: {args.fault: [fine]}")
    done = bench.run("run", study, "--store", "store", "--set", "threads=99999")
    assert done.returncode == 2
    assert "99999" in done.stderr
    assert not (bench.folder / "store").exists()


@pytest.mark.slow
def test_output_of_a_workload_does_not_disturb_the_control_pipe(bench: Bench) -> None:
    body = """
import os, sys
def factory(batch, mode):
    os.write(1, b'{"event":"done"}\\n'); print("noise"); sys.stderr.write("more noise")
    return {"step": lambda: None, "samples_per_step": 1}
"""
    done = bench.run("run", one_step_study(bench, body), "--store", "store")
    assert done.returncode == 0, done.stderr


def test_a_missing_framework_is_reported_with_the_install_command(bench: Bench) -> None:
    venv.create(bench.folder / "bare", with_pip=False, symlinks=True)
    study = bench.write_study(
        f"""
        question: Is it there?
        workload: resnet18
        mode: infer
        runtime: torch
        python: {bench.folder}/bare/bin/python
        fixed: {{threads: 1, batch: 1}}
        protocol: {QUICK_PROTOCOL}
        """
    )
    done = bench.run("run", study, "--store", "store")
    assert done.returncode == 2
    assert "corewise[torch]" in done.stderr
    assert not (bench.folder / "store").exists()


def test_a_missing_interpreter_is_a_user_error(bench: Bench) -> None:
    study = one_step_study(bench, OWN % FAULTS, "axes: {args.fault: [fine]}\npython: /no/such/python")
    done = bench.run("run", study, "--store", "store")
    assert done.returncode == 2
    assert "/no/such/python" in done.stderr


@pytest.mark.slow
def test_a_full_disk_keeps_what_was_measured(bench: Bench) -> None:
    """A file size limit makes writes fail, as a full disk does."""
    study = one_step_study(bench, OWN % FAULTS, "axes: {args.fault: [fine, raises]}")
    assert bench.run("run", study, "--store", "store").returncode == 1
    before = bench.read_records()

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (700, 700))

    done = subprocess.run(
        bench.build_command("run", study, "--store", "store", "--set", "args.fault=fine,exits"),
        cwd=bench.folder,
        env=bench.env,
        capture_output=True,
        text=True,
        preexec_fn=limit,
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert bench.read_records() == before
    assert bench.run("run", study, "--store", "store", "--set", "args.fault=fine,exits").returncode == 1
    assert {r["params"]["args.fault"] for r in bench.read_records()} == {"fine", "raises", "exits"}


def test_the_next_run_resumes_after_ctrl_c(bench: Bench) -> None:
    body = """
import time
def factory(batch, mode, k):
    return {"step": lambda: time.sleep(0.02), "samples_per_step": 1}
"""
    study = one_step_study(bench, body, "axes: {args.k: [1, 2, 3, 4, 5, 6]}")
    process = subprocess.Popen(
        bench.build_command("run", study, "--store", "store"),
        cwd=bench.folder,
        env=bench.env,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    _wait_for(lambda: any((bench.folder / "store/work").glob("*/run-*.json")))
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Run the same command again to resume" in errors
    assert bench.find_processes() == []
    assert bench.run("run", study, "--store", "store").returncode == 0
    assert sorted(r["params"]["args.k"] for r in bench.read_records()) == [1, 2, 3, 4, 5, 6]


def test_a_second_run_on_the_same_store_is_refused_with_the_holder(bench: Bench) -> None:
    body = """
import os, time
def factory(batch, mode):
    while os.path.exists("hold"):
        time.sleep(0.02)
    return {"step": lambda: None, "samples_per_step": 1}
"""
    study = one_step_study(bench, body)
    (bench.folder / "hold").touch()
    command = bench.build_command("run", study, "--store", "store")
    first = subprocess.Popen(command, cwd=bench.folder, env=bench.env, stdout=subprocess.DEVNULL)
    try:
        _wait_for(lambda: any((bench.folder / "store/leases").glob("host-*.json")))
        second = bench.run("run", study, "--store", "store")
        assert second.returncode == 2
        assert str(first.pid) in second.stderr
    finally:
        (bench.folder / "hold").unlink()
        first.wait(timeout=60)
    assert [r["status"] for r in bench.read_records()] == ["ok"]


@pytest.mark.slow
def test_after_fifty_kills_every_trial_is_recorded_exactly_once(bench: Bench) -> None:
    """Most kills hit the run at random moments; a few hit its start."""
    body = """
import time
def factory(batch, mode, k):
    return {"step": lambda: time.sleep(0.001), "samples_per_step": 1}
"""
    study = one_step_study(bench, body, f"axes: {{args.k: {list(range(30))}}}")
    work, rng = bench.folder / "store/work", random.Random(7)
    for kill in range(50):
        before = _list_files(work)
        pid = bench.start("run", study, "--store", "store")
        if kill % 6:
            _wait_for(lambda: _list_files(work) - before or not Path(f"/proc/{pid}").exists())  # noqa: B023
        time.sleep(rng.uniform(0.0, 0.3))
        # The run may have finished.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        bench.command.wait()
    done = bench.run("run", study, "--store", "store")
    assert done.returncode == 0, done.stderr
    lines = [
        json.loads(line)
        for path in (bench.folder / "store/records").glob("*.jsonl")
        for line in path.read_text().splitlines()
    ]
    assert sorted(line["params"]["args.k"] for line in lines) == list(range(30))
    assert not any((bench.folder / "store/work").iterdir())


def test_an_out_of_memory_kill_hits_the_rank_and_not_the_study(bench: Bench, need: Callable[[bool, str], None]) -> None:
    """A memory cgroup limits the whole run; the kernel must kill the rank."""
    group = Path("/sys/fs/cgroup/memory") / f"corewise-test-{bench.mark}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(400 * 2**20))
    except OSError:
        pytest.skip("no memory cgroup (v1) can be made here")
    body = """
def factory(batch, mode, greedy):
    def step():
        if greedy:
            hog = bytearray(b"x") * (2**30)
    return {"step": step, "samples_per_step": 1}
"""
    study = one_step_study(bench, body, "axes: {args.greedy: [true, false]}")
    enter = f"import os; open({str(group / 'cgroup.procs')!r}, 'w').write(str(os.getpid())); "
    code = enter + f"os.execv({sys.executable!r}, {bench.build_command('run', study, '--store', 'store')!r})"
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=bench.folder, env=bench.env, capture_output=True, text=True, timeout=60
        )
    finally:
        _wait_for(lambda: bench.find_processes() == [])
        group.rmdir()
    assert done.returncode == 1, done.stderr
    records = {r["params"]["args.greedy"]: r for r in bench.read_records()}
    assert records[True]["kind"] == "memory"
    assert "out of memory" in records[True]["reason"]
    assert records[False]["status"] == "ok"


def _list_files(folder: Path) -> set[Path]:
    """List all files below a folder; empty if one of them is removed meanwhile."""
    with contextlib.suppress(FileNotFoundError):
        return set(folder.rglob("*"))
    return set()


def _wait_for(condition: Callable[[], object], limit_s: float = 60.0) -> None:
    until = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until, "waited too long"
        time.sleep(0.02)
