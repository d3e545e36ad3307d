"""TensorFlow arrays for kernels, in host memory or on a GPU.

Measured side: standard library, numpy and tensorflow only, Python 3.9. XLA compiles a + factor * b, in one
pass over memory instead of two, and integer products, for which the TensorFlow operator is slow. All else
uses TensorFlow operators, whose products and transforms are faster than those of XLA on the CPU.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional, Sequence, Tuple

import numpy as np
import tensorflow as tf  # type: ignore[import-untyped]

from corewise.measured.runtimes.arrays.random_fill import DRAWABLE_DTYPES, MAX_INT8, fill_normal
from corewise.measured.runtimes.base import Infeasible
from corewise.measured.runtimes.devices.cuda_driver import read_free_gpu_bytes
from corewise.measured.runtimes.devices.host_memory import read_free_host_bytes
from corewise.measured.runtimes.tensorflow.sparse import build_csr, multiply_csr

# A dot product uses one thread, so long vectors are split into this many blocks.
DOT_BLOCKS = 64
MIN_BLOCKED_DOT_ELEMENTS = 2**16
# Below this size, calling compiled code costs more than a second pass over memory.
MIN_XLA_ELEMENTS = 2**19
DTYPES = ("float64", "float32", "bfloat16", "float16", "int8", "complex64", "complex128")


class TensorflowArrays:
    """TensorFlow arrays on one device; `ordinal` is the number of the GPU in this process."""

    runtime = "tensorflow"
    writes_in_place = False
    memory_factor = 2.0
    threads_elementwise = True
    dtypes: Tuple[str, ...] = DTYPES

    def __init__(self, device: str = "cpu", ordinal: int = 0) -> None:
        self.device = device
        self._place = "/CPU:0" if device == "cpu" else "/GPU:0"
        self._ordinal = ordinal
        self._scalars: Dict[Tuple[Any, Any], Any] = {}

    def create_empty(self, shape: Tuple[int, ...], dtype: str) -> Any:
        return self.create_zeros(shape, dtype)

    def create_zeros(self, shape: Tuple[int, ...], dtype: str) -> Any:
        with tf.device(self._place):
            return tf.zeros(shape, _check_dtype(dtype))

    def draw_normal(self, shape: Tuple[int, ...], dtype: str, seed: int) -> Any:
        if self.device == "cpu" and dtype in DRAWABLE_DTYPES:
            numbers = np.empty(shape, dtype)
            fill_normal(numbers, seed)
            with tf.device(self._place):
                # The threads of TensorFlow make the copy, so each thread touches its pages first.
                return tf.raw_ops.DeepCopy(x=tf.constant(numbers))
        with tf.device(self._place):
            return _draw_normal(shape, _check_dtype(dtype), seed)

    def from_host(self, array: Any) -> Any:
        with tf.device(self._place):
            # Copy, because TensorFlow may share the memory of its argument.
            return tf.constant(np.array(array))

    def to_host(self, array: Any) -> Any:
        if array.dtype in (tf.bfloat16, tf.float16):
            array = tf.cast(array, tf.float32)
        return np.array(array.numpy())

    def copy(self, a: Any, out: Optional[Any] = None) -> Any:
        with tf.device(self._place):
            # tf.identity would share the memory.
            return tf.raw_ops.DeepCopy(x=a)

    def scale(self, factor: Any, a: Any, out: Optional[Any] = None) -> Any:
        with tf.device(self._place):
            return tf.multiply(self._to_scalar(factor, a.dtype), a)

    def add(self, a: Any, b: Any, out: Optional[Any] = None) -> Any:
        with tf.device(self._place):
            return tf.add(a, b)

    def multiply(self, a: Any, b: Any, out: Optional[Any] = None) -> Any:
        with tf.device(self._place):
            return tf.multiply(a, b)

    def add_scaled(self, a: Any, factor: Any, b: Any, out: Optional[Any] = None) -> Any:
        with tf.device(self._place):
            compute = _add_scaled if a.shape.num_elements() >= MIN_XLA_ELEMENTS else _add_scaled_plain
            return compute(a, self._to_scalar(factor, b.dtype), b)

    def compute_dot(self, a: Any, b: Any) -> Any:
        with tf.device(self._place):
            if self.device == "cpu" and a.shape[0] >= MIN_BLOCKED_DOT_ELEMENTS and a.shape[0] % DOT_BLOCKS == 0:
                rows, columns = tf.reshape(a, (DOT_BLOCKS, 1, -1)), tf.reshape(b, (DOT_BLOCKS, -1, 1))
                return tf.reduce_sum(tf.linalg.matmul(rows, columns))
            return tf.tensordot(a, b, 1)

    def matmul(self, a: Any, b: Any, out: Optional[Any] = None) -> Any:
        with tf.device(self._place):
            if a.dtype == tf.int8:
                return _compiled_matmul_int8(a, b)
            return tf.linalg.matvec(a, b) if len(b.shape) == 1 else tf.linalg.matmul(a, b)

    def prepare_right_factor(self, matrix: Any) -> Any:
        return matrix

    def subtract_scaled(self, a: Any, factor: Any, b: Any, out: Optional[Any] = None) -> Any:
        with tf.device(self._place):
            return _add_scaled(a, -self._to_scalar(factor, b.dtype), b)

    def add_quotient(self, a: Any, b: Any, divisor: Any, sign: float = 1.0, out: Optional[Any] = None) -> Any:
        with tf.device(self._place):
            return _add_scaled(a, sign / self._to_scalar(divisor, b.dtype), b)

    def transpose(self, a: Any) -> Any:
        with tf.device(self._place):
            return tf.transpose(a)

    def reshape(self, a: Any, shape: Tuple[int, ...]) -> Any:
        with tf.device(self._place):
            return tf.reshape(a, shape)

    def concatenate(self, arrays: Sequence[Any], axis: int = 0) -> Any:
        with tf.device(self._place):
            return tf.concat(arrays, axis)

    def stack(self, numbers: Sequence[Any]) -> Any:
        with tf.device(self._place):
            return tf.stack(numbers)

    def build_csr(self, starts: Any, columns: Any, values: Any, num_columns: int) -> Any:
        with tf.device(self._place):
            return build_csr(starts, columns, values)

    def multiply_csr(self, matrix: Any, x: Any, out: Optional[Any] = None) -> Any:
        with tf.device(self._place):
            return multiply_csr(matrix, x)

    def compute_fft(self, x: Any) -> Any:
        with tf.device(self._place):
            return tf.signal.fft(x)

    def compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Compile to one graph; float arguments become tensors, so new values need no new graph."""
        graph = tf.function(function, autograph=False)

        def call(*args: Any) -> Any:
            return graph(*(tf.constant(a, tf.float64) if isinstance(a, float) else a for a in args))

        return call

    def finish(self, *arrays: Any) -> None:
        """Wait for all work of a GPU; on the CPU TensorFlow is synchronous."""
        if self.device != "cpu":
            tf.test.experimental.sync_devices()

    def free_bytes(self) -> int:
        if self.device == "cpu":
            return read_free_host_bytes()
        num_bytes = read_free_gpu_bytes(self._ordinal)
        if num_bytes is None:
            raise Infeasible("device cuda: the driver does not report how much memory is free")
        return num_bytes

    def _to_scalar(self, factor: Any, dtype: Any) -> Any:
        """Return the factor as a 0-dimensional tensor on the device; each number is copied there once."""
        if tf.is_tensor(factor):
            return tf.cast(factor, dtype)
        if not tf.executing_eagerly():
            return tf.constant(factor, dtype)
        key = (factor, dtype)
        if key not in self._scalars:
            self._scalars[key] = tf.constant(factor, dtype)
        return self._scalars[key]


def _add_scaled_plain(a: Any, factor: Any, b: Any) -> Any:
    return a + factor * b


def _matmul_int8(a: Any, b: Any) -> Any:
    if len(b.shape) == 1:
        return tf.squeeze(tf.linalg.matmul(a, b[:, tf.newaxis], output_type=tf.int32), -1)
    return tf.linalg.matmul(a, b, output_type=tf.int32)


_add_scaled = tf.function(_add_scaled_plain, autograph=False, jit_compile=True)
_compiled_matmul_int8 = tf.function(_matmul_int8, autograph=False, jit_compile=True)


def _draw_normal(shape: Tuple[int, ...], dtype: str, seed: int) -> Any:
    """Draw random numbers on the device."""
    if dtype == "int8":
        integers = tf.random.stateless_uniform(shape, (seed, 0), -MAX_INT8, MAX_INT8 + 1, tf.int32)
        return tf.cast(integers, tf.int8)
    if dtype.startswith("complex"):
        real = "float64" if dtype == "complex128" else "float32"
        return tf.complex(*(tf.random.stateless_normal(shape, (seed, part), dtype=real) for part in (0, 1)))
    return tf.random.stateless_normal(shape, (seed, 0), dtype=dtype)


def _check_dtype(dtype: str) -> str:
    if dtype not in DTYPES and dtype != "int32":
        raise Infeasible(f"tensorflow arrays have no dtype {dtype}; they have {', '.join(DTYPES)}")
    return dtype
