"""A framework's arrays for a command, which has no worker to start the framework for it.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import os
from typing import Any, Optional

from corewise.runtimes.base import RankContext
from corewise.workloads.registry import load_attribute

ARRAYS = {
    "numpy": "corewise.runtimes.numpy.arrays:NumpyArrays",
    "torch": "corewise.runtimes.torch.arrays:TorchArrays",
    "jax": "corewise.runtimes.jax.arrays:JaxArrays",
    "tensorflow": "corewise.runtimes.tensorflow.arrays:TensorflowArrays",
}
AS_IT_COMES = {"interop_threads": None, "math": "vendor", "float32_precision": "default"}


def arrays_of(runtime: str, device: str, num_threads: Optional[int], dtype: str) -> Any:
    """The arrays, once the process has the threads asked for; Infeasible where there are none such."""
    make = load_attribute(ARRAYS[runtime])
    if runtime == "numpy":
        return make()
    settings = f"corewise.runtimes.{runtime}.settings"
    apply_to_process = load_attribute(f"{settings}:apply_to_process")
    num_cpus = len(os.sched_getaffinity(0))
    asked = {"threads": num_threads or num_cpus, "device": device, "dtype": dtype, **AS_IT_COMES}
    context = RankContext(0, 1, "", num_cpus)
    if runtime == "torch":
        if num_threads is not None:
            apply_to_process(asked)
        return make(load_attribute(f"{settings}:find_device")(device, context))
    chosen = apply_to_process(asked, context)
    return make(chosen) if runtime == "jax" else make(device, chosen)
