"""Executions and inputs of an operator per step on a GPU."""

import pytest

torch = pytest.importorskip("torch")

from corewise.measured.runtimes.torch.cuda_graphs import CudaGraphFunction
from corewise.measured.runtimes.torch.primitives import gpu_repetition
from corewise.measured.runtimes.torch.primitives.gpu_repetition import (
    MAX_INPUTS,
    MAX_ROUNDS,
    GpuRepetition,
    choose_num_inputs,
    choose_num_rounds,
)

pytestmark = pytest.mark.torch
MIB = 2**20


@pytest.mark.parametrize(("moved_bytes", "num"), [(200 * MIB, 1), (60 * MIB, 2), (MIB, 100), (1, MAX_INPUTS), (0, 1)])
def test_inputs_that_take_turns_are_larger_than_the_cache(moved_bytes: int, num: int) -> None:
    assert choose_num_inputs(moved_bytes, 50 * MIB) == num


@pytest.mark.parametrize(("round_ms", "num"), [(30.0, 1), (2.0, 1), (0.5, 4), (0.0, MAX_ROUNDS)])
def test_a_step_is_long_enough_to_be_timed(round_ms: float, num: int) -> None:
    assert choose_num_rounds(round_ms) == num


def test_a_step_gives_every_input_its_turns_and_waits_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_repetition, "measure_gpu_ms", lambda work: 0.5)
    done: list[str] = []
    operates = [lambda: done.append("a"), lambda: done.append("b")]
    turns = GpuRepetition(operates, lambda: done.append("waited"), recordable=False)
    done.clear()
    turns.run_step()
    assert done == ["a", "b"] * 4 + ["waited"]
    assert turns.num_executions == turns.collect_facts()["executions_per_step"] == 8


class RecordingFails:
    """A recording whose end fails, as if an operation had waited for a value."""

    def __init__(self, graph: object) -> None: ...

    def __enter__(self) -> None:
        torch.cuda.set_stream("the recording's")

    def __exit__(self, *problem: object) -> None:
        raise RuntimeError("operation failed due to a previous error during capture")


def test_what_cannot_be_recorded_runs_plainly_on_the_stream_it_was_called_on(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = ["ours"]
    # No GPU is needed.
    stand_ins = {
        "synchronize": lambda: None,
        "CUDAGraph": object,
        "current_stream": lambda: streams[-1],
        "set_stream": streams.append,
        "graph": RecordingFails,
    }
    for name, made in stand_ins.items():
        monkeypatch.setattr(torch.cuda, name, made)
    seen: list[str] = []
    replayed = CudaGraphFunction(lambda: seen.append(streams[-1]))
    for _ in range(3):
        replayed()
    # The second call is recorded.
    assert seen == ["ours", "the recording's", "ours", "ours"]
    assert replayed.num_graphs == 0
