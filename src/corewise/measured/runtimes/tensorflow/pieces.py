"""TensorFlow arrays in pieces, in host memory or on a GPU.

Measured side: standard library, numpy and tensorflow only, Python 3.9. On the CPU TensorFlow reads host
buffers without a copy and allocates its results. On a GPU it has separate streams for copies.
"""

from __future__ import annotations

import contextlib
from typing import Any, ContextManager, Tuple

import numpy as np
import tensorflow as tf  # type: ignore[import-untyped]

from corewise.measured.runtimes.arrays.aligned_memory import allocate_aligned, is_aligned

# One piece is copied to the device, one is computed, one is copied back.
GPU_PIECES = 3


class TensorflowPieces:
    """TensorFlow arrays in pieces, on the device of the given arrays."""

    writes_in_place = False
    # The product, and the sum before it.
    num_spare = 2

    def __init__(self, arrays: Any) -> None:
        self._arrays = arrays
        self.is_host = bool(arrays.device == "cpu")
        self._place = "/CPU:0" if self.is_host else "/GPU:0"
        self.num_streams = 1 if self.is_host else GPU_PIECES

    def allocate_host_buffer(self, shape: Tuple[int, ...], dtype: str) -> Any:
        return allocate_aligned(shape, dtype)

    def move_to_device(self, host: Any, out: Any = None) -> Any:
        if self.is_host:
            # TensorFlow would abort the process for unaligned memory.
            if not is_aligned(host):
                return self._arrays.from_host(host)
            return tf.experimental.dlpack.from_dlpack(host.__dlpack__())
        with tf.device(self._place):
            array = tf.convert_to_tensor(host)
        # After this wait the host buffer can be filled again.
        self.wait(array)
        return array

    def as_numpy(self, array: Any) -> Any:
        # The method numpy() would copy.
        return np.asarray(memoryview(array))

    def copy_to_host(self, array: Any, host: Any) -> None:
        np.copyto(host, self.as_numpy(array) if self.is_host else array.numpy())

    def use_stream(self) -> ContextManager[Any]:
        return contextlib.nullcontext()

    def wait(self, *results: Any) -> None:
        """Read one number of each result: waiting for the GPU would include copies of other threads."""
        # On the CPU TensorFlow is synchronous.
        if self.is_host:
            return
        with tf.device(self._place):
            for each in results:
                tf.reshape(each, (-1,))[:1].numpy()

    def compute_fft(self, x: Any, axis: int, out: Any = None) -> Any:
        if axis % 2:
            return self._arrays.compute_fft(x)
        return self._arrays.transpose(self._arrays.compute_fft(self._arrays.transpose(x)))

    def add_product(self, c: Any, a: Any, b: Any) -> Any:
        with tf.device(self._place):
            return _multiply_add(c, a, b)


# In one graph the sum reuses the memory of the product. Shapes stay open, because edge tiles are smaller.
_multiply_add = tf.function(lambda c, a, b: c + tf.linalg.matmul(a, b), autograph=False, reduce_retracing=True)
