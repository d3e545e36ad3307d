"""Kernels from a study to a record, on this machine."""

import pytest

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
    for unit, counted in (("gflop", "flops"), ("gbyte", "bytes")):
        assert metrics[f"{unit}_per_s"] == pytest.approx(
            work[f"{counted}_per_sample"] * metrics["samples_per_s"] / 1e9
        )
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
    assert "gemm needs 2400000000000000 bytes" in record["reason"]
    assert "the largest that fits is size" in record["reason"]
