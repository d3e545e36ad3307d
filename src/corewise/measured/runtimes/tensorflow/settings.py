"""Apply the parameters of a trial to TensorFlow, and read its settings back.

Measured side: standard library and tensorflow only, Python 3.9.
"""

from __future__ import annotations

import os
from typing import Any, Callable, Mapping

import tensorflow as tf  # type: ignore[import-untyped]

from corewise.measured.parameters import Device, DType, MathKernels, TrialParameters
from corewise.measured.runtimes.base import Infeasible, RankContext
from corewise.measured.runtimes.devices.cuda_driver import read_gpu_uuid

INTRA_OP_VARIABLE = "TF_NUM_INTRAOP_THREADS"
# TensorFlow reads this variable once, when it is imported.
ONEDNN_VARIABLE = "TF_ENABLE_ONEDNN_OPTS"


def apply_to_process(params: TrialParameters, context: RankContext) -> int:
    """Set threads, device and precision of the process; return the number of the GPU (0 on the CPU).

    Raises Infeasible if TensorFlow does not support them here. Call it before any operator.
    """
    threading = tf.config.threading
    _set_threads("threads", params.threads, threading.set_intra_op_parallelism_threads)
    if params.interop_threads is not None:
        num_interop_threads = params.interop_threads
        _set_threads("interop_threads", num_interop_threads, threading.set_inter_op_parallelism_threads)
    if params.math == MathKernels.VANILLA and is_onednn_enabled():
        raise Infeasible(f"math vanilla: set {ONEDNN_VARIABLE}=0 before TensorFlow is imported")
    _set_precision(params)
    return _choose_device(params.device.value, context)


def is_onednn_enabled() -> bool:
    """Return whether TensorFlow uses the operators of oneDNN."""
    try:
        from tensorflow.python.util import _pywrap_util_port  # type: ignore[import-untyped]

        return bool(_pywrap_util_port.IsMklEnabled())
    except (ImportError, AttributeError):
        # The module is private and may change.
        return os.environ.get(ONEDNN_VARIABLE) == "1"


def read_process_facts(device: str, ordinal: int) -> Mapping[str, Any]:
    """Read threads, device and precision back from TensorFlow."""
    facts = {
        "num_threads": _count_intra_op_threads(),
        # A value of 0 means that TensorFlow chooses.
        "num_interop_threads": tf.config.threading.get_inter_op_parallelism_threads(),
        "onednn_enabled": is_onednn_enabled(),
    }
    if device == "cpu":
        return facts
    facts["tensor_float_32"] = tf.config.experimental.tensor_float_32_execution_enabled()
    physical = tf.config.get_visible_devices("GPU")[0]
    facts["gpu"] = tf.config.experimental.get_device_details(physical).get("device_name", "unknown")
    facts["peak_gpu_memory_bytes"] = tf.config.experimental.get_memory_info("GPU:0")["peak"]
    uuid = read_gpu_uuid(ordinal)
    return facts if uuid is None else {**facts, "gpu_uuid": uuid}


def select_finish(device: str) -> Callable[[], None]:
    """Return a function that waits for the device; on the CPU operators are synchronous."""
    return (lambda: None) if device == "cpu" else tf.test.experimental.sync_devices


def _count_intra_op_threads() -> int:
    """Count the threads of one operator: as configured, else from the environment, else one per CPU."""
    given = int(tf.config.threading.get_intra_op_parallelism_threads())
    return given or int(os.environ.get(INTRA_OP_VARIABLE, 0)) or len(os.sched_getaffinity(0))


def _set_threads(name: str, number: int, setter: Callable[[int], None]) -> None:
    try:
        setter(number)
    except RuntimeError as problem:
        # TensorFlow has run an operator in this process already.
        if name != "threads" or number != _count_intra_op_threads():
            raise Infeasible(f"{name} {number}: TensorFlow has started its threads already") from problem


def _choose_device(name: str, context: RankContext) -> int:
    gpus = tf.config.list_physical_devices("GPU")
    if name == "cpu":
        if gpus:
            tf.config.set_visible_devices([], "GPU")
        return 0
    if not gpus:
        raise Infeasible(
            "device cuda: tensorflow sees no CUDA device here; tensorflow-cpu does not support one, "
            "for a GPU run pip install 'tensorflow[and-cuda]'"
        )
    ordinal = context.rank % len(gpus)
    tf.config.set_visible_devices([gpus[ordinal]], "GPU")
    # Without memory growth TensorFlow would take all memory of the GPU.
    tf.config.experimental.set_memory_growth(gpus[ordinal], True)
    # An operator that the GPU lacks must fail instead of running on the CPU.
    tf.config.set_soft_device_placement(False)
    return ordinal


def _set_precision(params: TrialParameters) -> None:
    """Set the precision of float32 products: on a GPU the default of TensorFlow is TF32."""
    precision, on_gpu = params.float32_precision.value, params.device == Device.CUDA
    if precision != "default":
        if params.dtype != DType.FLOAT32:
            raise Infeasible(f"float32_precision {precision}: dtype is {params.dtype}")
        if precision != "tf32" or not on_gpu:
            raise Infeasible(
                f"float32_precision {precision}: tensorflow does not support it on {params.device}; use tf32 on cuda"
            )
    if on_gpu:
        tf.config.experimental.enable_tensor_float_32_execution(precision == "tf32")
