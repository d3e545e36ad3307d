"""How much of the attainable a trial reaches, on made-up ceilings."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from corewise.engine.roofline import ABOVE_NOTE, BUSY_NOTE, ceiling_metrics, ceiling_notes
from corewise.machine.ceilings import Ceiling, Ceilings
from corewise.machine.topology import Cache
from corewise.spec.record import IN_CACHE_NOTE
from corewise.spec.trial import Protocol, RankPlacement, Trial

PARAMS: dict[str, Any] = {
    "workload": "stream", "mode": "infer", "device": "cpu", "dtype": "float64", "processes": 1, "threads": 2,
    "placement": "compact", "float32_precision": "default",
}  # fmt: skip


CACHES = [Cache(2, "Unified", 2**20, (n,)) for n in range(4)] + [Cache(3, "Unified", 2**25, (0, 1, 2, 3))]


def figure(kind: str, dtype: str, threads: int, best: float) -> Ceiling:
    return Ceiling(
        kind=kind, dtype=dtype, device="cpu", threads=threads, placement="compact", nodes=(0,), gpu=None,
        best=best, median=best, num_samples=5, size=2**28,
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
        figure(kind, dtype, threads, rate * threads)
        for threads in (1, 2, 4)
        for kind, dtype, rate in (
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
    return Trial("t", values, Protocol(), ranks, {}, ("python",), work)


def test_a_stream_is_set_against_the_bandwidth() -> None:
    work = {"flops_per_sample": 2e8, "bytes_per_sample": 2.4e9}
    found = ceiling_metrics(trial(work), {"samples_per_s": 5.0}, CEILINGS)
    assert found["fraction_of_ceiling"] == pytest.approx(12.0 / 20.0)
    assert found["memory_bound"] == 1.0
    assert found["ceiling_gbyte_per_s"] == 20.0
    assert found["flops_per_byte"] == pytest.approx(1 / 12)


def test_a_copy_has_no_flops_and_a_fraction_all_the_same() -> None:
    work = {"flops_per_sample": 0.0, "bytes_per_sample": 1e9}
    found = ceiling_metrics(trial(work), {"samples_per_s": 10.0}, CEILINGS)
    told = {"fraction_of_ceiling": 0.5, "memory_bound": 1.0, "ceiling_gbyte_per_s": 20.0}
    when = datetime(2026, 11, 15, 10, tzinfo=UTC).timestamp()
    assert found == {**told, "ceilings_busy": 0.0, "ceilings_measured_at": when}


def test_the_fraction_is_that_of_the_rates_in_the_record() -> None:
    work = {"flops_per_sample": 2e8, "bytes_per_sample": 2.4e9}
    held_up = {
        "samples_per_s": 1.0,
        "gbyte_per_s": 12.0,
        "gflop_per_s": 1.0,
    }  # a step was held up, not the median
    found = ceiling_metrics(trial(work), held_up, CEILINGS)
    assert found["fraction_of_ceiling"] == pytest.approx(12.0 / 20.0)
    product = {"flops_per_sample": 1e10, "bytes_per_sample": 0.0}
    found = ceiling_metrics(trial(product), {"samples_per_s": 1.0, "gflop_per_s": 40.0}, CEILINGS)
    assert found["fraction_of_ceiling"] == pytest.approx(40.0 / 100.0)


def test_a_record_knows_that_its_ceilings_are_of_a_busy_machine() -> None:
    work = {"flops_per_sample": 0.0, "bytes_per_sample": 1e9}
    figures = tuple(replace(each, is_busy=each.threads == 2) for each in CEILINGS.figures)
    found = ceiling_metrics(trial(work), {"samples_per_s": 10.0}, replace(CEILINGS, figures=figures))
    assert found["ceilings_busy"] == 1.0
    assert BUSY_NOTE in ceiling_notes(trial(work), found, CACHES)
    quiet = ceiling_metrics(trial(work), {"samples_per_s": 10.0}, CEILINGS)
    assert ceiling_notes(trial(work), quiet, CACHES) == []


def test_a_date_that_is_none_is_left_out() -> None:
    work = {"flops_per_sample": 0.0, "bytes_per_sample": 1e9}
    found = ceiling_metrics(trial(work), {"samples_per_s": 10.0}, replace(CEILINGS, measured_at="lately"))
    assert "ceilings_measured_at" not in found
    assert found["fraction_of_ceiling"] == 0.5


@pytest.mark.parametrize(
    ("size_bytes", "num_ranks", "is_in_cache"),
    [(2**20, 1, True), (2**24, 1, False), (10 * 2**20, 1, True), (10 * 2**20, 2, False)],
)
def test_data_that_fit_the_cache_are_told_of(size_bytes: int, num_ranks: int, is_in_cache: bool) -> None:
    work = {"flops_per_sample": size_bytes / 4, "bytes_per_sample": 3.0 * size_bytes}
    params: dict[str, Any] = {"args.size_bytes": size_bytes, "args.operation": "triad"}
    made = trial(work, num_ranks=num_ranks, **params)
    metrics = {"samples_per_s": 80e9 / work["bytes_per_sample"], "samples_per_step": float(num_ranks)}
    metrics |= ceiling_metrics(made, metrics, CEILINGS)
    assert ceiling_notes(made, metrics, CACHES) == [IN_CACHE_NOTE if is_in_cache else ABOVE_NOTE]


def test_a_step_that_passes_over_small_data_many_times_is_in_the_cache() -> None:
    params: dict[str, Any] = {"workload": "cg", "args.size": 512, "args.iterations": 500}
    work = {"flops_per_sample": 2 * 512**2 * 500.0, "bytes_per_sample": 8 * 512**2 * 500.0}
    assert ceiling_notes(trial(work, **params), {"memory_bound": 1.0}, CACHES) == [IN_CACHE_NOTE]
    large = {**params, "args.size": 8192}
    assert ceiling_notes(trial(work, **large), {"memory_bound": 1.0}, CACHES) == []


def test_what_computing_limits_or_a_gpu_ran_is_not_said_to_fit_a_cache() -> None:
    work = {"flops_per_sample": 1e9, "bytes_per_sample": 1e6}
    assert ceiling_notes(trial(work, workload="gemm"), {"memory_bound": 0.0}, CACHES) == []
    assert ceiling_notes(trial(work, device="cuda"), {"memory_bound": 1.0}, CACHES) == []
    assert ceiling_notes(trial(work), {"memory_bound": 1.0}, []) == []  # no cache is known


def test_a_product_is_set_against_the_peak_of_its_format() -> None:
    work = {"flops_per_sample": 1e10, "bytes_per_sample": 1e7}
    for dtype, expected in (("float64", 0.4), ("float32", 0.2), ("bfloat16", 0.1)):
        found = ceiling_metrics(trial(work, workload="gemm", dtype=dtype), {"samples_per_s": 4.0}, CEILINGS)
        assert found["fraction_of_ceiling"] == pytest.approx(expected)
        assert found["memory_bound"] == 0.0


def test_all_processes_together_are_set_against_all_their_threads() -> None:
    work = {"flops_per_sample": 1e10, "bytes_per_sample": 1e7}
    found = ceiling_metrics(trial(work, num_ranks=2, workload="gemm"), {"samples_per_s": 4.0}, CEILINGS)
    assert found["ceiling_gflop_per_s"] == 200.0


def test_a_model_in_a_short_format_moves_fewer_bytes_than_its_work_counts() -> None:
    work = {"flops_per_sample": 1e9, "bytes_per_sample": 4e8, "num_parameters": 0.0}
    by_dtype = {
        dtype: ceiling_metrics(
            trial(work, workload="resnet50", dtype=dtype), {"samples_per_s": 1.0}, CEILINGS
        )
        for dtype in ("float32", "bfloat16")
    }
    assert by_dtype["float32"]["flops_per_byte"] == pytest.approx(2.5)
    assert by_dtype["bfloat16"]["flops_per_byte"] == pytest.approx(5.0)


def test_a_models_weights_are_read_once_a_step_by_each_process() -> None:
    work = {"flops_per_sample": 1e9, "bytes_per_sample": 1e8, "num_parameters": 1e8}
    small, large = (
        ceiling_metrics(
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
    assert ceiling_metrics(trial(work), {"samples_per_s": 1.0}, CEILINGS) == {}
    known = {"flops_per_sample": 1.0, "bytes_per_sample": 1.0}
    assert ceiling_metrics(trial(known), {"samples_per_s": 1.0}, None) == {}
    assert ceiling_metrics(trial(known), {}, CEILINGS) == {}
    assert (
        ceiling_metrics(trial(known, workload="gemm", dtype="int8"), {"samples_per_s": 1.0}, CEILINGS) == {}
    )


@pytest.mark.parametrize("workload", ["convolution", "matrix_product", "lstm_cell", "matmul", "gemm"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_the_bytes_of_kernels_and_primitives_are_counted_in_their_format_already(
    workload: str, dtype: str
) -> None:
    work = {"flops_per_sample": 1e9, "bytes_per_sample": 1e9}
    found = ceiling_metrics(trial(work, workload=workload, dtype=dtype), {"samples_per_s": 10.0}, CEILINGS)
    assert found["flops_per_byte"] == 1.0
    assert found["fraction_of_ceiling"] == pytest.approx(10.0 / 20.0)  # GB/s
