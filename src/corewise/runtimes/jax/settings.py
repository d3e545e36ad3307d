"""A trial's parameters as JAX understands them, and what JAX says of itself.

Measured side: standard library and jax only, Python 3.9.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Mapping

import jax

from corewise.machine.pinning import read_thread_masks
from corewise.runtimes.base import Infeasible, RankContext
from corewise.runtimes.cuda_driver import gpu_uuid

POOL_SIZE = "PJRT_NPROC"  # read by XLA when it makes its CPU threads; without it: the CPUs of its mask
POOL_THREADS = "tf_XLAEigen"
PRECISIONS = {"default": "highest", "tf32": "tensorfloat32"}  # what float32 products are computed in on a GPU


def apply_to_process(params: Mapping[str, Any], context: RankContext) -> Any:
    """The rank's device, JAX started with the trial's threads; raises Infeasible where it has none such."""
    num_threads = int(params["threads"])
    os.environ[POOL_SIZE] = str(num_threads)
    device = _find_device(str(params["device"]), context)
    num_found = num_pool_threads()
    if device.platform == "cpu" and num_found not in (0, num_threads):
        raise Infeasible(f"threads {num_threads}: XLA has {num_found} in this process and keeps them")
    _set_precision(params, device)
    _configure("jax_default_device", device)
    return device


def num_pool_threads() -> int:
    """The threads XLA computes with on the CPU, counted in the process; 0 where they cannot be told apart."""
    if "tensorflow" in sys.modules:  # it has an XLA of its own, whose threads bear the same name
        return 0
    return sum(mask.name == POOL_THREADS for mask in read_thread_masks().values())


def process_facts(device: Any) -> Mapping[str, Any]:
    """Threads, device and numbers, read back from JAX and from the process."""
    config: Any = jax.config
    facts = {
        "num_threads": num_pool_threads(),
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
    uuid = gpu_uuid(int(device.local_hardware_id))
    return facts if uuid is None else {**facts, "gpu_uuid": uuid}


def wait_for(arrays: Any = None) -> None:
    """Returns when these arrays have been computed; every one there is where none are named."""
    untyped: Any = jax
    untyped.block_until_ready(untyped.live_arrays() if arrays is None else arrays)


def _configure(name: str, value: Any) -> None:
    jax.config.update(name, value)  # type: ignore[no-untyped-call]


def _find_device(name: str, context: RankContext) -> Any:
    if name == "cpu":
        return jax.devices("cpu")[0]
    _configure("jax_cuda_visible_devices", str(context.rank))  # no memory taken on others' GPUs
    try:
        return jax.devices("cuda")[0]
    except RuntimeError as problem:
        said = str(problem).splitlines()[0]
        raise Infeasible(
            f"device {name}: jax sees no CUDA device for rank {context.rank} here ({said}); "
            "a GPU needs pip install 'jax[cuda12]' or 'jax[cuda13]'"
        ) from problem


def _set_precision(params: Mapping[str, Any], device: Any) -> None:
    """JAX shortens float32 products on a GPU unasked; here only where the trial says so."""
    precision = str(params.get("float32_precision", "default"))
    if precision != "default" and params["dtype"] != "float32":
        raise Infeasible(f"float32_precision {precision}: dtype is {params['dtype']}")
    if device.platform == "cpu":
        if precision != "default":
            raise Infeasible(f"float32_precision {precision}: XLA has no such products on the cpu")
        return
    if precision not in PRECISIONS:
        raise Infeasible(f"float32_precision {precision}: jax has no such products on a GPU; it has tf32")
    _configure("jax_default_matmul_precision", PRECISIONS[precision])
