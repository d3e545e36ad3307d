"""The figures of messages in a record: latency, bus bandwidth, and the shares of memory and link."""

from collections.abc import Mapping

import pytest

from corewise.machine.ceilings.table import Ceiling, Ceilings
from corewise.measured.parameters import TrialParameters
from corewise.measured.trial import Protocol, RankPlacement, Trial
from corewise.run.plan import _compute_work
from corewise.run.record_builder import derive_workload_metrics
from corewise.run.roofline_metrics import compute_ceiling_metrics

SIZE = 10**9
TRIAD_GBYTE_PER_S = 40.0
CEILINGS = Ceilings(
    runtime="torch",
    version="2",
    host_class="c",
    allocation=((2, 2),),
    hostname="h",
    cpu_model="m",
    measured_at="2026-11-15T10:00:00.000Z",
    took_s=1.0,
    figures=(
        Ceiling(
            operation="triad", dtype="float64", device="cpu", threads=2, placement="compact", nodes=(0,), gpu=None,
            best=TRIAD_GBYTE_PER_S, median=TRIAD_GBYTE_PER_S, num_samples=5, size=2**28,
        ),
    ),
)  # fmt: skip


def make_trial(operation: str, nodes: int = 1) -> Trial:
    params = TrialParameters.from_mapping(
        {
            "workload": "communication",
            "mode": "infer",
            "nodes": nodes,
            "processes": 2 // nodes,
            "threads": 1,
            "args.operation": operation,
            "args.size_bytes": SIZE,
        }
    )
    ranks = (RankPlacement((0,)), RankPlacement((1,)))
    return Trial("t", params, Protocol(), ranks, {}, ("python",), work=_compute_work(params))


def compute_metrics(trial: Trial, step_s: float, **known: float) -> Mapping[str, float]:
    gbyte_per_s = trial.work["bytes_per_sample"] / step_s / 1e9
    # The interval of the step time may have another centre than the bandwidth.
    metrics = {"step_s": 1.1 * step_s, "gbyte_per_s": gbyte_per_s, "samples_per_s": 1 / step_s, **known}
    derived = {**metrics, **derive_workload_metrics(trial, metrics)}
    return {**derived, **compute_ceiling_metrics(trial, derived, CEILINGS)}


def test_a_ping_pong_has_the_time_and_the_bandwidth_of_one_way() -> None:
    metrics = compute_metrics(make_trial("point_to_point"), step_s=0.2)
    assert metrics["latency_s"] == pytest.approx(0.1)
    assert metrics["gbyte_per_s"] == pytest.approx(10.0)
    assert metrics["bus_gbyte_per_s"] == pytest.approx(10.0)


def test_an_allreduce_has_a_share_of_what_memory_allows() -> None:
    metrics = compute_metrics(make_trial("allreduce"), step_s=0.2)
    assert metrics["bus_gbyte_per_s"] == pytest.approx(5.0)
    # Two ranks read and write 1 GB each: 4 GB, which takes 0.1 s.
    assert metrics["fraction_of_ceiling"] == pytest.approx(0.5)
    assert "fraction_of_link" not in metrics


def test_between_nodes_the_link_counts_and_not_the_memory() -> None:
    metrics = compute_metrics(make_trial("allreduce", nodes=2), step_s=0.2, link_gbyte_per_s=12.5)
    assert "fraction_of_ceiling" not in metrics
    assert metrics["fraction_of_link"] == pytest.approx(5.0 / 12.5)


def test_other_workloads_have_none_of_these() -> None:
    stream = TrialParameters.from_mapping({"workload": "stream", "mode": "infer"})
    trial = Trial("t", stream, Protocol(), (RankPlacement((0,)),), {}, ("python",), work=_compute_work(stream))
    assert derive_workload_metrics(trial, {"step_s": 1.0, "gbyte_per_s": 1.0}) == {}
    assert derive_workload_metrics(trial, {}) == {}
