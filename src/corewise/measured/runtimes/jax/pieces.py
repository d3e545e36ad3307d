"""JAX arrays in pieces, in host memory or on a GPU.

Measured side: standard library, numpy and jax only, Python 3.9. On the CPU JAX reads host buffers without a
copy and allocates its results. On a GPU it has separate streams for copies to the device, copies to the host
and computation, so threads that wait for different arrays overlap.
"""

from __future__ import annotations

import contextlib
from typing import Any, ContextManager, Tuple

import jax
import jax.numpy as jnp
import numpy as np

from corewise.measured.runtimes.arrays.aligned_memory import allocate_aligned

# One piece is copied to the device, one is computed, one is copied back.
GPU_PIECES = 3


class JaxPieces:
    """JAX arrays in pieces, on the device of the given arrays."""

    writes_in_place = False
    # The product, before it is added.
    num_spare = 1

    def __init__(self, arrays: Any) -> None:
        self._device = next(iter(arrays.create_empty((0,), "float32").devices()))
        self.is_host = bool(self._device.platform == "cpu")
        self.num_streams = 1 if self.is_host else GPU_PIECES

    def allocate_host_buffer(self, shape: Tuple[int, ...], dtype: str) -> Any:
        return allocate_aligned(shape, dtype)

    def move_to_device(self, host: Any, out: Any = None) -> Any:
        array = jax.device_put(host, self._device)
        # If it was copied, the host buffer can be filled again after this wait.
        self.wait(array)
        return array

    def as_numpy(self, array: Any) -> Any:
        return np.asarray(array)

    def copy_to_host(self, array: Any, host: Any) -> None:
        np.copyto(host, np.asarray(array))

    def use_stream(self) -> ContextManager[Any]:
        return contextlib.nullcontext()

    def wait(self, *results: Any) -> None:
        for each in results:
            each.block_until_ready()

    def compute_fft(self, x: Any, axis: int, out: Any = None) -> Any:
        return jnp.fft.fft(x, axis=axis)

    def add_product(self, c: Any, a: Any, b: Any) -> Any:
        return _multiply_add(c, a, b)


def _sum_with_product(c: Any, a: Any, b: Any) -> Any:
    return c + jnp.matmul(a, b)


_multiply_add = jax.jit(_sum_with_product, donate_argnums=0)
