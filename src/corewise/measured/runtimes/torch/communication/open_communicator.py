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
    backend = choose_backend(params)
    on_gpu = params.device == Device.CUDA
    if (backend == Collectives.NCCL) != on_gpu:
        memory, others = ("GPUs", "nccl") if on_gpu else ("host memory", "gloo, shared or mpi")
        raise Infeasible(f"collectives {backend.value} does not carry arrays in {memory}; use {others}")
    if backend == Collectives.MPI:
        from corewise.measured.runtimes.mpi.mpi_communicator import MpiCommunicator

        return MpiCommunicator(context)
    if backend == Collectives.SHARED:
        from corewise.measured.runtimes.torch.communication.shared_communicator import SharedCommunicator

        return SharedCommunicator(context)
    if backend in (Collectives.GLOO, Collectives.NCCL):
        return TorchCommunicator(context, backend.value)
    raise Infeasible(f"collectives {backend.value}: torch has gloo, shared, mpi and nccl")


def choose_backend(params: TrialParameters) -> Collectives:
    """Return the backend of a trial; the default is nccl on GPUs and gloo on CPUs."""
    if params.collectives != Collectives.DEFAULT:
        return params.collectives
    return Collectives.NCCL if params.device == Device.CUDA else Collectives.GLOO
