"""The communication workload: its figures, what it refuses, and its results among real ranks."""

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corewise.measured.parameters import TrialParameters
from corewise.measured.runtimes.numpy.arrays import NumpyArrays
from corewise.measured.trial import Protocol, RankPlacement, Trial
from corewise.measured.worker.zygote import Zygote
from corewise.measured.workloads.kernels.communication import (
    COMMUNICATION,
    OPERATIONS,
    CommunicationRun,
    list_operations,
)
from corewise.measured.workloads.kernels.kernel import KernelSetup

SIZE = 1_000_000


def make_params(**values: Any) -> TrialParameters:
    point = {"workload": "communication", "mode": "infer", "processes": 4, "args.size_bytes": SIZE, "batch": 1}
    return TrialParameters.from_mapping({**point, **values})


@pytest.mark.parametrize(
    ("operation", "bus_factor", "traffic"),
    [
        ("point_to_point", 1.0, 4),
        ("exchange", 1.0, 8),
        ("allreduce", 1.5, 8),
        ("allgather", 0.75, 5),
        ("all_to_all", 0.75, 8),
        ("broadcast", 1.0, 4),
        ("reduce_scatter", 0.75, 5),
        ("push_add", 1.0, 3),
    ],
)
def test_figures_of_four_ranks_follow_the_formulas(operation: str, bus_factor: float, traffic: int) -> None:
    params = make_params(**{"args.operation": operation})
    num_messages = 2 if operation == "point_to_point" else 1
    metrics = COMMUNICATION.derive_metrics(params, step_s=0.01)
    assert metrics["latency_s"] == pytest.approx(0.01 / num_messages)
    assert metrics["bus_gbyte_per_s"] == pytest.approx(bus_factor * SIZE / metrics["latency_s"] / 1e9)
    assert COMMUNICATION.count_work("infer", params.arguments).bytes_per_sample == num_messages * SIZE
    assert COMMUNICATION.count_memory_traffic(params) == traffic * SIZE


def test_calls_of_a_step_are_counted_and_a_network_has_no_share_of_memory() -> None:
    params = make_params(**{"args.operation": "push_add", "args.num_calls": 100})
    assert COMMUNICATION.derive_metrics(params, step_s=1.0)["latency_s"] == pytest.approx(0.01)
    assert COMMUNICATION.count_work("infer", params.arguments).bytes_per_sample == 100 * SIZE
    assert COMMUNICATION.count_memory_traffic(make_params(nodes=2)) == 0.0


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"processes": 1}, "at least two ranks; set processes: 2"),
        ({"runtime": "numpy", "collectives": "gloo"}, "gloo does not exist in numpy, which has mpi"),
        ({"collectives": "grpc"}, "grpc does not exist in torch"),
        (
            {"collectives": "shared", "args.operation": "exchange"},
            "shared has allreduce, allgather, all_to_all, broadcast, reduce_scatter, not exchange",
        ),
        (
            {"collectives": "shared", "args.operation": "broadcast", "nodes": 2},
            "shared on 2 nodes has allreduce, not broadcast",
        ),
        ({"collectives": "nccl"}, "nccl is not for arrays on device: cpu"),
        ({"collectives": "mpi", "device": "cuda"}, "mpi is not for arrays on device: cuda"),
        ({"runtime": "tensorflow"}, "grpc has push_add, not allreduce"),
        ({"runtime": "tensorflow", "args.operation": "push_add", "nodes": 2}, "grpc runs on one node"),
        ({"args.size_bytes": 8}, "8 holds no float32 number for each of 4 ranks"),
    ],
)
def test_what_does_not_exist_is_refused_with_the_reason(values: dict[str, Any], reason: str) -> None:
    assert reason in str(COMMUNICATION.explain_refusal(make_params(**values)))


@pytest.mark.parametrize(
    "values",
    [
        *({}, {"runtime": "numpy"}, {"collectives": "shared"}, {"processes": 1, "nodes": 2}, {"device": "cuda"}),
        {"collectives": "shared", "args.operation": "all_to_all"},
        {"collectives": "shared", "nodes": 2},
    ],
)
def test_what_exists_is_not_refused(values: dict[str, Any]) -> None:
    assert COMMUNICATION.explain_refusal(make_params(**values)) is None


class WrongCommunicator:
    """Two ranks in one process: this one is the first, and nothing of what the other sends arrives."""

    backend, rank, num_ranks = "none", 0, 2

    def explain_unsupported(self, operation: str) -> str:
        return ""

    def allreduce(self, array: Any) -> None:
        # The exchange of seeds works.
        if array.size == 2:
            array[1] = 5.0

    def exchange(self, *_arrays: Any) -> None:
        pass

    allgather = all_to_all = reduce_scatter = send = receive = exchange


@pytest.mark.parametrize("operation", sorted(set(OPERATIONS) - {"broadcast", "push_add"}))
def test_wrong_results_are_found(operation: str) -> None:
    setup = KernelSetup(NumpyArrays(), "float32", {}, 0, "", 1, communicator=WrongCommunicator())
    run = CommunicationRun(setup, operation, 1000, 1)
    assert not run.check().passed


def run_trial(folder: Path, runtime: str, num_ranks: int, **values: Any) -> list[Any]:
    """Run a trial in real ranks and return the results of all of them."""
    params = make_params(runtime=runtime, processes=num_ranks, **{"args.size_bytes": 40_000, **values})
    protocol = Protocol(min_samples=3, min_sample_s=0.01, max_warmup_s=0.1, timeout_s=100.0)
    ranks = (RankPlacement(()),) * num_ranks
    params = TrialParameters.from_mapping({**params.to_mapping(), "bind": "none"})
    Zygote(runtime, warm=False).run(Trial("t", params, protocol, ranks, {}, ()), folder, time.monotonic_ns())
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(num_ranks)]


def check_results(results: list[Any]) -> None:
    for result in results:
        assert result["status"] == "ok", result["reason"]
        assert not result["facts"]["independent"]
        assert np.median(result["samples_s"]) > 0
        # The ranks complete one sample together.
        assert result["samples_per_step"] == pytest.approx(1 / len(results))


CARRIED = [(*pair, name) for pair in (("torch", "gloo"), ("numpy", "mpi")) for name in OPERATIONS]
CARRIED += [("torch", "shared", name) for name in list_operations("shared", 1)]


@pytest.mark.slow
@pytest.mark.parametrize(("runtime", "backend", "operation"), CARRIED)
def test_every_operation_runs_and_is_checked_among_three_ranks(
    need: Callable[[bool, str], None], tmp_path: Path, runtime: str, backend: str, operation: str
) -> None:
    need(backend != "mpi" or shutil.which("mpirun") is not None, "mpirun")
    results = run_trial(tmp_path, runtime, 3, **{"args.operation": operation, "collectives": backend})
    check_results(results)
    pairwise = OPERATIONS[operation].is_pairwise
    assert [result["facts"]["takes_part"] for result in results] == [True, not pairwise, True]


def test_a_vector_is_pushed_between_tasks_of_tensorflow(need: Callable[[bool, str], None], tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    results = run_trial(tmp_path, "tensorflow", 2, **{"args.operation": "push_add"})
    check_results(results)
    assert len(set(results[0]["facts"]["grpc_servers"])) == 2
    assert results[0]["facts"]["collectives_backend"] == "grpc"
