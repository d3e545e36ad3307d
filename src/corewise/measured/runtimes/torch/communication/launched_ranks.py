"""Connect ranks that a launcher started: corewise launch, torchrun, mpirun or srun.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import datetime
import os

import torch.distributed as dist

from corewise.cluster.description import ClusterError
from corewise.cluster.resolver import resolve
from corewise.measured.runtimes.base import Infeasible
from corewise.measured.runtimes.communication.communicator import Communicator
from corewise.measured.runtimes.communication.lone_communicator import LoneCommunicator
from corewise.measured.runtimes.torch.communication.process_group import INTERFACE_VARIABLES
from corewise.measured.runtimes.torch.communication.torch_communicator import TorchCommunicator

# Seconds after which a message that does not arrive ends a rank.
MESSAGE_LIMIT_S = 600.0


class LaunchedCommunicator(TorchCommunicator):
    """Passes messages among the ranks that the variables of the launcher describe."""

    def __init__(self, rank: int, num_ranks: int) -> None:
        limit = datetime.timedelta(seconds=MESSAGE_LIMIT_S)
        # torchrun may hold the store already, which this method of initialization takes into account.
        dist.init_process_group("gloo", init_method="env://", rank=rank, world_size=num_ranks, timeout=limit)
        self.backend = "gloo"
        self.rank, self.num_ranks = rank, num_ranks
        self._on_gpu = False


def connect_launched_ranks() -> Communicator:
    """Connect the ranks of the job that this process belongs to; raise Infeasible if no launcher started it."""
    try:
        job = resolve()
        variables = job.torch_variables() if job.num_ranks > 1 else {}
    except ClusterError as problem:
        raise Infeasible(str(problem)) from problem
    if job.num_ranks == 1:
        return LoneCommunicator()
    os.environ.update(variables)
    if len(job.hosts) == 1:
        for name in INTERFACE_VARIABLES:
            os.environ.setdefault(name, "lo")
    return LaunchedCommunicator(job.rank, job.num_ranks)
