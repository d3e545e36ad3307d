"""Query the NVIDIA driver about a GPU, for frameworks that do not report it.

Measured side: standard library only, Python 3.9. Every result is None if the driver is not available.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import uuid
from typing import Any, Iterator, Optional

DRIVER = "libcuda.so.1"


class DriverError(Exception):
    """Raised if a call of the driver fails."""


def read_free_gpu_bytes(ordinal: int) -> Optional[int]:
    """Read the free memory of a GPU, by its number in this process."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    try:
        with _use_context(ordinal):
            _call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    except DriverError:
        return None
    return free.value


def read_gpu_uuid(ordinal: int) -> Optional[str]:
    """Read the UUID of a GPU, as nvidia-smi shows it."""
    raw_uuid = (ctypes.c_ubyte * 16)()
    try:
        _call("cuDeviceGetUuid", raw_uuid, _find_device(ordinal))
    except DriverError:
        return None
    return f"GPU-{uuid.UUID(bytes=bytes(raw_uuid))}"


@contextlib.contextmanager
def _use_context(ordinal: int) -> Iterator[None]:
    """Make the primary context, which frameworks use, current for this thread."""
    device, context = _find_device(ordinal), ctypes.c_void_p()
    _call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    try:
        _call("cuCtxPushCurrent_v2", context)
        try:
            yield
        finally:
            _call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))
    finally:
        _call("cuDevicePrimaryCtxRelease_v2", device)


def _find_device(ordinal: int) -> ctypes.c_int:
    device = ctypes.c_int()
    _call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(ordinal))
    return device


def _call(name: str, *arguments: Any) -> None:
    try:
        code = getattr(_load_driver(), name)(*arguments)
    except (OSError, AttributeError) as problem:
        # There is no driver, or it lacks this function.
        raise DriverError(str(problem)) from problem
    if code != 0:
        raise DriverError(f"{name} returned {code}")


@functools.cache
def _load_driver() -> Any:
    driver = ctypes.CDLL(DRIVER)
    if driver.cuInit(0) != 0:
        raise OSError(f"{DRIVER} cannot be used here")
    return driver
