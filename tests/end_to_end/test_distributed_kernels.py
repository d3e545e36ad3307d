"""Distributed kernels from a study to a record: one and two processes, and a rank that is killed."""

import os
import signal
import time
from collections.abc import Callable

import pytest

from tests.end_to_end.conftest import QUICK_PROTOCOL, Bench

pytestmark = pytest.mark.slow
pytest.importorskip("torch")

STUDY = f"""
question: How do kernels scale over processes?
workload: WORKLOAD
mode: infer
runtime: torch
axes: {{processes: [1, 2]}}
fixed: {{threads: 1, SMALL}}
protocol: {QUICK_PROTOCOL}
"""
KERNELS = {
    "distributed_cg": "args.size: 201, args.iterations: 12, args.checkpoint_every: 5",
    "distributed_fft": "args.size: 65536, args.order: natural",
    "distributed_product": "args.size: 96, args.tile: 24",
}


def build_study(workload: str, small: str) -> str:
    return STUDY.replace("WORKLOAD", workload).replace("SMALL", small)


@pytest.mark.parametrize("workload", KERNELS)
def test_one_and_two_processes_solve_the_same_problem(
    bench: Bench, need: Callable[[bool, str], None], workload: str
) -> None:
    need(len(os.sched_getaffinity(0)) >= 2, "two CPUs")
    ran = bench.run("run", bench.write_study(build_study(workload, KERNELS[workload])), "--store", "store")
    assert ran.returncode == 0, ran.stderr
    records = sorted(bench.read_records(), key=lambda record: int(record["params"]["processes"]))
    assert [record["status"] for record in records] == ["ok", "ok"], [record["reason"] for record in records]
    for num_ranks, record in enumerate(records, 1):
        metrics, work = record["metrics"], record["work"]
        assert metrics["samples_per_step"] == pytest.approx(1)
        assert work == records[0]["work"]
        assert metrics["gflop_per_s"] > 0
        assert metrics["compute_s"] > 0
        assert metrics["communication_s"] > 0
        for run in record["runs"]:
            assert len(run["ranks"]) == num_ranks
            assert {rank["independent"] for rank in run["ranks"]} == {False}
            assert {rank["collectives_backend"] for rank in run["ranks"]} == {"none" if num_ranks == 1 else "gloo"}
            if num_ranks == 2:
                assert all(rank["metrics"]["compute_s"] > 0 for rank in run["ranks"])


@pytest.mark.parametrize("workload", ["distributed_cg", "distributed_fft"])
def test_what_a_kernel_exchanges_stays_in_shared_memory(
    bench: Bench, need: Callable[[bool, str], None], workload: str
) -> None:
    need(len(os.sched_getaffinity(0)) >= 2, "two CPUs")
    study = build_study(workload, f"{KERNELS[workload]}, collectives: shared").replace("[1, 2]", "[2]")
    ran = bench.run("run", bench.write_study(study), "--store", "store")
    assert ran.returncode == 0, ran.stderr
    [record] = bench.read_records()
    assert record["status"] == "ok", record["reason"]
    for rank in record["runs"][0]["ranks"]:
        assert rank["collectives_backend"] == "shared"
        assert rank["calls_over_gloo"] == {}


def test_points_that_the_ranks_cannot_share_are_skipped_before_they_start(bench: Bench) -> None:
    study = bench.write_study(build_study("distributed_fft", "args.size: 1001"))
    bench.run("run", study, "--store", "store")
    skipped = [record for record in bench.read_records() if record["status"] == "skipped"]
    assert ["cannot share a signal of 1001 values" in record["reason"] for record in skipped] == [True]


def test_a_killed_rank_is_named_in_the_record_and_the_next_run_measures_again(
    bench: Bench, need: Callable[[bool, str], None]
) -> None:
    need(len(os.sched_getaffinity(0)) >= 2, "two CPUs")
    long_steps = build_study("distributed_cg", "args.size: 2000, args.iterations: 20000").replace("[1, 2]", "[2]")
    study = bench.write_study(long_steps)
    bench.start("run", study, "--store", "store")
    os.kill(wait_for_rank(bench, "cw-rank-1"), signal.SIGKILL)
    began = time.monotonic()
    done = bench.command.wait(120)
    assert time.monotonic() - began < 60
    assert done.returncode == 1, done.stdout
    [record] = bench.read_records()
    assert record["kind"] == "crash"
    assert record["reason"].startswith("rank 1")
    assert "SIGKILL" in record["reason"]


def wait_for_rank(bench: Bench, name: str) -> int:
    """Return the pid of a rank of the bench, once it has begun to exchange messages."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for folder in os.scandir("/proc"):
            try:
                if not folder.name.isdigit():
                    continue
                with open(f"/proc/{folder.name}/comm", encoding="utf-8") as comm:
                    is_rank = comm.read().strip() == name
                with open(f"/proc/{folder.name}/environ", "rb") as environ:
                    is_ours = f"COREWISE_TEST_MARK={bench.mark}".encode() in environ.read()
            except OSError:
                continue
            if is_rank and is_ours:
                time.sleep(1.0)
                return int(folder.name)
        time.sleep(0.01)
    raise AssertionError(f"{name} did not start")
