"""Conjugate gradients on several ranks: a dense system in float64, a block of rows on each rank.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, Mapping, Optional, Tuple

import numpy as np

from corewise.measured.workloads.base import Work
from corewise.measured.workloads.kernels.cg.problem import CgProblem
from corewise.measured.workloads.kernels.cg.workload import CG, ConjugateGradientRun
from corewise.measured.workloads.kernels.distributed.cg_system import DistributedSystem
from corewise.measured.workloads.kernels.distributed.distributed_kernel import DistributedKernel
from corewise.measured.workloads.kernels.distributed.first_rank import broadcast_from_first, run_on_first_rank
from corewise.measured.workloads.kernels.distributed.message_times import StepTimes, TimedCommunicator
from corewise.measured.workloads.kernels.kernel import KernelRun, KernelSetup
from corewise.measured.workloads.kernels.kernel_parameters import fill_defaults

PARAMETERS = ("size", "iterations", "shift", "tolerance", "checkpoint_every", "checkpoint")
DEFAULT_ROWS = 4096


@dataclasses.dataclass(frozen=True)
class DistributedCg(DistributedKernel):
    """One step runs `iterations` iterations of `cg` with a dense matrix from x = 0."""

    name: str = "distributed_cg"
    summary: str = "conjugate gradients on several ranks, float64: a block of dense rows on each (args.size)"

    @property
    def parameters(self) -> Mapping[str, Any]:
        return {**{name: CG.parameters[name] for name in PARAMETERS}, "size": DEFAULT_ROWS}

    def list_dtypes(self, args: Mapping[str, Any]) -> Tuple[str, ...]:
        return ("float64",)

    def count_work(self, mode: str, args: Mapping[str, Any], dtype: Optional[str] = None) -> Work:
        return CG.count_work(mode, dataclasses.asdict(self.read_problem(args)))

    def estimate_memory_bytes(self, args: Mapping[str, Any], dtype: str) -> int:
        return self.read_problem(args).estimate_memory_bytes(self.num_ranks)

    def fit_to_memory(self, args: Mapping[str, Any], dtype: str, free_bytes: int) -> Dict[str, Any]:
        size = self.read_problem(args).find_largest_size(free_bytes, self.num_ranks)
        return {**args, "size": size} if size >= self.num_ranks else dict(args)

    def explain_ranks(self, args: Mapping[str, Any], num_ranks: int) -> Optional[str]:
        size = self.read_problem(args).size
        if num_ranks <= size:
            return None
        return f"{self.name}: {num_ranks} processes cannot share {size} rows; use at most {size} processes"

    def build(self, setup: KernelSetup) -> KernelRun:
        return DistributedCgRun(setup, self.read_problem(setup.args))

    def read_problem(self, args: Mapping[str, Any]) -> CgProblem:
        """Return the problem that the parameters describe; raise ValueError if they are invalid."""
        return CG.read_problem({**fill_defaults(self.name, self.parameters, args), "matrix": "dense"}, self.name)


class DistributedCgRun(ConjugateGradientRun):
    """A system that all ranks solve together in every step."""

    def __init__(self, setup: KernelSetup, problem: CgProblem) -> None:
        self._messages, self._times = TimedCommunicator(setup.communicator), StepTimes()
        system = DistributedSystem(setup.arrays, problem, setup.seed, setup.num_threads, self._messages)
        super().__init__(setup, problem, system)
        self._num_rows = problem.size

    def step(self) -> None:
        with self._times.measure(self._messages):
            super().step()

    def collect_metrics(self) -> Mapping[str, float]:
        return self._times.compute_medians()

    def read_facts(self) -> Mapping[str, Any]:
        return {**super().read_facts(), "num_messages_per_iteration": 1}

    def close(self) -> None:
        # Rank 0 writes the checkpoints and removes them.
        if self._messages.rank == 0:
            super().close()

    def _require_checkpoint_space(self) -> None:
        run_on_first_rank(self._messages, super()._require_checkpoint_space)

    def _copy_first_checkpoint(self) -> None:
        if self._messages.rank == 0:
            super()._copy_first_checkpoint()

    def _draw_vector(self) -> Any:
        """Draw on rank 0: all ranks multiply the same vector."""
        drawn = np.random.default_rng().standard_normal(self._num_rows)
        return broadcast_from_first(self._messages, self._arrays, drawn)

    def _is_reproducible(self) -> bool:
        # The processors of several nodes may sum in different orders.
        return False


DISTRIBUTED_CG = DistributedCg()
