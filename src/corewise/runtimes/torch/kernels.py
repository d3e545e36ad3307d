"""Kernels on torch.

Measured side: standard library, numpy and torch only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, Mapping

import torch

from corewise.runtimes.base import Infeasible, RankContext
from corewise.runtimes.kernel_job import KernelJob, prepare_kernel
from corewise.runtimes.torch.arrays import TorchArrays
from corewise.runtimes.torch.numerics import set_numerics
from corewise.runtimes.torch.settings import Settings, find_device, gpu_facts, process_facts
from corewise.workloads.kernels.base import Kernel


def prepare_torch_kernel(kernel: Kernel, params: Mapping[str, Any], context: RankContext) -> KernelJob:
    """The job of a kernel on this rank's device."""
    settings = _settings(params, context)

    def facts() -> Mapping[str, Any]:
        return {**process_facts(settings), **gpu_facts(settings), **_gpu_identity(settings.device)}

    return prepare_kernel(kernel, TorchArrays(settings.device), params, context, facts)


def _settings(params: Mapping[str, Any], context: RankContext) -> Settings:
    precision, dtype = str(params.get("float32_precision", "default")), str(params["dtype"])
    if precision != "default" and dtype != "float32":
        raise Infeasible(f"float32_precision {precision}: dtype is {dtype}")
    return Settings(
        device=find_device(str(params["device"]), context),
        dtype=dtype,
        memory_format="contiguous",
        execution="eager",
        training=False,
        float32_precision=precision,
        proofs=set_numerics(params),
    )


def _gpu_identity(device: torch.device) -> Mapping[str, Any]:
    """The name nvidia-smi knows the GPU by, where torch tells it."""
    if device.type != "cuda":
        return {}
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return {} if uuid is None else {"gpu_uuid": f"GPU-{uuid}"}
