"""The fraction of the ceilings that a trial reaches."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from corewise.machine.ceilings.table import Ceiling, Ceilings
from corewise.measured.cache_sizes import Cache
from corewise.measured.parameters import TrialParameters
from corewise.measured.trial import Protocol, RankPlacement, Trial
from corewise.run.roofline_metrics import ABOVE_NOTE, BUSY_NOTE, compute_ceiling_metrics, list_ceiling_notes
from corewise.study.record import IN_CACHE_NOTE

PARAMS: dict[str, Any] = {
    "workload": "stream", "mode": "infer", "device": "cpu", "dtype": "float64", "processes": 1, "threads": 2,
    "placement": "compact", "float32_precision": "default",
}  # fmt: skip


CACHES = [Cache(2, "Unified", 2**20, (n,)) for n in range(4)] + [Cache(3, "Unified", 2**25, (0, 1, 2, 3))]


def figure(operation: str, dtype: str, threads: int, best: float) -> Ceiling:
    return Ceiling(
        operation=operation, dtype=dtype, device="cpu", threads=threads, placement="compact", nodes=(0,),
        gpu=None, best=best, median=best, num_samples=5, size=2**28,
    )  # fmt: skip


CEILINGS = Ceilings(
    runtime="torch",
    version="2",
    host_class="c",
    allocation=((4, 4),),
    hostname="h",
    cpu_model="m",
    measured_at="2026-11-15T10:00:00.000Z",
    took_s=1.0,
    figures=tuple(
        figure(operation, dtype, threads, rate * threads)
        for threads in (1, 2, 4)
        for operation, dtype, rate in (
            ("triad", "float64", 10.0),
            ("product", "float64", 50.0),
            ("product", "float32", 100.0),
            ("product", "bfloat16", 200.0),
        )
    ),
)


def trial(work: Mapping[str, float], num_ranks: int = 1, **params: Any) -> Trial:
    values = {**PARAMS, **params, "processes": num_ranks}
    threads = int(values["threads"])
    ranks = tuple(RankPlacement(tuple(range(r * threads, (r + 1) * threads))) for r in range(num_ranks))
    return Trial("t", TrialParameters.from_mapping(values), Protocol(), ranks, {}, ("python",), work)


def test_stream_is_compared_with_the_bandwidth() -> None:
    work = {"flops_per_sample": 2e8, "bytes_per_sample": 2.4e9}
    found = compute_ceiling_metrics(trial(work), {"samples_per_s": 5.0}, CEILINGS)
    assert found["fraction_of_ceiling"] == pytest.approx(12.0 / 20.0)
    assert found["memory_bound"] == 1.0
    assert found["ceiling_gbyte_per_s"] == 20.0
    assert found["flops_per_byte"] == pytest.approx(1 / 12)


def test_a_copy_without_flops_has_a_fraction() -> None:
    work = {"flops_per_sample": 0.0, "bytes_per_sample": 1e9}
    found = compute_ceiling_metrics(trial(work), {"samples_per_s": 10.0}, CEILINGS)
    expected = {"fraction_of_ceiling": 0.5, "memory_bound": 1.0, "ceiling_gbyte_per_s": 20.0}
    when = datetime(2026, 11, 15, 10, tzinfo=UTC).timestamp()
    assert found == {**expected, "ceilings_busy": 0.0, "ceilings_measured_at": when}


def test_the_fraction_uses_the_rates_of_the_record() -> None:
    work = {"flops_per_sample": 2e8, "bytes_per_sample": 2.4e9}
    # One step was delayed, but not the median step.
    delayed = {"samples_per_s": 1.0, "gbyte_per_s": 12.0, "gflop_per_s": 1.0}
    found = compute_ceiling_metrics(trial(work), delayed, CEILINGS)
    assert found["fraction_of_ceiling"] == pytest.approx(12.0 / 20.0)
    product = {"flops_per_sample": 1e10, "bytes_per_sample": 0.0}
    found = compute_ceiling_metrics(trial(product), {"samples_per_s": 1.0, "gflop_per_s": 40.0}, CEILINGS)
    assert found["fraction_of_ceiling"] == pytest.approx(40.0 / 100.0)


def test_ceilings_of_a_busy_machine_are_noted() -> None:
    work = {"flops_per_sample": 0.0, "bytes_per_sample": 1e9}
    figures = tuple(replace(each, is_busy=each.threads == 2) for each in CEILINGS.figures)
    found = compute_ceiling_metrics(trial(work), {"samples_per_s": 10.0}, replace(CEILINGS, figures=figures))
    assert found["ceilings_busy"] == 1.0
    assert BUSY_NOTE in list_ceiling_notes(trial(work), found, CACHES)
    quiet = compute_ceiling_metrics(trial(work), {"samples_per_s": 10.0}, CEILINGS)
    assert list_ceiling_notes(trial(work), quiet, CACHES) == []


def test_an_invalid_time_stamp_is_ignored() -> None:
    work = {"flops_per_sample": 0.0, "bytes_per_sample": 1e9}
    found = compute_ceiling_metrics(trial(work), {"samples_per_s": 10.0}, replace(CEILINGS, measured_at="lately"))
    assert "ceilings_measured_at" not in found
    assert found["fraction_of_ceiling"] == 0.5


@pytest.mark.parametrize(
    ("size_bytes", "num_ranks", "is_in_cache"),
    [(2**20, 1, True), (2**24, 1, False), (10 * 2**20, 1, True), (10 * 2**20, 2, False)],
)
def test_data_that_fit_in_the_cache_are_noted(size_bytes: int, num_ranks: int, is_in_cache: bool) -> None:
    work = {"flops_per_sample": size_bytes / 4, "bytes_per_sample": 3.0 * size_bytes}
    params: dict[str, Any] = {"args.size_bytes": size_bytes, "args.operation": "triad"}
    made = trial(work, num_ranks=num_ranks, **params)
    metrics = {"samples_per_s": 80e9 / work["bytes_per_sample"], "samples_per_step": float(num_ranks)}
    metrics |= compute_ceiling_metrics(made, metrics, CEILINGS)
    assert list_ceiling_notes(made, metrics, CACHES) == [IN_CACHE_NOTE if is_in_cache else ABOVE_NOTE]


def test_a_kernel_with_many_passes_over_small_data_is_in_the_cache() -> None:
    params: dict[str, Any] = {"workload": "cg", "args.size": 512, "args.iterations": 500}
    work = {"flops_per_sample": 2 * 512**2 * 500.0, "bytes_per_sample": 8 * 512**2 * 500.0}
    assert list_ceiling_notes(trial(work, **params), {"memory_bound": 1.0}, CACHES) == [IN_CACHE_NOTE]
    large = {**params, "args.size": 8192}
    assert list_ceiling_notes(trial(work, **large), {"memory_bound": 1.0}, CACHES) == []


def test_compute_bound_and_gpu_trials_get_no_cache_note() -> None:
    work = {"flops_per_sample": 1e9, "bytes_per_sample": 1e6}
    assert list_ceiling_notes(trial(work, workload="gemm"), {"memory_bound": 0.0}, CACHES) == []
    assert list_ceiling_notes(trial(work, device="cuda"), {"memory_bound": 1.0}, CACHES) == []
    # No cache is known.
    assert list_ceiling_notes(trial(work), {"memory_bound": 1.0}, []) == []


def test_a_product_is_compared_with_the_peak_of_its_dtype() -> None:
    work = {"flops_per_sample": 1e10, "bytes_per_sample": 1e7}
    for dtype, expected in (("float64", 0.4), ("float32", 0.2), ("bfloat16", 0.1)):
        found = compute_ceiling_metrics(trial(work, workload="gemm", dtype=dtype), {"samples_per_s": 4.0}, CEILINGS)
        assert found["fraction_of_ceiling"] == pytest.approx(expected)
        assert found["memory_bound"] == 0.0


def test_all_processes_are_compared_with_the_ceiling_of_all_threads() -> None:
    work = {"flops_per_sample": 1e10, "bytes_per_sample": 1e7}
    found = compute_ceiling_metrics(trial(work, num_ranks=2, workload="gemm"), {"samples_per_s": 4.0}, CEILINGS)
    assert found["ceiling_gflop_per_s"] == 200.0


def test_a_model_in_a_narrow_dtype_moves_fewer_bytes() -> None:
    work = {"flops_per_sample": 1e9, "bytes_per_sample": 4e8, "num_parameters": 0.0}
    by_dtype = {
        dtype: compute_ceiling_metrics(trial(work, workload="resnet50", dtype=dtype), {"samples_per_s": 1.0}, CEILINGS)
        for dtype in ("float32", "bfloat16")
    }
    assert by_dtype["float32"]["flops_per_byte"] == pytest.approx(2.5)
    assert by_dtype["bfloat16"]["flops_per_byte"] == pytest.approx(5.0)


def test_each_process_reads_the_weights_once_per_step() -> None:
    work = {"flops_per_sample": 1e9, "bytes_per_sample": 1e8, "num_parameters": 1e8}
    small, large = (
        compute_ceiling_metrics(
            trial(work, workload="resnet50", dtype="float32"),
            {"samples_per_s": 1.0, "samples_per_step": batch},
            CEILINGS,
        )["flops_per_byte"]
        for batch in (1.0, 4.0)
    )
    assert small == pytest.approx(1e9 / 5e8)
    assert large == pytest.approx(1e9 / 2e8)


@pytest.mark.parametrize("work", [{}, {"flops_per_sample": 0.0, "bytes_per_sample": 0.0}])
def test_unknown_work_or_ceilings_give_no_metric(work: Mapping[str, float]) -> None:
    assert compute_ceiling_metrics(trial(work), {"samples_per_s": 1.0}, CEILINGS) == {}
    known = {"flops_per_sample": 1.0, "bytes_per_sample": 1.0}
    assert compute_ceiling_metrics(trial(known), {"samples_per_s": 1.0}, None) == {}
    assert compute_ceiling_metrics(trial(known), {}, CEILINGS) == {}
    assert compute_ceiling_metrics(trial(known, workload="gemm", dtype="int8"), {"samples_per_s": 1.0}, CEILINGS) == {}


@pytest.mark.parametrize("workload", ["convolution", "matrix_product", "lstm_cell", "matmul", "gemm"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_bytes_of_kernels_and_primitives_are_already_counted_in_their_dtype(workload: str, dtype: str) -> None:
    work = {"flops_per_sample": 1e9, "bytes_per_sample": 1e9}
    found = compute_ceiling_metrics(trial(work, workload=workload, dtype=dtype), {"samples_per_s": 10.0}, CEILINGS)
    assert found["flops_per_byte"] == 1.0
    assert found["fraction_of_ceiling"] == pytest.approx(10.0 / 20.0)
