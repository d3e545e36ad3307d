"""JAX's arrays in pieces, in host memory or on a GPU.

Measured side: standard library, numpy and jax only, Python 3.9. On the CPU JAX reads the host's buffers where
they lie; what it computes it keeps itself. On a GPU it has a stream each for copies there, copies back and
computing, so threads that wait for their own arrays overlap.
"""

from __future__ import annotations

import contextlib
from typing import Any, ContextManager, Tuple

import jax
import jax.numpy as jnp
import numpy as np

from corewise.runtimes.aligned import aligned_empty

GPU_PIECES = 3  # one comes, one is computed, one goes


class JaxPieces:
    """JAX on the device of its arrays."""

    writes_in_place = False
    num_spare = 1  # the product, before it is added

    def __init__(self, arrays: Any) -> None:
        self._device = next(iter(arrays.empty((0,), "float32").devices()))
        self.is_host = bool(self._device.platform == "cpu")
        self.num_streams = 1 if self.is_host else GPU_PIECES

    def host_buffer(self, shape: Tuple[int, ...], dtype: str) -> Any:
        return aligned_empty(shape, dtype)

    def upload(self, host: Any, out: Any = None) -> Any:
        there = jax.device_put(host, self._device)
        self.wait(there)  # where it was copied, the host's buffer may be filled again
        return there

    def view(self, array: Any) -> Any:
        return np.asarray(array)

    def download(self, array: Any, host: Any) -> None:
        np.copyto(host, np.asarray(array))

    def stream(self) -> ContextManager[Any]:
        return contextlib.nullcontext()

    def wait(self, *results: Any) -> None:
        for each in results:
            each.block_until_ready()

    def fft(self, x: Any, axis: int, out: Any = None) -> Any:
        return jnp.fft.fft(x, axis=axis)

    def multiply_add(self, c: Any, a: Any, b: Any) -> Any:
        return _multiply_add(c, a, b)


def _sum_with_product(c: Any, a: Any, b: Any) -> Any:
    return c + jnp.matmul(a, b)


_multiply_add = jax.jit(_sum_with_product, donate_argnums=0)
