"""Measure ceilings with torch, on the host and on a GPU.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import contextlib
from typing import Any, Iterator, List, Mapping, Sequence

import torch

from corewise.measured.parameters import TrialParameters
from corewise.measured.runtimes.base import RankContext
from corewise.measured.runtimes.ceiling_job import CeilingsJob, Limits, Probe
from corewise.measured.runtimes.torch.arrays import TorchArrays
from corewise.measured.runtimes.torch.settings import collect_process_facts, read_settings
from corewise.measured.workloads.ceiling_workload import CEILINGS

HOST_DTYPES = ("float32", "float64", "bfloat16", "int8")
GPU_DTYPES = ("float32", "float64", "tf32", "bfloat16", "int8")
HOST_SIZES, GPU_SIZES = (512, 8192), (4096, 16384)
# Long compared with the time to wait for the GPU.
GPU_SAMPLE_S = 0.01
# After this pause, the GPU's clock is up again.
GPU_REST_S = 1.5
# Bytes of a copy between host and device.
MOVED_BYTES = 2**28


class GpuCeilingsJob(CeilingsJob):
    """Adds copies between pinned host memory and the device to the ceilings of a host."""

    def _build_device_probes(self) -> Sequence[Probe]:
        probes: List[Probe] = []
        try:
            host = torch.empty(MOVED_BYTES, dtype=torch.uint8, pin_memory=True).random_()
            device = torch.empty(MOVED_BYTES, dtype=torch.uint8, device="cuda")
        except RuntimeError as problem:
            self.ceiling_notes.append(f"copies between host and device: {str(problem).splitlines()[0]}")
            return probes
        for name, to, source in (("to_device", device, host), ("from_device", host, device)):
            probes.append(
                Probe(
                    name,
                    "uint8",
                    MOVED_BYTES,
                    float(MOVED_BYTES),
                    lambda to=to, source=source: to.copy_(source, non_blocking=True),  # type: ignore[misc]
                )
            )
        return probes


def prepare_ceilings(params: TrialParameters, context: RankContext) -> CeilingsJob:
    """Prepare the job, on the host or on this rank's GPU."""
    settings = read_settings(params, context)
    args = {**CEILINGS.parameters, **params.arguments}
    arrays = TorchArrays(settings.device)
    if settings.device.type == "cuda":
        index = settings.device.index or 0

        def collect_facts() -> Mapping[str, Any]:
            name = torch.cuda.get_device_name(settings.device)
            return {**collect_process_facts(settings), "gpu": name, "gpu_index": index}

        limits = Limits(*GPU_SIZES, float(args["probe_s"]), GPU_SAMPLE_S, GPU_REST_S)
        return GpuCeilingsJob(arrays, args, GPU_DTYPES, limits, collect_facts, _use_float32_precision)
    limits = Limits(*HOST_SIZES, float(args["probe_s"]))
    return CeilingsJob(arrays, args, HOST_DTYPES, limits, lambda: collect_process_facts(settings))


@contextlib.contextmanager
def _use_float32_precision(dtype: str) -> Iterator[None]:
    """Compute float32 products in TF32 if the dtype is tf32, otherwise in full precision."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
