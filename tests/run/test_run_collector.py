"""Combining the results of ranks into runs and records."""

from dataclasses import replace

import pytest

from corewise.measured.parameters import Mode, TrialParameters
from corewise.measured.runtimes.base import Infeasible, NoEffect, NotNow
from corewise.measured.trial import INFEASIBLE, NO_EFFECT, NOT_NOW, Protocol, RankPlacement, RankResult, Trial
from corewise.measured.worker.rank import _describe_failure
from corewise.run.run_collector import collect_run, compute_record_metrics

TRIAL = Trial(
    trial_id="t",
    params=TrialParameters(mode=Mode.TRAIN),
    protocol=Protocol(min_runs=2, max_runs=2),
    ranks=(RankPlacement((0,)), RankPlacement((1,))),
    env={},
    python=("python",),
    work={"flops_per_sample": 1e9},
)
INFER = replace(TRIAL, params=TrialParameters(mode=Mode.INFER))


def result(rank: int, samples_s: tuple[float, ...], *, independent: bool, **metrics: float) -> RankResult:
    return RankResult(
        status="ok",
        rank=rank,
        samples_s=samples_s,
        samples_per_step=8.0,
        metrics={"window_s": 2.0, "window_samples": 40.0, **metrics},
        facts={"independent": independent},
    )


def test_synchronous_ranks_finish_with_the_slowest() -> None:
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


def test_replicas_count_the_samples_of_the_common_window() -> None:
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


def test_the_root_cause_is_reported() -> None:
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
    runs = [collect_run(TRIAL, [result(r, (t,) * 100, independent=False) for r in (0, 1)]) for t in (1.0, 1.1)]
    metrics = compute_record_metrics(TRIAL, runs)
    assert metrics["step_s"] == pytest.approx(1.05)
    # With two values, Student's t gives a wide interval, however many steps each value has.
    assert metrics["step_s_low"] < 0.9
    assert metrics["num_runs"] == 2
    assert metrics["gflop_per_s"] == pytest.approx(metrics["samples_per_s"])
    assert metrics["between_process_cv"] > metrics["within_process_cv"]


def test_refusals_keep_their_category() -> None:
    categories = [_describe_failure(0, problem("no room")).kind for problem in (NotNow, Infeasible, NoEffect)]
    assert categories == [NOT_NOW, INFEASIBLE, NO_EFFECT]


def test_a_lost_connection_does_not_hide_the_failure_that_caused_it() -> None:
    lost = _describe_failure(0, RuntimeError("[gloo] Connection closed by peer"))
    broken = _describe_failure(1, RuntimeError("the operator is not implemented"))
    assert (lost.kind, lost.lost_peer, broken.kind, broken.lost_peer) == ("error", True, "error", False)
    assert collect_run(TRIAL, [lost, broken]).reason.endswith("the operator is not implemented")


def test_a_fact_named_like_a_figure_of_the_rank_is_dropped() -> None:
    alone = replace(TRIAL, ranks=TRIAL.ranks[:1])
    facts = {"samples_s": "soon", "metrics": [], "independent": True, "num_threads": 2}
    run = collect_run(alone, [replace(result(0, (1.0,), independent=True), facts=facts)])
    assert set(run.ranks[0]) & {"samples_s", "metrics", "num_threads"} == {"num_threads"}
