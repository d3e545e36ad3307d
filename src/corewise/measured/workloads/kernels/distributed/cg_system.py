"""A linear system in blocks of rows, and its checkpoints, which do not depend on the number of ranks.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, Mapping

import numpy as np

from corewise.measured.runtimes.communication.communicator import Communicator
from corewise.measured.workloads.kernels.cg.checkpoint import Checkpoint
from corewise.measured.workloads.kernels.cg.iteration import SolverState
from corewise.measured.workloads.kernels.cg.problem import CgProblem
from corewise.measured.workloads.kernels.cg.system import LinearSystem
from corewise.measured.workloads.kernels.distributed.first_rank import broadcast_from_first, run_on_first_rank
from corewise.measured.workloads.kernels.distributed.row_blocks import RowBlockOperator


class DistributedSystem(LinearSystem):
    """The system of `cg` with a dense matrix; rank 0 writes and reads the checkpoints of all ranks."""

    def __init__(self, arrays: Any, problem: CgProblem, seed: int, num_threads: int, messages: Communicator) -> None:
        operator = RowBlockOperator(arrays, problem.size, problem.shift, seed, messages)
        super().__init__(arrays, problem, seed, num_threads, operator)
        self._messages = messages
        self.solver.agree = messages.agree

    def describe_conditions(self) -> Mapping[str, Any]:
        return {**super().describe_conditions(), "num_ranks": self._messages.num_ranks}

    def save(self, path: str, state: SolverState) -> int:
        """Write the checkpoint on rank 0 and return its size; 0 on other ranks."""
        if self._messages.rank > 0:
            return 0
        return super().save(path, state)

    def load(self, path: str) -> Checkpoint:
        """Read a checkpoint on rank 0 and send it to all ranks; raise BadCheckpoint there if it cannot be used."""
        read = super().load
        checkpoint = run_on_first_rank(self._messages, lambda: read(path))
        progress = np.zeros(2)
        if checkpoint is not None:
            progress = np.array([checkpoint.state.iteration, len(checkpoint.state.residuals)], np.float64)
        iteration, num_residuals = (int(each) for each in broadcast_from_first(self._messages, self._arrays, progress))
        sizes = (self.operator.length, self.operator.length, self.operator.length, num_residuals)
        values = np.zeros(sum(sizes))
        if checkpoint is not None:
            state = checkpoint.state
            values = np.concatenate([state.x, state.r, state.p, state.residuals])
        parts = np.split(broadcast_from_first(self._messages, self._arrays, values), np.cumsum(sizes)[:-1])
        state = SolverState(iteration, *parts)
        conditions = self.describe_conditions() if checkpoint is None else checkpoint.conditions
        return Checkpoint(state, self.identify_problem(), conditions)
