"""Load a framework's arrays for a command, which has no worker that starts the framework.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import os
from typing import Any, Optional

from corewise.measured.parameters import Device, DType, TrialParameters
from corewise.measured.runtimes.base import RankContext
from corewise.measured.workloads.registry import load_attribute

ARRAYS = {
    "numpy": "corewise.measured.runtimes.numpy.arrays:NumpyArrays",
    "torch": "corewise.measured.runtimes.torch.arrays:TorchArrays",
    "jax": "corewise.measured.runtimes.jax.arrays:JaxArrays",
    "tensorflow": "corewise.measured.runtimes.tensorflow.arrays:TensorflowArrays",
}
SETTINGS = {
    "torch": "corewise.measured.runtimes.torch.settings",
    "jax": "corewise.measured.runtimes.jax.settings",
    "tensorflow": "corewise.measured.runtimes.tensorflow.settings",
}


def load_arrays(runtime: str, device: str, num_threads: Optional[int], dtype: str) -> Any:
    """Set the threads of the process and return the framework's arrays; raise Infeasible if unavailable."""
    array_type = load_attribute(ARRAYS[runtime])
    if runtime == "numpy":
        return array_type()
    settings = SETTINGS[runtime]
    apply_to_process = load_attribute(f"{settings}:apply_to_process")
    num_cpus = len(os.sched_getaffinity(0))
    params = TrialParameters(threads=num_threads or num_cpus, device=Device(device), dtype=DType(dtype))
    context = RankContext(0, 1, "", num_cpus)
    if runtime == "torch":
        if num_threads is not None:
            apply_to_process(params)
        return array_type(load_attribute(f"{settings}:find_device")(device, context))
    devices = apply_to_process(params, context)
    return array_type(devices) if runtime == "jax" else array_type(device, devices)
