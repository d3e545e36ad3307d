"""What ranks did together, on made-up results."""

from dataclasses import replace

import pytest

from corewise.engine.collect import collect_run, record_metrics
from corewise.runtimes.base import Infeasible, NotNow
from corewise.spec.trial import NOT_NOW, Protocol, RankPlacement, RankResult, Trial
from corewise.worker.rank import _failure

TRIAL = Trial(
    trial_id="t",
    params={"mode": "train"},
    protocol=Protocol(min_runs=2, max_runs=2),
    ranks=(RankPlacement((0,)), RankPlacement((1,))),
    env={},
    python=("python",),
    work={"flops_per_sample": 1e9},
)
INFER = replace(TRIAL, params={"mode": "infer"})


def result(rank: int, samples_s: tuple[float, ...], *, independent: bool, **metrics: float) -> RankResult:
    return RankResult(
        status="ok",
        rank=rank,
        samples_s=samples_s,
        samples_per_step=8.0,
        metrics={"window_s": 2.0, "window_samples": 40.0, **metrics},
        facts={"independent": independent},
    )


def test_ranks_in_step_finish_with_the_slowest() -> None:
    run = collect_run(
        TRIAL,
        [
            result(0, (1.0, 2.0, 2.0), independent=False, loss=1.0),
            result(1, (2.0, 1.0, 2.0), independent=False, loss=3.0),
        ],
    )
    assert run.samples_s == (2.0, 2.0, 2.0)
    assert run.metrics["samples_per_s"] == 16 / 2.0
    assert run.metrics["loss"] == 2.0


def test_replicas_count_what_they_completed_in_the_common_window() -> None:
    run = collect_run(INFER, [result(0, (1.0,), independent=True), result(1, (3.0,), independent=True)])
    assert run.samples_s == (1.0, 3.0)
    assert run.metrics["samples_per_s"] == 40 / 2.0 + 40 / 2.0
    assert run.metrics["latency_p50_s"] == 2.0


def test_memory_adds_up_over_ranks_and_other_figures_take_the_worst_rank() -> None:
    ranks = [
        result(0, (1.0,), independent=True, peak_memory_bytes=3.0, check_error=0.1),
        result(1, (1.0,), independent=True, peak_memory_bytes=4.0, check_error=0.3),
    ]
    metrics = collect_run(INFER, ranks).metrics
    assert metrics["peak_memory_bytes"] == 7.0
    assert metrics["check_error"] == 0.3


def test_the_failure_that_explains_the_others_is_the_one_told() -> None:
    run = collect_run(
        TRIAL,
        [
            RankResult(status="failed", rank=0, kind="peer", reason="another rank failed"),
            RankResult(status="failed", rank=1, kind="memory", reason="out of memory"),
        ],
    )
    assert (run.status, run.kind, run.reason) == ("failed", "memory", "rank 1: out of memory")
    assert run.samples_s == ()


def test_a_records_interval_is_over_runs_not_over_steps() -> None:
    runs = [
        collect_run(TRIAL, [result(r, (t,) * 100, independent=False) for r in (0, 1)]) for t in (1.0, 1.1)
    ]
    metrics = record_metrics(TRIAL, runs)
    assert metrics["step_s"] == pytest.approx(1.05)
    assert metrics["step_s_low"] < 0.9  # two values leave Student's t very wide, however many steps each has
    assert metrics["num_runs"] == 2
    assert metrics["gflop_per_s"] == pytest.approx(metrics["samples_per_s"])
    assert metrics["between_process_cv"] > metrics["within_process_cv"]


def test_a_rank_that_found_no_room_is_skipped_and_told_apart_from_what_cannot_exist() -> None:
    kinds = [_failure(0, problem("no room")).kind for problem in (NotNow, Infeasible)]
    assert kinds == [NOT_NOW, "infeasible"]
