"""Scaling curves of synthetic clusters with known costs: efficiency, type of scaling, parts, cause, prediction."""

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
from tests.analysis.scaling.made_clusters import Cluster, train_on, without_parts
from tests.report.sample_trials import group_of, scaling, trial

from corewise.analysis.scaling.scaling_curves import ScalingCurve, find_scaling_curves
from corewise.analysis.scaling.scaling_loss import LossCause
from corewise.analysis.scaling.step_split import StepPart
from corewise.stats.scaling_model import Scaling

NODES = (1, 2, 4, 8, 16)
SLOW_LINK = Cluster(link_bytes_per_s=4e8, hidden=0.4)


def curve_of(cluster: Cluster, scope: str = "process", nodes: tuple[int, ...] = NODES) -> ScalingCurve:
    [curve] = find_scaling_curves(group_of(*train_on(cluster, nodes, scope=scope)))
    return curve


def name_cause(cluster: Cluster, scope: str = "process") -> LossCause | None:
    loss = curve_of(cluster, scope).loss
    return None if loss is None else loss.cause


def test_efficiency_is_throughput_per_node_over_that_of_one() -> None:
    curve = curve_of(SLOW_LINK)
    assert curve.unit == "nodes"
    assert [point.count for point in curve.points] == list(NODES)
    for point in curve.points:
        assert point.efficiency == pytest.approx(point.rate / (point.count * curve.points[0].rate))
        assert point.efficiency_low <= point.efficiency <= point.efficiency_high
    assert curve.largest.efficiency == pytest.approx(0.51 / 0.798, rel=0.05)


def test_the_base_is_the_smallest_count_if_one_was_not_measured() -> None:
    curve = curve_of(SLOW_LINK, nodes=(4, 8, 16))
    assert curve.base.count == 4
    assert curve.base.efficiency == 1
    assert curve.largest.efficiency == pytest.approx(curve.largest.rate / curve.base.rate / 4)


@pytest.mark.parametrize(
    ("scope", "expected"), [("process", Scaling.WEAK), ("node", Scaling.WEAK), ("global", Scaling.STRONG)]
)
def test_weak_and_strong_scaling_are_distinguished_by_the_samples_of_a_step(scope: str, expected: Scaling) -> None:
    assert curve_of(SLOW_LINK, scope).scaling is expected


def test_weak_and_strong_trials_of_one_study_are_separate_curves() -> None:
    group = group_of(*train_on(SLOW_LINK, NODES), *train_on(SLOW_LINK, NODES, scope="global"))
    curves = find_scaling_curves(group)
    assert {(curve.point["batch_scope"], curve.scaling) for curve in curves} == {
        ("process", Scaling.WEAK),
        ("global", Scaling.STRONG),
    }


def test_the_parts_of_a_step_add_up_to_it() -> None:
    for point in curve_of(SLOW_LINK).points:
        assert point.split is not None
        assert sum(point.split.parts_s.values()) == pytest.approx(point.split.step_s, rel=0.01)
    split = curve_of(SLOW_LINK).largest.split
    assert split is not None
    assert split.hidden_share == pytest.approx(0.4, abs=0.01)


@pytest.mark.parametrize(
    ("cluster", "cause"),
    [
        (SLOW_LINK, LossCause.NETWORK_BANDWIDTH),
        (Cluster(latency_s=3e-4, compute_s=0.1), LossCause.NETWORK_LATENCY),
        (Cluster(slow_rank=0.4), LossCause.IMBALANCE),
        (Cluster(input_growth_s=0.05), LossCause.INPUT),
        (Cluster(compute_growth=0.1), LossCause.COMPUTE),
        # As fast as gloo itself is: the link is not the limit.
        (Cluster(link_bytes_per_s=1e9, compute_s=0.2), LossCause.EXCHANGE),
    ],
)
def test_the_cause_of_lost_scaling_is_named(cluster: Cluster, cause: LossCause) -> None:
    assert name_cause(cluster) is cause


@pytest.mark.parametrize("cluster", [Cluster(), Cluster(link_bytes_per_s=20e9), Cluster(noise=0.5)])
def test_no_cause_is_named_where_little_or_nothing_significant_is_lost(cluster: Cluster) -> None:
    assert name_cause(cluster) is None


def test_the_slowest_rank_is_named_with_its_host() -> None:
    split = curve_of(Cluster(slow_rank=0.4, processes=2)).largest.split
    assert split is not None
    assert split.slowest is not None
    assert (split.slowest.rank, split.slowest.node, split.slowest.host) == (31, 15, "n15")
    assert split.slowest.excess == pytest.approx(0.4, abs=0.05)
    equal = curve_of(SLOW_LINK).largest.split
    assert equal is not None
    assert equal.slowest is None


def test_processes_of_a_node_do_not_blame_the_network() -> None:
    records = []
    for record in train_on(SLOW_LINK, (1, 2, 4)):
        params = {**record.params, "nodes": 1, "processes": record.params["nodes"]}
        records.append(replace(record, params=params))
    [curve] = find_scaling_curves(group_of(*records))
    assert curve.unit == "processes"
    assert curve.loss is not None
    assert curve.loss.cause is LossCause.EXCHANGE


def test_records_without_ranks_say_that_the_cause_was_not_measured() -> None:
    [curve] = find_scaling_curves(group_of(*without_parts(train_on(SLOW_LINK, NODES))))
    assert curve.largest.split is None
    assert curve.loss is not None
    assert curve.loss.cause is LossCause.UNKNOWN


def test_ranks_that_time_no_parts_are_split_by_their_cpu_time() -> None:
    records = []
    for record in train_on(SLOW_LINK, (1, 2)):
        runs = []
        for run in record.runs:
            step_s = run["metrics"]["step_s"]
            cpu = {"wall_s": 10 * step_s, "own_cpu_s": 10 * 0.5, "other_cpu_s": 0.0, "steal_s": 0.0}
            alone = len(run["ranks"]) == 1
            ranks = [{**rank, "metrics": cpu} for rank in run["ranks"]]
            metrics = {"samples_per_s": run["metrics"]["samples_per_s"], "step_s": step_s, **(cpu if alone else {})}
            runs.append({**run, "metrics": metrics, "ranks": ranks})
        records.append(replace(record, runs=tuple(runs)))
    [curve] = find_scaling_curves(group_of(*records))
    split = curve.largest.split
    assert split is not None
    assert split.is_estimated
    assert split.parts_s[StepPart.COMPUTE] == pytest.approx(0.5, rel=0.02)
    assert split.parts_s[StepPart.COMMUNICATION] == pytest.approx(split.step_s - 0.5, rel=0.05)
    assert curve.loss is not None
    assert curve.loss.cause is LossCause.NETWORK_BANDWIDTH


def test_a_kernel_that_counts_all_its_communication_blames_the_network() -> None:
    records = []
    for record in train_on(replace(SLOW_LINK, hidden=0.0), (1, 2, 4)):
        runs = []
        for run in record.runs:
            ranks = [{**rank, "metrics": keep_kernel_parts(rank.get("metrics", {}))} for rank in run["ranks"]]
            runs.append({**run, "metrics": {**run["metrics"], **keep_kernel_parts(run["metrics"])}, "ranks": ranks})
        params = {**record.params, "workload": "cg", "mode": "infer"}
        metrics = {**record.metrics, "communication_s": 0.1}
        records.append(replace(record, params=params, runs=tuple(runs), metrics=metrics, work={}))
    [curve] = find_scaling_curves(group_of(*records))
    assert curve.loss is not None
    assert curve.loss.cause is LossCause.NETWORK


def keep_kernel_parts(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if name in ("compute_s", "communication_s")}


def test_the_largest_count_is_held_out_and_predicted() -> None:
    curve = curve_of(SLOW_LINK)
    assert curve.held_out is not None
    assert abs(curve.held_out.error) < 0.1
    assert curve.held_out.is_covered
    assert [each.count for each in curve.predictions] == [1, 2, 4, 8, 16, 32, 64]
    beyond = curve.predictions[-1]
    assert beyond.low < beyond.rate < beyond.high


def test_strong_scaling_is_predicted_in_samples_per_second() -> None:
    curve = curve_of(Cluster(link_bytes_per_s=4e9), "global")
    for each, point in zip(curve.predictions, curve.points, strict=False):
        assert each.rate == pytest.approx(point.rate, rel=0.06)


def test_two_counts_give_no_model() -> None:
    curve = curve_of(SLOW_LINK, nodes=(1, 2))
    assert curve.predictions == ()
    assert curve.held_out is None
    assert "fewer than 3 counts" in curve.model.reason


def test_gradients_are_counted_from_the_parameters() -> None:
    assert curve_of(SLOW_LINK).gradient_bytes == 4 * 25.6e6
    kernel = [replace(record, work={}) for record in train_on(SLOW_LINK, (1, 2))]
    [curve] = find_scaling_curves(group_of(*kernel))
    assert math.isnan(curve.gradient_bytes)


def test_threads_and_replicas_for_inference_have_no_curve() -> None:
    assert find_scaling_curves(group_of(*scaling())) == []
    replicas = [trial(10.0 * n, params={"processes": n, "mode": "infer"}) for n in (1, 2, 4)]
    assert find_scaling_curves(group_of(*replicas)) == []
