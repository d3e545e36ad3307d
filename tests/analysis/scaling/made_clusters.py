"""Synthetic records of data-parallel training on several nodes, whose ranks carry the parts of their steps."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tests.report.sample_trials import trial

from corewise.study.record import Record

# ResNet-50 with float32 gradients.
NUM_PARAMETERS = 25.6e6
SAMPLES = 32


@dataclass(frozen=True)
class Cluster:
    """A cluster with known costs, in seconds unless named otherwise.

    Attributes:
        hidden: the fraction of the communication that compute hides.
        slow_rank: the last rank computes this much more than the others.
        compute_growth: by how much compute grows from one node to the next, as a fraction.
    """

    compute_s: float = 0.5
    link_bytes_per_s: float = math.inf
    latency_s: float = 0.0
    hidden: float = 0.0
    slow_rank: float = 0.0
    input_growth_s: float = 0.0
    compute_growth: float = 0.0
    processes: int = 1
    noise: float = 0.005


def train_on(cluster: Cluster, nodes: Sequence[int], *, scope: str = "process", **changes: Any) -> list[Record]:
    """Build the records of training on these numbers of nodes."""
    return [_train_on(cluster, n, scope, **changes) for n in nodes]


def without_parts(records: Sequence[Record]) -> list[Record]:
    """Return the records without figures of ranks, as records of other programs are."""
    return [replace(record, runs=tuple({**run, "ranks": []} for run in record.runs)) for record in records]


def _train_on(cluster: Cluster, nodes: int, scope: str, **changes: Any) -> Record:
    generator = np.random.default_rng(nodes)
    num_ranks = nodes * cluster.processes
    share = 1 / num_ranks if scope == "global" else 1.0
    communication_s = 0.0
    if nodes > 1:
        sent = 2 * (nodes - 1) / nodes * 4 * NUM_PARAMETERS
        communication_s = sent / cluster.link_bytes_per_s + 2 * (nodes - 1) * 5 * cluster.latency_s
    compute = [cluster.compute_s * share * (1 + cluster.compute_growth * math.log2(nodes))] * num_ranks
    if num_ranks > 1:
        compute[-1] *= 1 + cluster.slow_rank
    input_s = 0.01 + cluster.input_growth_s * math.log2(nodes)
    exposed_s = communication_s * (1 - cluster.hidden)
    step_s = max(compute) + exposed_s + input_s
    samples = SAMPLES * (1 if scope == "global" else num_ranks)
    runs = []
    for _ in range(5):
        factor = float(np.exp(generator.normal(0, cluster.noise)))
        ranks = [
            {
                "rank": rank,
                "node": rank // cluster.processes,
                "host": f"n{rank // cluster.processes:02d}",
                "cpus": [rank % cluster.processes],
                "metrics": {
                    "compute_s": own * factor,
                    "communication_s": communication_s * factor,
                    "exposed_communication_s": exposed_s * factor,
                    "imbalance_s": (max(compute) - own) * factor,
                    "input_s": input_s * factor,
                },
            }
            for rank, own in enumerate(compute)
        ]
        runs.append(_make_run(step_s * factor, samples, ranks))
    rates = [run["metrics"]["samples_per_s"] for run in runs]
    params = {
        "nodes": nodes,
        "processes": cluster.processes,
        "threads": 1,
        "batch": SAMPLES,
        "batch_scope": scope,
        **changes.pop("params", {}),
    }
    work = {"num_parameters": NUM_PARAMETERS, "pixels_per_sample": 50176.0}
    record = trial(rates, params=params, work=work, metrics={"samples_per_step": float(samples)}, **changes)
    metrics = {**record.metrics, "step_s": samples / record.metrics["samples_per_s"]}
    return replace(record, runs=tuple(runs), metrics=metrics)


def _make_run(step_s: float, samples: int, ranks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    metrics = {"samples_per_s": samples / step_s, "step_s": step_s}
    if len(ranks) == 1:
        metrics |= ranks[0]["metrics"]
        ranks = [{name: value for name, value in ranks[0].items() if name != "metrics"}]
    return {"status": "ok", "samples_s": [step_s] * 5, "metrics": metrics, "disturbances": [], "ranks": list(ranks)}
