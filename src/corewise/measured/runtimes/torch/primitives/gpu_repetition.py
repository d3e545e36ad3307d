"""Execute an operator many times per step on a GPU, cycling over several inputs.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Mapping, Sequence

import torch

from corewise.measured.runtimes.torch.cuda_graphs import CudaGraphFunction

# All inputs together exceed the cache by this factor, so that none is cached at its next use.
TIMES_CACHE = 2.0
MAX_INPUTS = 256
# Hundreds of times the cost of waiting for the GPU.
STEP_MS = 2.0
MAX_ROUNDS = 200


def choose_num_inputs(moved_bytes: float, cache_bytes: int) -> int:
    """Choose the number of inputs, so that together they exceed the cache."""
    if moved_bytes <= 0:
        return 1
    return max(1, min(MAX_INPUTS, math.ceil(TIMES_CACHE * cache_bytes / moved_bytes)))


def choose_num_rounds(round_ms: float) -> int:
    """Choose how many rounds over all inputs a step makes."""
    return max(1, min(MAX_ROUNDS, math.ceil(STEP_MS / max(round_ms, STEP_MS / MAX_ROUNDS))))


class GpuRepetition:
    """A step of several rounds over all inputs; a round becomes a CUDA graph if it can be recorded."""

    def __init__(self, operates: Sequence[Callable[[], Any]], finish: Callable[[], None], recordable: bool) -> None:
        def run_round() -> None:
            for operate in operates:
                operate()

        self._num_inputs, self._finish = len(operates), finish
        self._round: Callable[[], Any] = CudaGraphFunction(run_round) if recordable else run_round
        # The first round runs eagerly, the second is recorded, the third is replayed.
        for _ in range(3):
            self._round()
        finish()
        self._num_rounds = choose_num_rounds(measure_gpu_ms(self._round))

    @property
    def num_executions(self) -> int:
        """Executions of the operator per step."""
        return self._num_inputs * self._num_rounds

    def run_step(self) -> None:
        for _ in range(self._num_rounds):
            self._round()
        self._finish()

    def collect_facts(self) -> Mapping[str, Any]:
        recorded = isinstance(self._round, CudaGraphFunction) and self._round.num_graphs > 0
        return {
            "executions_per_step": self.num_executions,
            "num_inputs_in_turn": self._num_inputs,
            "cuda_graph": recorded,
        }


def measure_gpu_ms(work: Callable[[], Any]) -> float:
    """Measure the milliseconds that the GPU takes, by its own clock."""
    make: Any = torch.cuda.Event
    before, after = make(enable_timing=True), make(enable_timing=True)
    before.record()
    work()
    after.record()
    after.synchronize()
    return float(before.elapsed_time(after))
