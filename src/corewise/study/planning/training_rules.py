"""Rules on the batch of each process, on the exchange of gradients and on the learning rate."""

from collections.abc import Iterator

from corewise.measured.parameters import Collectives, Device, Mode, TrialParameters
from corewise.measured.runtimes.trial_params import explain_indivisible_batch, explain_unused_rule

# What carries only gradients in host memory.
HOST_BACKENDS = (Collectives.SHARED, Collectives.MPI, Collectives.HOROVOD)


def explain_training(params: TrialParameters, *, is_kernel: bool) -> Iterator[str]:
    """Yield why the processes cannot train together as asked; kernels check `collectives` themselves."""
    reasons = [explain_indivisible_batch(params)]
    if not params.is_default("learning_rate_rule"):
        reasons.append(explain_unused_rule(params))
    if not params.is_default("collectives") and not is_kernel:
        reasons.append(_explain_collectives(params))
    yield from filter(None, reasons)


def _explain_collectives(params: TrialParameters) -> str:
    backend, on_cuda = params.collectives, params.device == Device.CUDA
    if params.mode == Mode.INFER:
        return f"collectives: {backend} has no effect: replicas infer independently of each other; leave it default"
    if params.num_ranks == 1:
        return f"collectives: {backend} has no effect: there is one process; leave it default"
    if backend == Collectives.NCCL and not on_cuda:
        return "collectives: nccl connects GPUs; use gloo, shared or mpi on device: cpu"
    if on_cuda and backend in HOST_BACKENDS:
        return f"collectives: {backend} is for device: cpu; use nccl"
    return ""
