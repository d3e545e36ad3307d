"""Ranks that pass messages: one is killed or stopped, or MPI is missing. Every case ends with a record."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import Bench

pytestmark = pytest.mark.slow

STUDY = """
question: What happens?
workload: communication
mode: infer
runtime: {runtime}
fixed:
  {{processes: {processes}, threads: 1, oversubscribe: true, collectives: {backend}, args.operation: {operation},
  args.size_bytes: 65536}}
protocol:
  {{min_runs: 1, max_runs: 1, min_samples: 3, min_sample_s: {sample_s}, max_samples: 100000, max_warmup_s: 0.2,
  timeout_s: {timeout_s}, max_repeats_disturbed: 0}}
"""
# Long enough to find and kill a rank that is sampling.
LONG_S = 40.0
# The other ranks get two seconds; the rest is for a busy machine.
END_LIMIT_S = 30.0
BACKENDS = [("torch", "gloo", "allreduce"), ("torch", "shared", "allreduce"), ("torch", "shared", "all_to_all")]
BACKENDS += [("numpy", "mpi", "allreduce"), ("tensorflow", "grpc", "push_add")]


def write_study(bench: Bench, runtime: str, backend: str, operation: str = "allreduce", **values: Any) -> str:
    filled = {"processes": 2, "sample_s": 0.02, "timeout_s": 60.0, **values}
    return bench.write_study(STUDY.format(runtime=runtime, backend=backend, operation=operation, **filled))


def find_rank(bench: Bench, rank: int) -> int:
    """Wait until the rank is past its warm-up, and return its process id."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        for folder in Path("/proc").iterdir():
            with suppress(OSError):
                is_rank = folder.name.isdigit() and (folder / "comm").read_text().strip() == f"cw-rank-{rank}"
                if is_rank and f"COREWISE_TEST_MARK={bench.mark}".encode() in (folder / "environ").read_bytes():
                    # Time enough to connect, check and warm up.
                    time.sleep(4)
                    return int(folder.name)
        time.sleep(0.05)
    raise AssertionError(f"rank {rank} did not start")


def list_segments() -> list[str]:
    """List the folders of MPI in shared memory; those of other runs on this machine vanish within milliseconds."""
    deadline = time.monotonic() + 5
    while True:
        found = [path.name for path in Path("/dev/shm").glob("*") if path.name.startswith("corewise-mpi")]
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


@pytest.mark.parametrize(("runtime", "backend", "operation"), BACKENDS)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_ends_the_trial_at_once_and_leaves_nothing(
    bench: Bench, runtime: str, backend: str, operation: str, rank: int
) -> None:
    bench.start("run", write_study(bench, runtime, backend, operation, sample_s=LONG_S), "--store", "store")
    pid = find_rank(bench, rank)
    os.kill(pid, signal.SIGKILL)
    killed = time.monotonic()
    done = bench.command.wait(120)
    assert time.monotonic() - killed < END_LIMIT_S
    assert done.returncode == 1, done.stderr
    (record,) = bench.read_records()
    assert record["status"] == "failed"
    assert record["reason"] == f"rank {rank}: the rank was killed by SIGKILL"
    assert bench.find_processes() == []
    assert list_segments() == []


@pytest.mark.parametrize(("runtime", "backend", "operation"), BACKENDS)
def test_a_stopped_rank_ends_the_trial_at_its_time_limit(
    bench: Bench, runtime: str, backend: str, operation: str
) -> None:
    study = write_study(bench, runtime, backend, operation, sample_s=LONG_S, timeout_s=25.0)
    bench.start("run", study, "--store", "store")
    pid = find_rank(bench, 1)
    os.kill(pid, signal.SIGSTOP)
    done = bench.command.wait(120)
    assert done.returncode == 1, done.stderr
    (record,) = bench.read_records()
    assert record["status"] == "failed"
    assert "no result within 25 s" in record["reason"]
    assert bench.find_processes() == []
    assert list_segments() == []


def test_a_killed_warm_parent_leaves_no_mpirun(bench: Bench) -> None:
    bench.start("run", write_study(bench, "numpy", "mpi", sample_s=LONG_S), "--store", "store")
    rank = find_rank(bench, 0)
    parent = int(Path(f"/proc/{rank}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(parent, signal.SIGKILL)
    bench.command.wait(120)
    deadline = time.monotonic() + END_LIMIT_S
    while bench.find_processes() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert bench.find_processes() == []
    assert list_segments() == []


def test_a_killed_mpirun_ends_the_trial(bench: Bench) -> None:
    bench.start("run", write_study(bench, "numpy", "mpi", sample_s=LONG_S), "--store", "store")
    find_rank(bench, 0)
    (pid,) = [
        int(folder.name)
        for folder in Path("/proc").iterdir()
        if folder.name.isdigit() and is_marked(folder, bench.mark) and read_name(folder).startswith("mpirun")
    ]
    os.kill(pid, signal.SIGKILL)
    done = bench.command.wait(120)
    (record,) = bench.read_records()
    # The ranks pass messages without it, so either outcome is right; none may hang or leave a process.
    assert record["status"] in ("ok", "failed"), done.stderr
    assert bench.find_processes() == []


def read_name(folder: Path) -> str:
    with suppress(OSError):
        return (folder / "comm").read_text().strip()
    return ""


def is_marked(folder: Path, mark: str) -> bool:
    with suppress(OSError):
        return f"COREWISE_TEST_MARK={mark}".encode() in (folder / "environ").read_bytes()
    return False


def test_one_rank_is_refused_with_what_to_set(bench: Bench) -> None:
    done = bench.run("run", write_study(bench, "torch", "gloo", processes=1), "--store", "store")
    assert done.returncode == 2
    assert "communication needs at least two ranks; set processes: 2" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("runtime", "backend", "operation", "reason"),
    [
        ("numpy", "gloo", "allreduce", "gloo does not exist in numpy"),
        (
            "torch",
            "shared",
            "exchange",
            "shared has allreduce, allgather, all_to_all, broadcast, reduce_scatter, not exc",
        ),
        ("torch", "nccl", "allreduce", "nccl is not for arrays on device: cpu"),
        ("tensorflow", "grpc", "allreduce", "grpc has push_add, not allreduce"),
    ],
)
def test_what_a_backend_lacks_is_skipped_with_the_reason(
    bench: Bench, runtime: str, backend: str, operation: str, reason: str
) -> None:
    done = bench.run("run", write_study(bench, runtime, backend, operation), "--store", "store")
    assert done.returncode == 2
    assert reason in done.stdout + done.stderr


def test_without_mpirun_the_trial_is_skipped_with_the_reason(bench: Bench, tmp_path: Path) -> None:
    study = write_study(bench, "numpy", "mpi")
    programs = tmp_path / "programs"
    programs.mkdir()
    environment = {**bench.env, "PATH": str(programs)}
    command = bench.build_command("run", study, "--store", "store")
    done = subprocess.run(command, cwd=bench.folder, env=environment, capture_output=True, text=True, timeout=120)
    (record,) = bench.read_records()
    assert record["status"] == "skipped", done.stderr
    assert "no mpirun is installed" in record["reason"]


def test_without_mpi4py_the_trial_is_skipped_with_the_reason(bench: Bench, tmp_path: Path) -> None:
    hidden = tmp_path / "hidden" / "mpi4py"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ImportError('no module of this name', name='mpi4py')\n")
    study = write_study(bench, "numpy", "mpi")
    environment = {**bench.env, "PYTHONPATH": f"{hidden.parent}:{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-m", "corewise", "run", study, "--store", "store"]
    done = subprocess.run(command, cwd=bench.folder, env=environment, capture_output=True, text=True, timeout=120)
    (record,) = bench.read_records()
    assert record["status"] == "skipped", done.stderr
    assert "pip install mpi4py" in record["reason"]
