"""Choose and open the communicator of a trial on torch.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

from corewise.measured.parameters import Collectives, Device, TrialParameters
from corewise.measured.runtimes.base import Infeasible, RankContext
from corewise.measured.runtimes.communication.communicator import Communicator
from corewise.measured.runtimes.torch.communication.torch_communicator import TorchCommunicator


def open_communicator(params: TrialParameters, context: RankContext) -> Communicator:
    """Connect the ranks of a trial through the backend that `collectives` names; raise Infeasible if it cannot be."""
    backend = params.collectives
    if backend == Collectives.DEFAULT:
        backend = Collectives.NCCL if params.device == Device.CUDA else Collectives.GLOO
    if backend in (Collectives.GLOO, Collectives.NCCL):
        return TorchCommunicator(context, backend.value)
    raise Infeasible(f"collectives {backend.value}: not supported by this workload")
