"""Kernels from a study to a record, on this machine."""

import statistics
import subprocess
import sys
from dataclasses import replace

import pytest

from corewise.spec.trial import NOT_NOW
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


def study_of(workload: str, runtime: str, small: str) -> str:
    return STUDY.replace("WORKLOAD", workload).replace("RUNTIME", runtime).replace("SMALL", small)


@pytest.mark.parametrize(
    ("workload", "runtime", "small"),
    [("stream", "numpy", "args.size_bytes: 800000"), ("gemm", "torch", "args.size: 64")],
)
def test_a_kernels_record_tells_bytes_operations_and_its_check(
    bench: Bench, workload: str, runtime: str, small: str
) -> None:
    pytest.importorskip(runtime)
    study = bench.study(study_of(workload, runtime, small))
    ran = bench.corewise("run", study, "--store", "store")
    assert ran.returncode == 0, ran.stderr
    [record] = bench.records()
    metrics, work = record["metrics"], record["work"]
    assert record["status"] == "ok", record["reason"]
    assert record["params"]["batch"] == 1
    assert metrics["samples_per_step"] == 1
    assert 0 <= metrics["check_error"] < 1e-12
    # Of each run: the medians of two runs on a busy machine may be far from each other.
    steps_per_s = statistics.median(1 / run["metrics"]["step_s"] for run in record["runs"])
    for unit, counted in (("gflop", "flops"), ("gbyte", "bytes")):
        assert metrics[f"{unit}_per_s"] == pytest.approx(work[f"{counted}_per_sample"] * steps_per_s / 1e9)
    assert metrics["best_gbyte_per_s"] > 0
    if workload == "stream":
        assert record["runs"][0]["ranks"][0]["array_bytes"] == 800_000
    shown = bench.corewise("show", "--store", "store")
    assert "GB/s" in shown.stdout
    assert "Gflop/s" in shown.stdout


def test_a_product_that_no_memory_holds_is_skipped_with_what_would_fit(bench: Bench) -> None:
    bench.corewise("run", bench.study(study_of("gemm", "numpy", "args.size: 10000000")), "--store", "store")
    [record] = bench.records()
    assert record["status"] == "skipped"
    assert "gemm needs 2640000067108864 bytes" in record["reason"]
    assert "the largest that fits is size" in record["reason"]


def refused_copy(bench: Bench, kind: str) -> str:
    """A store whose only record says that the trial of `store` was refused by its rank."""
    [record] = Store.open(bench.folder / "store", create=False).records().records
    with Store.open(bench.folder / kind, create=True) as store:
        store.append(replace(record, status="skipped", kind=kind, reason="no room", metrics={}))
    return kind


def test_what_memory_was_short_for_is_tried_again_and_what_cannot_exist_is_not(bench: Bench) -> None:
    study = bench.study(study_of("stream", "numpy", "args.size_bytes: 8000"))
    assert bench.corewise("run", study, "--store", "store").returncode == 0
    for kind, status in ((NOT_NOW, "ok"), ("infeasible", "skipped")):
        again = bench.corewise("run", study, "--store", refused_copy(bench, kind))
        assert again.returncode == 0, again.stderr
        [record] = bench.records(kind)
        assert record["status"] == status


def test_what_a_killed_run_left_is_removed_by_the_next(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = bench.folder / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    code = "import os; from corewise.worker.trial_folder import *; make_trial_folder(); os._exit(0)"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert len(list(temporary.glob("corewise-trial-*"))) == 1
    study = bench.study(study_of("stream", "numpy", "args.size_bytes: 8000"))
    assert bench.corewise("run", study, "--store", "store").returncode == 0
    assert list(temporary.glob("corewise-trial-*")) == []
