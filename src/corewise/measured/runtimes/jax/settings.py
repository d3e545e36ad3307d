"""Apply the parameters of a trial to JAX, and read its settings back.

Measured side: standard library and jax only, Python 3.9.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Mapping

import jax

from corewise.measured.parameters import DType, TrialParameters
from corewise.measured.pinning import read_thread_masks
from corewise.measured.runtimes.base import Infeasible, RankContext
from corewise.measured.runtimes.devices.cuda_driver import read_gpu_uuid

# XLA reads this variable when it creates its CPU threads. Without it, XLA counts the CPUs of its mask.
POOL_SIZE_VARIABLE = "PJRT_NPROC"
POOL_THREAD_NAME = "tf_XLAEigen"
# The precision of float32 products on a GPU, by the value of float32_precision.
PRECISIONS = {"default": "highest", "tf32": "tensorfloat32"}


def apply_to_process(params: TrialParameters, context: RankContext) -> Any:
    """Start JAX with the threads of the trial and return the device of the rank, or raise Infeasible."""
    num_threads = params.threads
    os.environ[POOL_SIZE_VARIABLE] = str(num_threads)
    device = _find_device(params.device.value, context)
    num_started = count_pool_threads()
    if device.platform == "cpu" and num_started not in (0, num_threads):
        raise Infeasible(f"threads {num_threads}: XLA has started {num_started} threads in this process already")
    _set_precision(params, device)
    _set_config("jax_default_device", device)
    return device


def count_pool_threads() -> int:
    """Count the CPU threads of XLA in this process; 0 if they cannot be distinguished."""
    # TensorFlow brings a second XLA whose threads have the same name.
    if "tensorflow" in sys.modules:
        return 0
    return sum(mask.name == POOL_THREAD_NAME for mask in read_thread_masks().values())


def read_process_facts(device: Any) -> Mapping[str, Any]:
    """Read threads, device and precision back from JAX and from the process."""
    config: Any = jax.config
    facts = {
        "num_threads": count_pool_threads(),
        "platform": device.platform,
        "device_kind": device.device_kind,
        "x64_enabled": bool(config.jax_enable_x64),
        "matmul_precision": config.jax_default_matmul_precision or "default",
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
    }
    if device.platform == "cpu":
        return facts
    stats = device.memory_stats() or {}
    facts["gpu"] = device.device_kind
    facts["peak_gpu_memory_bytes"] = int(stats.get("peak_bytes_in_use", 0))
    uuid = read_gpu_uuid(int(device.local_hardware_id))
    return facts if uuid is None else {**facts, "gpu_uuid": uuid}


def wait_for(arrays: Any = None) -> None:
    """Wait until these arrays are computed, or all live arrays if none are given."""
    untyped: Any = jax
    untyped.block_until_ready(untyped.live_arrays() if arrays is None else arrays)


def _set_config(name: str, value: Any) -> None:
    jax.config.update(name, value)  # type: ignore[no-untyped-call]


def _find_device(name: str, context: RankContext) -> Any:
    if name == "cpu":
        return jax.devices("cpu")[0]
    # Otherwise JAX would take memory on the GPUs of other ranks.
    _set_config("jax_cuda_visible_devices", str(context.rank))
    try:
        return jax.devices("cuda")[0]
    except RuntimeError as problem:
        message = str(problem).splitlines()[0]
        raise Infeasible(
            f"device {name}: jax sees no CUDA device for rank {context.rank} here ({message}); "
            "for a GPU run pip install 'jax[cuda12]' or 'jax[cuda13]'"
        ) from problem


def _set_precision(params: TrialParameters, device: Any) -> None:
    """Set the precision of float32 products: on a GPU the default of JAX is below float32."""
    precision = params.float32_precision.value
    if precision != "default" and params.dtype != DType.FLOAT32:
        raise Infeasible(f"float32_precision {precision}: dtype is {params.dtype}")
    if device.platform == "cpu":
        if precision != "default":
            raise Infeasible(f"float32_precision {precision}: XLA does not support it on the CPU")
        return
    if precision not in PRECISIONS:
        raise Infeasible(f"float32_precision {precision}: jax does not support it on a GPU; use tf32")
    _set_config("jax_default_matmul_precision", PRECISIONS[precision])
