"""An operator on a GPU, executed many times in a step, on inputs that take turns.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Mapping, Sequence

import torch

from corewise.runtimes.torch.graphs import Replayed

TIMES_CACHE = 2.0  # what the inputs hold together, so that none is in the cache when its turn comes
MAX_INPUTS = 256
STEP_MS = 2.0  # hundreds of times what waiting for the GPU costs
MAX_ROUNDS = 200


def num_inputs(moved_bytes: float, cache_bytes: int) -> int:
    """How many inputs take turns: together they are larger than the cache."""
    if moved_bytes <= 0:
        return 1
    return max(1, min(MAX_INPUTS, math.ceil(TIMES_CACHE * cache_bytes / moved_bytes)))


def num_rounds(round_ms: float) -> int:
    """How often all inputs have their turn in a step."""
    return max(1, min(MAX_ROUNDS, math.ceil(STEP_MS / max(round_ms, STEP_MS / MAX_ROUNDS))))


class GpuTurns:
    """A step of several rounds over all inputs; a round is recorded once as a CUDA graph where it can be."""

    def __init__(
        self,
        operates: Sequence[Callable[[], Any]],
        finish: Callable[[], None],
        recordable: bool,
    ) -> None:
        def once() -> None:
            for operate in operates:
                operate()

        self._num_inputs, self._finish = len(operates), finish
        self._round: Callable[[], Any] = Replayed(once) if recordable else once
        for _ in range(3):  # plainly, then recorded, then replayed
            self._round()
        finish()
        self._num_rounds = num_rounds(gpu_ms(self._round))

    @property
    def num_executions(self) -> int:
        """Of the operator, in a step."""
        return self._num_inputs * self._num_rounds

    def step(self) -> None:
        for _ in range(self._num_rounds):
            self._round()
        self._finish()

    def facts(self) -> Mapping[str, Any]:
        recorded = isinstance(self._round, Replayed) and self._round.num_graphs > 0
        return {
            "executions_per_step": self.num_executions,
            "num_inputs_in_turn": self._num_inputs,
            "cuda_graph": recorded,
        }


def gpu_ms(work: Callable[[], Any]) -> float:
    """What the GPU takes for it, by its own clock."""
    make: Any = torch.cuda.Event
    before, after = make(enable_timing=True), make(enable_timing=True)
    before.record()
    work()
    after.record()
    after.synchronize()
    return float(before.elapsed_time(after))
