"""What goes wrong inside a rank becomes a record, and the study goes on."""

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
    own = bench.factory(body)
    return bench.study(
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


def test_every_fault_is_a_record_and_the_study_goes_on(bench: Bench) -> None:
    study = one_step_study(bench, OWN % FAULTS, f"axes: {{args.fault: {json.dumps(list(FAULTS))}}}")
    done = bench.corewise("run", study, "--store", "store")
    assert done.returncode == 1, done.stderr
    records = {r["params"]["args.fault"]: r for r in bench.records()}
    assert set(records) == set(FAULTS)
    for fault, (_, told) in FAULTS.items():
        record = records[fault]
        assert record["status"] == ("ok" if fault == "fine" else "failed"), record["reason"]
        assert told in record["reason"], fault
        if fault != "fine":
            assert record["samples_s"] == []
            assert "step_s" not in record["metrics"]


def test_a_hang_is_killed_when_its_time_is_up(bench: Bench) -> None:
    body = """
import time
def factory(batch, mode):
    return {"step": lambda: time.sleep(3600), "samples_per_step": 1}
"""
    study = one_step_study(bench, body, protocol="{min_runs: 1, max_runs: 1, timeout_s: 1.5}")
    done = bench.corewise("run", study, "--store", "store")
    assert done.returncode == 1
    [record] = bench.records()
    assert "no result within 1.5 s" in record["reason"]
    assert record["kind"] == "timeout"


def test_a_lost_rank_fails_its_trial_and_ends_the_others(
    bench: Bench, need: Callable[[bool, str], None]
) -> None:
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
    done = bench.corewise("run", study, "--store", "store")
    assert done.returncode == 1, done.stdout
    [record] = bench.records()
    assert record["reason"].startswith("rank 1")
    assert "SIGKILL" in record["reason"]


def test_a_crash_is_noticed_even_when_a_child_of_the_rank_lives_on(bench: Bench) -> None:
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
    done = bench.corewise("run", one_step_study(bench, body), "--store", "store", timeout=100)
    assert done.returncode == 1
    [record] = bench.records()
    assert "SIGSEGV" in record["reason"]


def test_a_real_time_signal_is_told_by_its_number(bench: Bench) -> None:
    body = """
import os
def factory(batch, mode):
    return {"step": lambda: os.kill(os.getpid(), 40), "samples_per_step": 1}
"""
    bench.corewise("run", one_step_study(bench, body), "--store", "store")
    [record] = bench.records()
    assert "signal 40" in record["reason"]


def test_a_workload_that_changes_its_folder_still_leaves_its_result(bench: Bench) -> None:
    body = """
import os
def factory(batch, mode):
    os.chdir("/")
    return {"step": lambda: None, "samples_per_step": 1}
"""
    done = bench.corewise("run", one_step_study(bench, body), "--store", "store")
    assert done.returncode == 0, bench.records()[0]["reason"]


def test_failed_trials_run_again_when_asked_and_a_good_record_stands(bench: Bench) -> None:
    body = """
import os
def factory(batch, mode):
    if not os.path.exists("mended"):
        raise OSError("not yet")
    return {"step": lambda: None, "samples_per_step": 1}
"""
    study = one_step_study(bench, body)
    assert bench.corewise("run", study, "--store", "store").returncode == 1
    (bench.folder / "mended").touch()
    assert bench.corewise("run", study, "--store", "store").returncode == 1  # recorded is recorded
    assert bench.corewise("run", study, "--store", "store", "--retry-failed").returncode == 0
    assert [r["status"] for r in bench.records()] == ["ok"]


def test_a_study_with_no_possible_point_is_the_users_mistake(bench: Bench) -> None:
    study = one_step_study(bench, OWN % FAULTS, "axes: {args.fault: [fine]}")
    done = bench.corewise("run", study, "--store", "store", "--set", "threads=99999")
    assert done.returncode == 2
    assert "99999" in done.stderr
    assert not (bench.folder / "store").exists()


def test_what_a_workload_prints_does_not_disturb_the_control_pipe(bench: Bench) -> None:
    body = """
import os, sys
def factory(batch, mode):
    os.write(1, b'{"event":"done"}\\n'); print("noise"); sys.stderr.write("more noise")
    return {"step": lambda: None, "samples_per_step": 1}
"""
    done = bench.corewise("run", one_step_study(bench, body), "--store", "store")
    assert done.returncode == 0, done.stderr


def test_a_missing_framework_names_what_to_install(bench: Bench) -> None:
    venv.create(bench.folder / "bare", with_pip=False, symlinks=True)
    study = bench.study(
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
    done = bench.corewise("run", study, "--store", "store")
    assert done.returncode == 2
    assert "corewise[torch]" in done.stderr
    assert not (bench.folder / "store").exists()


def test_an_interpreter_that_does_not_exist_is_the_users_mistake(bench: Bench) -> None:
    study = one_step_study(bench, OWN % FAULTS, "axes: {args.fault: [fine]}\npython: /no/such/python")
    done = bench.corewise("run", study, "--store", "store")
    assert done.returncode == 2
    assert "/no/such/python" in done.stderr


def test_a_full_disk_keeps_what_was_measured(bench: Bench) -> None:
    """A file size limit is the kernel's own refusal to write, as a full disk is."""
    study = one_step_study(bench, OWN % FAULTS, "axes: {args.fault: [fine, raises]}")
    assert bench.corewise("run", study, "--store", "store").returncode == 1
    before = bench.records()

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (700, 700))

    done = subprocess.run(
        bench.words("run", study, "--store", "store", "--set", "args.fault=fine,exits"),
        cwd=bench.folder,
        env=bench.env,
        capture_output=True,
        text=True,
        preexec_fn=limit,
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert bench.records() == before
    assert bench.corewise("run", study, "--store", "store", "--set", "args.fault=fine,exits").returncode == 1
    assert {r["params"]["args.fault"] for r in bench.records()} == {"fine", "raises", "exits"}


def test_ctrl_c_leaves_a_store_from_which_the_next_run_goes_on(bench: Bench) -> None:
    body = """
import time
def factory(batch, mode, k):
    return {"step": lambda: time.sleep(0.02), "samples_per_step": 1}
"""
    study = one_step_study(bench, body, "axes: {args.k: [1, 2, 3, 4, 5, 6]}")
    process = subprocess.Popen(
        bench.words("run", study, "--store", "store"),
        cwd=bench.folder,
        env=bench.env,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    _wait_for(lambda: any((bench.folder / "store/work").glob("*/run-*.json")))
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "goes on" in told
    assert bench.processes_left() == []
    assert bench.corewise("run", study, "--store", "store").returncode == 0
    assert sorted(r["params"]["args.k"] for r in bench.records()) == [1, 2, 3, 4, 5, 6]


def test_a_second_run_on_the_same_store_refuses_and_says_who_holds_it(bench: Bench) -> None:
    body = """
import os, time
def factory(batch, mode):
    while os.path.exists("hold"):  # keeps the first run at work for as long as the test wants
        time.sleep(0.02)
    return {"step": lambda: None, "samples_per_step": 1}
"""
    study = one_step_study(bench, body)
    (bench.folder / "hold").touch()
    words = bench.words("run", study, "--store", "store")
    first = subprocess.Popen(words, cwd=bench.folder, env=bench.env, stdout=subprocess.DEVNULL)
    try:
        _wait_for(lambda: any((bench.folder / "store/leases").glob("host-*.json")))
        second = bench.corewise("run", study, "--store", "store")
        assert second.returncode == 2
        assert str(first.pid) in second.stderr
    finally:
        (bench.folder / "hold").unlink()
        first.wait(timeout=60)
    assert [r["status"] for r in bench.records()] == ["ok"]


def test_fifty_kills_of_the_parent_and_every_trial_is_there_exactly_once(bench: Bench) -> None:
    """Most kills come amid the work, at moments that differ; a few come while the run starts."""
    body = """
import time
def factory(batch, mode, k):
    return {"step": lambda: time.sleep(0.001), "samples_per_step": 1}
"""
    study = one_step_study(bench, body, f"axes: {{args.k: {list(range(30))}}}")
    work, rng = bench.folder / "store/work", random.Random(7)
    for kill in range(50):
        before = set(work.rglob("*"))
        pid = bench.start("run", study, "--store", "store")
        if kill % 6:
            _wait_for(lambda: set(work.rglob("*")) - before or not Path(f"/proc/{pid}").exists())  # noqa: B023
        time.sleep(rng.uniform(0.0, 0.3))
        with contextlib.suppress(ProcessLookupError):  # it has finished all
            os.kill(pid, signal.SIGKILL)
        bench.command.wait()
    done = bench.corewise("run", study, "--store", "store")
    assert done.returncode == 0, done.stderr
    lines = [
        json.loads(line)
        for path in (bench.folder / "store/records").glob("*.jsonl")
        for line in path.read_text().splitlines()
    ]
    assert sorted(line["params"]["args.k"] for line in lines) == list(range(30))
    assert not any((bench.folder / "store/work").iterdir())


def test_a_kernel_out_of_memory_kill_takes_the_rank_and_not_the_study(
    bench: Bench, need: Callable[[bool, str], None]
) -> None:
    """A real memory cgroup around the whole run; the rank must be the one that dies."""
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
    code = enter + f"os.execv({sys.executable!r}, {bench.words('run', study, '--store', 'store')!r})"
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=bench.folder,
            env=bench.env,
            capture_output=True,
            text=True,
            timeout=60,
        )
    finally:
        _wait_for(lambda: bench.processes_left() == [])
        group.rmdir()
    assert done.returncode == 1, done.stderr
    records = {r["params"]["args.greedy"]: r for r in bench.records()}
    assert records[True]["kind"] == "memory"
    assert "out of memory" in records[True]["reason"]
    assert records[False]["status"] == "ok"


def _wait_for(condition: Callable[[], object], limit_s: float = 60.0) -> None:
    until = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until, "waited too long"
        time.sleep(0.02)
