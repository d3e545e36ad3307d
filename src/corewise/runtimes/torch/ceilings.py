"""Ceilings through torch, on the host and on a GPU.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import contextlib
from typing import Any, Iterator, List, Mapping, Sequence

import torch

from corewise.runtimes.base import RankContext
from corewise.runtimes.ceilings import CeilingsJob, Limits, Probe
from corewise.runtimes.torch.arrays import TorchArrays
from corewise.runtimes.torch.settings import process_facts, read_settings
from corewise.workloads.base import workload_args
from corewise.workloads.ceilings import CEILINGS

HOST_DTYPES = ("float32", "float64", "bfloat16", "int8")
GPU_DTYPES = ("float32", "float64", "tf32", "bfloat16", "int8")
HOST_SIZES, GPU_SIZES = (512, 8192), (4096, 16384)
GPU_SAMPLE_S = 0.01  # long beside what it takes to wait for the GPU
GPU_REST_S = 1.5  # after which its clock is up again
MOVED_BYTES = 2**28  # between host and device


class GpuCeilingsJob(CeilingsJob):
    """Besides what a host has: copies to and from the device, from memory that the GPU fetches by itself."""

    def _others(self) -> Sequence[Probe]:
        made: List[Probe] = []
        try:
            host = torch.empty(MOVED_BYTES, dtype=torch.uint8, pin_memory=True).random_()
            there = torch.empty(MOVED_BYTES, dtype=torch.uint8, device="cuda")
        except RuntimeError as problem:
            self.ceiling_notes.append(f"copies between host and device: {str(problem).splitlines()[0]}")
            return made
        for kind, to, source in (("to_device", there, host), ("from_device", host, there)):
            made.append(
                Probe(
                    kind,
                    "uint8",
                    MOVED_BYTES,
                    float(MOVED_BYTES),
                    lambda to=to, source=source: to.copy_(source, non_blocking=True),  # type: ignore[misc]
                )
            )
        return made


def prepare_ceilings(params: Mapping[str, Any], context: RankContext) -> CeilingsJob:
    """The job; on a GPU that of this rank."""
    settings = read_settings(params, context)
    args = {**CEILINGS.parameters, **workload_args(params)}
    arrays = TorchArrays(settings.device)
    if settings.device.type == "cuda":
        index = settings.device.index or 0

        def gpu_facts() -> Mapping[str, Any]:
            name = torch.cuda.get_device_name(settings.device)
            return {**process_facts(settings), "gpu": name, "gpu_index": index}

        limits = Limits(*GPU_SIZES, float(args["probe_s"]), GPU_SAMPLE_S, GPU_REST_S)
        return GpuCeilingsJob(arrays, args, GPU_DTYPES, limits, gpu_facts, _float32_as)
    limits = Limits(*HOST_SIZES, float(args["probe_s"]))
    return CeilingsJob(arrays, args, HOST_DTYPES, limits, lambda: process_facts(settings))


@contextlib.contextmanager
def _float32_as(dtype: str) -> Iterator[None]:
    """Products of float32 computed in TF32 for that name alone."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
