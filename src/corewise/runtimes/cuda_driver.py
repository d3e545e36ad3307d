"""What NVIDIA's driver says of a GPU, for frameworks that do not tell.

Measured side: standard library only, Python 3.9. Every answer is None where the driver cannot be asked.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import uuid
from typing import Any, Iterator, Optional

DRIVER = "libcuda.so.1"


class DriverError(Exception):
    """A call of the driver that did not succeed."""


def free_gpu_bytes(ordinal: int) -> Optional[int]:
    """The memory nobody has taken on the GPU of that number, counted as this process sees GPUs."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    try:
        with _current_context(ordinal):
            _call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    except DriverError:
        return None
    return free.value


def gpu_uuid(ordinal: int) -> Optional[str]:
    """The name nvidia-smi knows the GPU by."""
    told = (ctypes.c_ubyte * 16)()
    try:
        _call("cuDeviceGetUuid", told, _device(ordinal))
    except DriverError:
        return None
    return f"GPU-{uuid.UUID(bytes=bytes(told))}"


@contextlib.contextmanager
def _current_context(ordinal: int) -> Iterator[None]:
    """The context the framework itself computes in, made current for this thread."""
    device, context = _device(ordinal), ctypes.c_void_p()
    _call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    try:
        _call("cuCtxPushCurrent_v2", context)
        try:
            yield
        finally:
            _call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))
    finally:
        _call("cuDevicePrimaryCtxRelease_v2", device)


def _device(ordinal: int) -> ctypes.c_int:
    device = ctypes.c_int()
    _call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(ordinal))
    return device


def _call(name: str, *arguments: Any) -> None:
    try:
        code = getattr(_driver(), name)(*arguments)
    except (OSError, AttributeError) as problem:  # no driver, or one without this call
        raise DriverError(str(problem)) from problem
    if code != 0:
        raise DriverError(f"{name} returned {code}")


@functools.cache
def _driver() -> Any:
    driver = ctypes.CDLL(DRIVER)
    if driver.cuInit(0) != 0:
        raise OSError(f"{DRIVER} cannot be used here")
    return driver
