"""How much of the attainable a trial reaches, on made-up ceilings."""

from collections.abc import Mapping
from typing import Any

import pytest

from corewise.engine.roofline import ceiling_metrics, rate_format
from corewise.machine.ceilings import Ceiling, Ceilings
from corewise.spec.trial import Protocol, RankPlacement, Trial

PARAMS: dict[str, Any] = {
    "workload": "stream", "mode": "infer", "device": "cpu", "dtype": "float64", "processes": 1, "threads": 2,
    "placement": "compact", "float32_precision": "default",
}  # fmt: skip


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
    assert found == {"fraction_of_ceiling": 0.5, "memory_bound": 1.0, "ceiling_gbyte_per_s": 20.0}


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


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"workload": "gemm", "dtype": "float32"}, "float32"),
        ({"workload": "gemm", "dtype": "float32", "float32_precision": "bf16"}, "bfloat16"),
        ({"workload": "gemm", "dtype": "float32", "float32_precision": "tf32", "device": "cuda"}, "tf32"),
        ({"workload": "resnet50", "dtype": "float32", "device": "cuda"}, "tf32"),
        ({"workload": "resnet50", "dtype": "float32"}, "float32"),
        ({"workload": "gemm", "dtype": "float32", "device": "cuda"}, "float32"),
        ({"workload": "gemm", "dtype": "int8"}, "int8"),
    ],
)
def test_the_format_whose_rate_bounds_a_trial(params: dict[str, Any], expected: str) -> None:
    assert rate_format(params) == expected
