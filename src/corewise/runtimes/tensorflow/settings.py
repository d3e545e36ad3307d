"""A trial's parameters as TensorFlow understands them, and what TensorFlow says of itself.

Measured side: standard library and tensorflow only, Python 3.9.
"""

from __future__ import annotations

import os
from typing import Any, Callable, Mapping

import tensorflow as tf  # type: ignore[import-untyped]

from corewise.runtimes.base import Infeasible, RankContext
from corewise.runtimes.cuda_driver import gpu_uuid

INTRA_OP = "TF_NUM_INTRAOP_THREADS"
ONEDNN = "TF_ENABLE_ONEDNN_OPTS"  # read once, when TensorFlow is imported


def apply_to_process(params: Mapping[str, Any], context: RankContext) -> int:
    """The number of the rank's GPU (0 on the cpu), once threads, device and numbers hold for the process.

    Raises Infeasible where TensorFlow has no such thing here. Call it before any operator.
    """
    threading = tf.config.threading
    _set_threads("threads", int(params["threads"]), threading.set_intra_op_parallelism_threads)
    if params["interop_threads"] is not None:
        num_beside = int(params["interop_threads"])
        _set_threads("interop_threads", num_beside, threading.set_inter_op_parallelism_threads)
    if params["math"] == "vanilla" and onednn_enabled():
        raise Infeasible(f"math vanilla: set {ONEDNN}=0 before TensorFlow is imported")
    _set_precision(params)
    return _choose_device(str(params["device"]), context)


def onednn_enabled() -> bool:
    """Whether oneDNN's operators take the place of TensorFlow's own."""
    try:
        from tensorflow.python.util import _pywrap_util_port  # type: ignore[import-untyped]

        return bool(_pywrap_util_port.IsMklEnabled())
    except (ImportError, AttributeError):  # not a public name
        return os.environ.get(ONEDNN) == "1"


def process_facts(device: str, ordinal: int) -> Mapping[str, Any]:
    """Threads, device and numbers, read back from TensorFlow."""
    facts = {
        "num_threads": _intra_op_threads(),
        "num_interop_threads": tf.config.threading.get_inter_op_parallelism_threads(),  # 0: its own choice
        "onednn_enabled": onednn_enabled(),
    }
    if device == "cpu":
        return facts
    facts["tensor_float_32"] = tf.config.experimental.tensor_float_32_execution_enabled()
    physical = tf.config.get_visible_devices("GPU")[0]
    facts["gpu"] = tf.config.experimental.get_device_details(physical).get("device_name", "unknown")
    facts["peak_gpu_memory_bytes"] = tf.config.experimental.get_memory_info("GPU:0")["peak"]
    uuid = gpu_uuid(ordinal)
    return facts if uuid is None else {**facts, "gpu_uuid": uuid}


def finish_device(device: str) -> Callable[[], None]:
    """What waits until the device has done everything it was told; the CPU has when an operator returns."""
    return (lambda: None) if device == "cpu" else tf.test.experimental.sync_devices


def _intra_op_threads() -> int:
    """The threads of one operator: those set, else those of the environment, else a thread for each CPU."""
    given = int(tf.config.threading.get_intra_op_parallelism_threads())
    return given or int(os.environ.get(INTRA_OP, 0)) or len(os.sched_getaffinity(0))


def _set_threads(name: str, number: int, setter: Callable[[int], None]) -> None:
    try:
        setter(number)
    except RuntimeError as problem:  # the process has computed already
        if name != "threads" or number != _intra_op_threads():
            raise Infeasible(f"{name} {number}: TensorFlow has started its threads already") from problem


def _choose_device(name: str, context: RankContext) -> int:
    gpus = tf.config.list_physical_devices("GPU")
    if name == "cpu":
        if gpus:
            tf.config.set_visible_devices([], "GPU")
        return 0
    if not gpus:
        raise Infeasible(
            "device cuda: tensorflow sees no CUDA device here; tensorflow-cpu has none, "
            "a GPU needs pip install 'tensorflow[and-cuda]'"
        )
    ordinal = context.rank % len(gpus)
    tf.config.set_visible_devices([gpus[ordinal]], "GPU")
    tf.config.experimental.set_memory_growth(gpus[ordinal], True)  # what is free is seen, and left to others
    tf.config.set_soft_device_placement(False)  # an operator the GPU lacks is an error, not the CPU's work
    return ordinal


def _set_precision(params: Mapping[str, Any]) -> None:
    """TensorFlow shortens float32 products on a GPU unasked; here only where the trial says so."""
    precision, on_gpu = str(params.get("float32_precision", "default")), params["device"] == "cuda"
    if precision != "default":
        if params["dtype"] != "float32":
            raise Infeasible(f"float32_precision {precision}: dtype is {params['dtype']}")
        if precision != "tf32" or not on_gpu:
            raise Infeasible(
                f"float32_precision {precision}: tensorflow has no such products on {params['device']}; "
                "it has tf32 on cuda"
            )
    if on_gpu:
        tf.config.experimental.enable_tensor_float_32_execution(precision == "tf32")
