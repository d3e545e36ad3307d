"""The rates of bytes and operations in the record of a kernel."""

from dataclasses import replace

import pytest

from corewise.measured.parameters import DType, Mode, TrialParameters
from corewise.measured.trial import Protocol, RankPlacement, RankResult, Trial
from corewise.run.plan import _compute_work
from corewise.run.run_collector import collect_run, compute_record_metrics, is_traffic_known
from corewise.study.trial_run import TrialRun

TRIAL = Trial(
    trial_id="t",
    params=TrialParameters(mode=Mode.INFER),
    protocol=Protocol(min_runs=2, max_runs=2),
    ranks=(RankPlacement((0,)),),
    env={},
    python=("python",),
    work={"flops_per_sample": 2e9, "bytes_per_sample": 24e9, "num_parameters": 0.0},
)


WINDOW = {"window_s": 1.0, "window_samples": 1.0}


def run(*samples_s: float) -> TrialRun:
    window = {"window_s": 1.0, "window_samples": 1 / samples_s[0]}
    result = RankResult(status="ok", rank=0, samples_s=samples_s, samples_per_step=1.0, metrics=window)
    return collect_run(TRIAL, [result])


def test_bandwidth_and_flop_rate_follow_from_work_and_rate() -> None:
    metrics = compute_record_metrics(TRIAL, [run(0.5, 0.5, 0.4), run(0.5, 0.5, 0.25)])
    assert metrics["samples_per_s"] == 2.0
    assert metrics["gflop_per_s"] == 4.0
    assert metrics["gbyte_per_s"] == 48.0
    assert metrics["best_gbyte_per_s"] == 24 / 0.25


def test_several_ranks_have_no_best_bandwidth() -> None:
    both = replace(TRIAL, ranks=(RankPlacement((0,)), RankPlacement((1,))))
    metrics = compute_record_metrics(both, [run(0.5, 0.5), run(0.5, 0.5)])
    assert metrics["gbyte_per_s"] == 48.0
    assert "best_gbyte_per_s" not in metrics


def test_a_model_with_weights_has_no_bandwidth() -> None:
    model = replace(TRIAL, work={**TRIAL.work, "num_parameters": 1e6})
    assert "gbyte_per_s" not in compute_record_metrics(model, [run(0.5), run(0.5)])
    assert not is_traffic_known({})


@pytest.mark.parametrize(
    ("workload", "dtype", "num_bytes"),
    [("gemm", "float64", 24), ("gemm", "float32", 12), ("gemm", "int8", 6), ("matmul", "bfloat16", 6)],
)
def test_the_plan_counts_the_bytes_of_the_dtype(workload: str, dtype: str, num_bytes: int) -> None:
    params = TrialParameters(workload, Mode.INFER, dtype=DType(dtype), arguments={"size": 100})
    counted = _compute_work(params)
    assert counted["bytes_per_sample"] == num_bytes * 100**2
    assert counted["flops_per_sample"] == 2 * 100**3


def test_one_delayed_step_does_not_lower_the_rates() -> None:
    result = RankResult(
        status="ok",
        rank=0,
        samples_s=(0.5, 0.5, 0.5, 7.7),
        samples_per_step=1.0,
        metrics={"window_s": 9.2, "window_samples": 4.0},
    )
    metrics = compute_record_metrics(TRIAL, [collect_run(TRIAL, [result])] * 2)
    # The throughput includes the delayed step.
    assert metrics["samples_per_s"] == pytest.approx(4 / 9.2)
    assert metrics["gflop_per_s"] == 4.0
    assert metrics["gbyte_per_s"] == 48.0


def test_the_rates_of_replicas_are_those_of_their_medians() -> None:
    both = replace(TRIAL, ranks=(RankPlacement((0,)), RankPlacement((1,))))
    results = [
        RankResult("ok", rank, samples_s=samples_s, samples_per_step=1.0, metrics={**WINDOW})
        for rank, samples_s in enumerate([(0.5,) * 9, (1.0,) * 3])
    ]
    metrics = compute_record_metrics(both, [collect_run(both, results)] * 2)
    assert metrics["gbyte_per_s"] == pytest.approx(24 * (1 / 0.5 + 1 / 1.0))


def test_a_models_flops_follow_its_throughput() -> None:
    model = replace(TRIAL, work={**TRIAL.work, "num_parameters": 1e6})
    metrics = compute_record_metrics(model, [run(0.5, 0.1, 0.1), run(0.5, 0.1, 0.1)])
    assert metrics["gflop_per_s"] == pytest.approx(2 * metrics["samples_per_s"])
