"""TensorFlow's arrays in pieces, in host memory or on a GPU.

Measured side: standard library, numpy and tensorflow only, Python 3.9. On the CPU TensorFlow reads the host's
buffers where they lie; what it computes it keeps itself. On a GPU it has streams of its own for copies.
"""

from __future__ import annotations

import contextlib
from typing import Any, ContextManager, Tuple

import numpy as np
import tensorflow as tf  # type: ignore[import-untyped]

from corewise.runtimes.aligned import aligned_empty, is_aligned

GPU_PIECES = 3  # one comes, one is computed, one goes


class TensorflowPieces:
    """TensorFlow on the device of its arrays."""

    writes_in_place = False
    num_spare = 2  # the product, and the sum before it

    def __init__(self, arrays: Any) -> None:
        self._arrays = arrays
        self.is_host = bool(arrays.device == "cpu")
        self._place = "/CPU:0" if self.is_host else "/GPU:0"
        self.num_streams = 1 if self.is_host else GPU_PIECES

    def host_buffer(self, shape: Tuple[int, ...], dtype: str) -> Any:
        return aligned_empty(shape, dtype)

    def upload(self, host: Any, out: Any = None) -> Any:
        if self.is_host:
            if not is_aligned(host):  # TensorFlow would end the process
                return self._arrays.from_host(host)
            return tf.experimental.dlpack.from_dlpack(host.__dlpack__())
        with tf.device(self._place):
            there = tf.convert_to_tensor(host)
        self.wait(there)  # the host's buffer may be filled again
        return there

    def view(self, array: Any) -> Any:
        return np.asarray(memoryview(array))  # .numpy() copies

    def download(self, array: Any, host: Any) -> None:
        np.copyto(host, self.view(array) if self.is_host else array.numpy())

    def stream(self) -> ContextManager[Any]:
        return contextlib.nullcontext()

    def wait(self, *results: Any) -> None:
        """Reads one number of each: to wait for the whole GPU would wait for other threads' copies too."""
        if self.is_host:
            return  # TensorFlow has finished when it returns
        with tf.device(self._place):
            for each in results:
                tf.reshape(each, (-1,))[:1].numpy()

    def fft(self, x: Any, axis: int, out: Any = None) -> Any:
        if axis % 2:
            return self._arrays.fft(x)
        return self._arrays.transpose(self._arrays.fft(self._arrays.transpose(x)))

    def multiply_add(self, c: Any, a: Any, b: Any) -> Any:
        with tf.device(self._place):
            return _multiply_add(c, a, b)


# As one graph the sum takes the memory of the product. Shapes are left open: tiles at the edges are smaller.
_multiply_add = tf.function(
    lambda c, a, b: c + tf.linalg.matmul(a, b), autograph=False, reduce_retracing=True
)
