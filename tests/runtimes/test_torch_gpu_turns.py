"""How often an operator is executed in a step on a GPU, and on how many inputs."""

import pytest

torch = pytest.importorskip("torch")

from corewise.runtimes.torch import gpu_turns  # noqa: E402
from corewise.runtimes.torch.gpu_turns import (  # noqa: E402
    MAX_INPUTS,
    MAX_ROUNDS,
    GpuTurns,
    num_inputs,
    num_rounds,
)
from corewise.runtimes.torch.graphs import Replayed  # noqa: E402

pytestmark = pytest.mark.torch
MIB = 2**20


@pytest.mark.parametrize(
    ("moved_bytes", "num"), [(200 * MIB, 1), (60 * MIB, 2), (MIB, 100), (1, MAX_INPUTS), (0, 1)]
)
def test_inputs_that_take_turns_are_larger_than_the_cache(moved_bytes: int, num: int) -> None:
    assert num_inputs(moved_bytes, 50 * MIB) == num


@pytest.mark.parametrize(("round_ms", "num"), [(30.0, 1), (2.0, 1), (0.5, 4), (0.0, MAX_ROUNDS)])
def test_a_step_is_long_enough_to_be_timed(round_ms: float, num: int) -> None:
    assert num_rounds(round_ms) == num


def test_a_step_gives_every_input_its_turns_and_waits_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_turns, "gpu_ms", lambda work: 0.5)
    done: list[str] = []
    operates = [lambda: done.append("a"), lambda: done.append("b")]
    turns = GpuTurns(operates, lambda: done.append("waited"), recordable=False)
    done.clear()
    turns.step()
    assert done == ["a", "b"] * 4 + ["waited"]
    assert turns.num_executions == turns.facts()["executions_per_step"] == 8


class RecordingFails:
    """A recording whose end fails, as one does in which something waited for a number."""

    def __init__(self, graph: object) -> None: ...

    def __enter__(self) -> None:
        torch.cuda.set_stream("the recording's")

    def __exit__(self, *problem: object) -> None:
        raise RuntimeError("operation failed due to a previous error during capture")


def test_what_cannot_be_recorded_runs_plainly_on_the_stream_it_was_called_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    streams = ["ours"]
    stand_ins = {  # there is no GPU to record on
        "synchronize": lambda: None,
        "CUDAGraph": object,
        "current_stream": lambda: streams[-1],
        "set_stream": streams.append,
        "graph": RecordingFails,
    }
    for name, made in stand_ins.items():
        monkeypatch.setattr(torch.cuda, name, made)
    seen: list[str] = []
    replayed = Replayed(lambda: seen.append(streams[-1]))
    for _ in range(3):
        replayed()
    assert seen == ["ours", "the recording's", "ours", "ours"]  # the second while it was being recorded
    assert replayed.num_graphs == 0
