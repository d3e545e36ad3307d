"""How often an operator is executed in a step on a GPU, and on how many inputs."""

import pytest

pytest.importorskip("torch")

from corewise.runtimes.torch import gpu_turns
from corewise.runtimes.torch.gpu_turns import MAX_INPUTS, MAX_ROUNDS, GpuTurns, num_inputs, num_rounds

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
