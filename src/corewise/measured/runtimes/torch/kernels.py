"""Run kernels on torch.

Measured side: standard library, numpy and torch only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, Mapping

import torch

from corewise.measured.parameters import TrialParameters
from corewise.measured.runtimes.base import Infeasible, RankContext
from corewise.measured.runtimes.communication.communicator import Communicator
from corewise.measured.runtimes.kernel_job import KernelJob, prepare_kernel
from corewise.measured.runtimes.torch.arrays import TorchArrays
from corewise.measured.runtimes.torch.instruction_proof import prove_instruction_set
from corewise.measured.runtimes.torch.numerics import set_numerics
from corewise.measured.runtimes.torch.settings import Settings, collect_gpu_facts, collect_process_facts, find_device
from corewise.measured.workloads.kernels.kernel import Kernel


def prepare_torch_kernel(kernel: Kernel, params: TrialParameters, context: RankContext) -> KernelJob:
    """Prepare the job of a kernel on this rank's device."""
    settings = _read_kernel_settings(params, context)

    def collect_facts() -> Mapping[str, Any]:
        return {**collect_process_facts(settings), **collect_gpu_facts(settings), **_describe_gpu(settings.device)}

    def connect() -> Communicator:
        # Replicas do not pay for the import.
        from corewise.measured.runtimes.torch.communication.open_communicator import open_communicator

        return open_communicator(params, context)

    return prepare_kernel(kernel, TorchArrays(settings.device), params, context, collect_facts, connect)


def _read_kernel_settings(params: TrialParameters, context: RankContext) -> Settings:
    precision, dtype = params.float32_precision.value, params.dtype.value
    if precision != "default" and dtype != "float32":
        raise Infeasible(f"float32_precision {precision}: dtype is {dtype}")
    return Settings(
        device=find_device(params.device.value, context),
        dtype=dtype,
        memory_format="contiguous",
        execution="eager",
        training=False,
        float32_precision=precision,
        proofs={**set_numerics(params), **prove_instruction_set(params)},
    )


def _describe_gpu(device: torch.device) -> Mapping[str, Any]:
    """Return the GPU's name in nvidia-smi, if torch reports it."""
    if device.type != "cuda":
        return {}
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return {} if uuid is None else {"gpu_uuid": f"GPU-{uuid}"}
