"""Kernels from a study to a record, on this machine."""

import statistics
import subprocess
import sys
from dataclasses import replace

import pytest

from corewise.measured.trial import NOT_NOW
from corewise.store.store import Store
from tests.end_to_end.conftest import QUICK_PROTOCOL, Bench

STUDY = f"""
question: Do kernels run here?
workload: WORKLOAD
mode: infer
runtime: RUNTIME
fixed: {{threads: 1, dtype: float64, SMALL}}
protocol: {QUICK_PROTOCOL}
"""


def build_study(workload: str, runtime: str, small: str) -> str:
    return STUDY.replace("WORKLOAD", workload).replace("RUNTIME", runtime).replace("SMALL", small)


@pytest.mark.parametrize(
    ("workload", "runtime", "small"),
    [("stream", "numpy", "args.size_bytes: 800000"), ("gemm", "torch", "args.size: 64")],
)
def test_the_record_of_a_kernel_has_rates_and_its_check(bench: Bench, workload: str, runtime: str, small: str) -> None:
    pytest.importorskip(runtime)
    study = bench.write_study(build_study(workload, runtime, small))
    ran = bench.run("run", study, "--store", "store")
    assert ran.returncode == 0, ran.stderr
    [record] = bench.read_records()
    metrics, work = record["metrics"], record["work"]
    assert record["status"] == "ok", record["reason"]
    assert record["params"]["batch"] == 1
    assert metrics["samples_per_step"] == 1
    assert 0 <= metrics["check_error"] < 1e-12
    # The rate is computed per run, since the medians of two runs on a busy machine may differ a lot.
    steps_per_s = statistics.median(1 / run["metrics"]["step_s"] for run in record["runs"])
    for unit, counted in (("gflop", "flops"), ("gbyte", "bytes")):
        assert metrics[f"{unit}_per_s"] == pytest.approx(work[f"{counted}_per_sample"] * steps_per_s / 1e9)
    assert metrics["best_gbyte_per_s"] > 0
    if workload == "stream":
        assert record["runs"][0]["ranks"][0]["array_bytes"] == 800_000
    shown = bench.run("show", "--store", "store")
    assert "GB/s" in shown.stdout
    assert "Gflop/s" in shown.stdout


def test_a_product_too_large_for_memory_is_skipped_with_the_largest_size(bench: Bench) -> None:
    bench.run("run", bench.write_study(build_study("gemm", "numpy", "args.size: 10000000")), "--store", "store")
    [record] = bench.read_records()
    assert record["status"] == "skipped"
    assert "gemm needs 2640000067108864 bytes" in record["reason"]
    assert "the largest that fits is size" in record["reason"]


def write_refused_store(bench: Bench, category: str) -> str:
    """Create a store whose only record says that the rank refused the trial of `store`."""
    [record] = Store.open(bench.folder / "store", create=False).read_records().records
    with Store.open(bench.folder / category, create=True) as store:
        store.append(replace(record, status="skipped", kind=category, reason="no room", metrics={}))
    return category


@pytest.mark.slow
def test_a_trial_without_enough_memory_is_retried_and_an_infeasible_one_is_not(bench: Bench) -> None:
    study = bench.write_study(build_study("stream", "numpy", "args.size_bytes: 8000"))
    assert bench.run("run", study, "--store", "store").returncode == 0
    # A study whose trials were all skipped measures nothing, which is exit code 1.
    for category, status, code in ((NOT_NOW, "ok", 0), ("infeasible", "skipped", 1)):
        again = bench.run("run", study, "--store", write_refused_store(bench, category))
        assert again.returncode == code, again.stderr
        [record] = bench.read_records(category)
        assert record["status"] == status


@pytest.mark.slow
def test_leftovers_of_a_killed_run_are_removed_by_the_next(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = bench.folder / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    code = "import os; from corewise.measured.worker.zygote import *; create_rendezvous_folder(); os._exit(0)"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert len(list(temporary.glob("corewise-trial-*"))) == 1
    study = bench.write_study(build_study("stream", "numpy", "args.size_bytes: 8000"))
    assert bench.run("run", study, "--store", "store").returncode == 0
    assert list(temporary.glob("corewise-trial-*")) == []
