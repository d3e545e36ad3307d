"""Data-parallel training through `corewise run`: on one node, on two, on a network, and with faults."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from corewise.store.store import Store
from corewise.study.record import Record
from tests.end_to_end.conftest import Bench
from tests.network_hosts import need_network_hosts, run_two_hosts

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

PROTOCOL = "{min_runs: 1, max_runs: 1, min_samples: 5, min_sample_s: 0.02, max_warmup_s: 0.2, timeout_s: %s}"
TRAINING = f"""
workload: resnet18
mode: train
axes: {{collectives: [%s]}}
fixed: {{nodes: %s, processes: %s, threads: 1, batch: 2, args.image_size: 32, args.num_classes: 10, data: labelled}}
protocol: {PROTOCOL % 200}
"""
SPLIT = ("compute_s", "communication_s", "exposed_communication_s", "imbalance_s", "input_s")


@pytest.fixture(autouse=True)
def _two_cores(need: Callable[[bool, str], None]) -> None:
    need(len(os.sched_getaffinity(0)) >= 2, "two CPUs, one for each rank")


def train(
    folder: Path, backends: str, options: Sequence[str], run: Callable[..., Any] = subprocess.run, nodes: int = 2
) -> dict[str, Record]:
    """Train over each backend and return the records by backend."""
    study = folder / "study.yaml"
    study.write_text(TRAINING % (backends, nodes, 2 // nodes))
    command = [sys.executable, "-P", "-m", "corewise", "run", str(study), "--store", str(folder / "store"), *options]
    done = run(command)
    assert done.returncode == 0, done.stdout + done.stderr
    result = Store.open(folder / "store", create=False).read_records()
    return {record.params["collectives"]: record for record in result.records}


def run_here(command: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, capture_output=True, text=True, timeout=500)


def check_trained(record: Record, backend: str) -> None:
    """Check that both ranks averaged gradients over this backend; the numerical check fails if they did not."""
    assert record.status == "ok", record.reason
    for run in record.runs:
        assert [rank["collectives_backend"] for rank in run["ranks"]] == [backend] * 2
        for rank in run["ranks"]:
            assert rank["global_batch"] == 4
            assert rank["num_buckets"] > 0
            assert all(rank["metrics"][name] >= 0 for name in SPLIT)
            assert rank["metrics"]["communication_s"] >= rank["metrics"]["exposed_communication_s"] > 0
    assert 0 <= record.metrics["accuracy"] <= 1


def test_each_backend_trains_on_one_node_or_is_refused_with_the_reason(
    tmp_path: Path, need: Callable[[bool, str], None]
) -> None:
    need(shutil.which("mpirun") is not None, "mpirun")
    records = train(tmp_path, "default, gloo, shared, nccl, mpi, horovod", (), run_here, nodes=1)
    check_trained(records["default"], "gloo")
    check_trained(records["gloo"], "gloo")
    check_trained(records["shared"], "shared")
    check_trained(records["mpi"], "mpi")
    for rank in records["mpi"].runs[0]["ranks"]:
        assert rank["mpi_library"]
        assert rank["mpi_threads"] is True
    reasons = {name: records[name].reason for name in ("nccl", "horovod")}
    assert "nccl connects GPUs" in reasons["nccl"]
    assert "horovod is not installed" in reasons["horovod"]
    assert {records[name].status for name in reasons} == {"skipped"}


def test_two_nodes_train_together(tmp_path: Path, need: Callable[[bool, str], None]) -> None:
    need(shutil.which("mpirun.openmpi") is not None, "Open MPI")
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost slots=2\n")
    records = train(tmp_path, "gloo, shared, mpi", ("--on", "openmpi", "--hostfile", str(hosts)), run_here)
    for backend in ("gloo", "shared", "mpi"):
        check_trained(records[backend], backend)
        assert [rank["node"] for rank in records[backend].runs[0]["ranks"]] == [0, 1]


def test_two_hosts_on_a_network_train_together(tmp_path: Path, need: Callable[[bool, str], None]) -> None:
    need_network_hosts(need)
    with run_two_hosts() as hosts:
        hosts.limit("1gbit")
        options = ("--on", "openmpi", "--hostfile", str(hosts.hostfile))
        records = train(tmp_path, "gloo, shared, mpi", options, lambda command: hosts.run(command, timeout_s=500))
    for backend in ("gloo", "shared", "mpi"):
        check_trained(records[backend], backend)
    # 45 MB of gradients leave each host in every step, at 125 MB/s.
    assert records["gloo"].runs[0]["ranks"][0]["metrics"]["communication_s"] > 0.2


# A module whose second rank fails while it is built, or in its fifth forward pass, when all ranks train.
FAULTY = """
import os, signal, time
import torch
def is_second():
    return open("/proc/self/comm").read().strip() == "cw-rank-1"
class Net(torch.nn.Linear):
    num_calls = 0
    def forward(self, x):
        self.num_calls += 1
        if self.num_calls == 5 and is_second():
            {in_forward}
        return super().forward(x)
def make(batch, mode):
    if is_second():
        {in_factory}
    return Net(64, 8), (torch.randn(batch, 64),), torch.randint(8, (batch,))
"""


def run_fault(
    bench: Bench, *, backend: str, timeout_s: int, in_forward: str = "pass", in_factory: str = "pass"
) -> tuple[dict[str, Any], float]:
    """Train with a fault in the second rank; return the record and the seconds that the run took."""
    own = bench.write_factory(FAULTY.format(in_forward=in_forward, in_factory=in_factory))
    study = bench.write_study(
        f"workload: {own}:make\nmode: train\naxes: {{collectives: [{backend}]}}\n"
        f"fixed: {{processes: 2, threads: 1, batch: 4}}\nprotocol: {PROTOCOL % timeout_s}\n"
    )
    started = time.monotonic()
    done = bench.run("run", study, "--store", "store")
    assert done.returncode == 1, done.stdout + done.stderr
    [record] = bench.read_records()
    assert record["status"] == "failed"
    return record, time.monotonic() - started


@pytest.mark.parametrize("backend", ["gloo", "shared", "mpi"])
def test_a_killed_rank_ends_the_others_at_once_and_is_named(backend: str, bench: Bench) -> None:
    record, elapsed_s = run_fault(
        bench, backend=backend, timeout_s=100, in_forward="os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert record["reason"].startswith("rank 1: the rank was killed by SIGKILL")
    assert elapsed_s < 90


@pytest.mark.parametrize("backend", ["gloo", "shared", "mpi"])
def test_a_rank_that_hangs_ends_within_the_limit_with_the_stacks_of_all_ranks(backend: str, bench: Bench) -> None:
    record, _ = run_fault(bench, backend=backend, timeout_s=20, in_forward="os.kill(os.getpid(), signal.SIGSTOP)")
    # Over gloo and MPI, the time limit ends the trial. In shared memory, the other rank notices before.
    assert "rank 1" in record["reason"]
    [run] = record["runs"]
    stacks = [rank["traceback"] for rank in run["ranks"]]
    assert "in step" in stacks[0]
    assert "in forward" in stacks[1]


def test_a_rank_that_never_starts_is_ended_with_its_stack(bench: Bench) -> None:
    record, _ = run_fault(bench, backend="gloo", timeout_s=15, in_factory="time.sleep(3600)")
    [run] = record["runs"]
    assert "in make" in run["ranks"][1]["traceback"]
    assert "no result within 15 s" in record["reason"]
