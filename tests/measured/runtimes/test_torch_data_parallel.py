"""Data-parallel ranks, compared with one process on all data."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from corewise.measured.runtimes.base import Infeasible, RankContext

torch = pytest.importorskip("torch")

from corewise.measured.runtimes.torch.modules.gradient_exchange import open_reduction

NET = """
import torch
def make(batch, mode):
    from torch.nn import Conv2d, Flatten, Linear, Sequential, Tanh
    net = Sequential(Conv2d(3, 4, 3), Tanh(), Flatten(), Linear(144, 5))
    return net, (torch.randn(batch, 3, 8, 8),), torch.randint(5, (batch,))
"""

# The functions of Horovod that training calls, over torch's process group. Horovod itself does not compile here.
LIBRARY = """
import torch.distributed as dist
Average = "average"
def init():
    pass
def size():
    return dist.get_world_size()
def allreduce_(buffer, op):
    assert op == Average
    dist.all_reduce(buffer)
    buffer.div_(size())
"""


@pytest.fixture(scope="module")
def two_ranks(
    default_params: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[dict[str, Any]]]:
    """Run two ranks and return their folder and output."""
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "mine.py").write_text(NET)
    library = folder / "libraries" / "horovod"
    library.mkdir(parents=True)
    (library / "__init__.py").touch()
    (library / "torch.py").write_text(LIBRARY)
    params = {**default_params, "mode": "train", "processes": 2}
    program = Path(__file__).with_name("run_torch_ranks.py")
    done = subprocess.run(
        [sys.executable, str(program), str(folder), json.dumps(params)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder, sorted(map(json.loads, done.stdout.splitlines()), key=lambda rank: rank["rank"])


def test_averaged_gradients_are_those_of_one_process_with_all_the_data(
    two_ranks: tuple[Path, list[dict[str, Any]]],
) -> None:
    folder, _ = two_ranks
    namespace: dict[str, Callable[..., Any]] = {}
    exec(NET, namespace)
    net = namespace["make"](1, "train")[0]
    net.load_state_dict(torch.load(folder / "weights-0.pt"))
    steps = [torch.load(folder / f"step-{rank}.pt") for rank in range(2)]
    # Ranks have different data.
    assert not torch.equal(steps[0][0], steps[1][0])
    loss = torch.nn.functional.cross_entropy(net(torch.cat([s[0] for s in steps])), torch.cat([s[1] for s in steps]))
    loss.backward()
    for name, parameter in net.named_parameters():
        for _, _, gradients in steps:
            assert torch.allclose(gradients[name], parameter.grad, rtol=1e-4, atol=1e-6)


def test_ranks_start_from_the_same_weights_and_stay_together(two_ranks: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, printed = two_ranks
    first, second = (torch.load(folder / f"weights-{rank}.pt") for rank in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert printed[0]["weights_sum"] == printed[1]["weights_sum"]


def test_ranks_see_different_synthetic_data(two_ranks: tuple[Path, list[dict[str, Any]]]) -> None:
    _, printed = two_ranks
    assert printed[0]["first_loss"] != printed[1]["first_loss"]


def test_the_check_passes_together_and_fails_when_gradients_are_not_averaged(
    two_ranks: tuple[Path, list[dict[str, Any]]],
) -> None:
    for printed in two_ranks[1]:
        assert printed["custom_check"]
        assert printed["model_check"]
        assert not printed["check_without_averaging"]


def test_ranks_that_train_together_agree_only_when_all_do(two_ranks: tuple[Path, list[dict[str, Any]]]) -> None:
    for printed in two_ranks[1]:
        assert printed["votes"] == [True, False, False]
        assert printed["independent"] is False


def test_replicas_know_nothing_of_each_other(two_ranks: tuple[Path, list[dict[str, Any]]]) -> None:
    for printed in two_ranks[1]:
        assert printed["replica_check"]
        assert printed["replica_independent"] is True
        assert printed["replica_vote"] is (printed["rank"] == 0)


def test_shared_memory_carries_the_gradients_and_keeps_ranks_together(
    two_ranks: tuple[Path, list[dict[str, Any]]],
) -> None:
    first, second = two_ranks[1]
    for printed in (first, second):
        assert printed["shared_check"]
        facts = printed["shared_facts"]
        assert (facts["collectives_backend"], facts["global_batch"], facts["learning_rate"]) == ("shared", 8, 0.001)
    assert first["shared_weights_sum"] == second["shared_weights_sum"]


def test_every_rank_measures_where_the_time_of_its_steps_went(two_ranks: tuple[Path, list[dict[str, Any]]]) -> None:
    metrics = [printed["shared_metrics"] for printed in two_ranks[1]]
    for of_rank in metrics:
        assert set(of_rank) == {
            *("compute_s", "input_s", "communication_s", "exposed_communication_s", "imbalance_s", "accuracy")
        }
        assert of_rank["communication_s"] > 0
        assert of_rank["compute_s"] > of_rank["input_s"] >= 0
    # In each step, one rank is the last and waits for nobody. Samples differ, the weights and their accuracy do not.
    assert metrics[0]["accuracy"] == metrics[1]["accuracy"]


def test_a_library_outside_of_torch_averages_the_gradients(two_ranks: tuple[Path, list[dict[str, Any]]]) -> None:
    for printed in two_ranks[1]:
        assert printed["library_check"]
        assert printed["library_backend"] == "horovod"


def test_mpi_averages_the_gradients_and_keeps_ranks_together(
    two_ranks: tuple[Path, list[dict[str, Any]]], need: Callable[[bool, str], None]
) -> None:
    need(shutil.which("mpirun") is not None, "mpirun")
    first, second = two_ranks[1]
    for printed in (first, second):
        assert printed["mpi_check"]
        assert printed["mpi_facts"]["collectives_backend"] == "mpi"
        assert printed["mpi_facts"]["mpi_library"]
        assert printed["mpi_halves"] == [0.5] * 8
    assert first["mpi_weights_sum"] == second["mpi_weights_sum"]


def test_an_mpi_for_one_thread_is_refused_and_closed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class OneThread:
        """The communicator of an MPI that only one thread may call."""

        supports_threads, is_closed = False, False

        def __init__(self, context: RankContext) -> None:
            pass

        def read_facts(self) -> dict[str, str]:
            return {"mpi_library": "Some MPI 1.0"}

        def close(self) -> None:
            OneThread.is_closed = True

    monkeypatch.setattr("corewise.measured.runtimes.torch.modules.gradient_exchange.MpiCommunicator", OneThread)
    with pytest.raises(Infeasible, match=r"Some MPI 1\.0 lets only one thread call it"):
        open_reduction("mpi", RankContext(0, 2, str(tmp_path), 1))
    assert OneThread.is_closed
