"""TensorFlow's arrays for kernels, in host memory or on a GPU.

Measured side: standard library, numpy and tensorflow only, Python 3.9. XLA compiles a + factor * b, one pass
over memory instead of two, and products of whole numbers, which TensorFlow's own operator is slow at. The
rest is left to TensorFlow's operators: on the CPU they multiply and transform faster than XLA's.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional, Sequence, Tuple

import numpy as np
import tensorflow as tf  # type: ignore[import-untyped]

from corewise.runtimes.base import Infeasible
from corewise.runtimes.cuda_driver import free_gpu_bytes
from corewise.runtimes.filling import DRAWN, LARGEST_INT8, fill_normal
from corewise.runtimes.host_memory import free_host_bytes
from corewise.runtimes.tensorflow.sparse import make_csr, multiply_csr

DOT_BLOCKS = 64  # a product of two vectors takes one thread; so many shorter ones take them all
LEAST_IN_BLOCKS = 2**16
LEAST_FOR_XLA = 2**19  # elements; below, calling compiled code costs more than a second pass over memory
DTYPES = ("float64", "float32", "bfloat16", "float16", "int8", "complex64", "complex128")


class TensorflowArrays:
    """TensorFlow on one device; nothing is moved to another one unasked."""

    runtime = "tensorflow"
    writes_in_place = False
    memory_factor = 2.0
    threads_elementwise = True
    dtypes: Tuple[str, ...] = DTYPES

    def __init__(self, device: str = "cpu", ordinal: int = 0) -> None:
        self.device = device
        self._place = "/CPU:0" if device == "cpu" else "/GPU:0"
        self._ordinal = ordinal  # of the GPU among those of the process
        self._numbers: Dict[Tuple[Any, Any], Any] = {}

    def empty(self, shape: Tuple[int, ...], dtype: str) -> Any:
        return self.zeros(shape, dtype)

    def zeros(self, shape: Tuple[int, ...], dtype: str) -> Any:
        with tf.device(self._place):
            return tf.zeros(shape, _known(dtype))

    def normal(self, shape: Tuple[int, ...], dtype: str, seed: int) -> Any:
        if self.device == "cpu" and dtype in DRAWN:
            drawn = np.empty(shape, dtype)
            fill_normal(drawn, seed)
            with tf.device(self._place):
                # Copied by TensorFlow's threads, so that each makes the pages it will work on.
                return tf.raw_ops.DeepCopy(x=tf.constant(drawn))
        with tf.device(self._place):
            return _drawn(shape, _known(dtype), seed)

    def from_host(self, array: Any) -> Any:
        with tf.device(self._place):
            return tf.constant(np.array(array))  # TensorFlow may go on using the memory it is given

    def to_host(self, array: Any) -> Any:
        if array.dtype in (tf.bfloat16, tf.float16):
            array = tf.cast(array, tf.float32)
        return np.array(array.numpy())

    def copy(self, a: Any, out: Optional[Any] = None) -> Any:
        with tf.device(self._place):
            return tf.raw_ops.DeepCopy(x=a)  # tf.identity gives the same memory again

    def scale(self, factor: Any, a: Any, out: Optional[Any] = None) -> Any:
        with tf.device(self._place):
            return tf.multiply(self._number(factor, a.dtype), a)

    def add(self, a: Any, b: Any, out: Optional[Any] = None) -> Any:
        with tf.device(self._place):
            return tf.add(a, b)

    def multiply(self, a: Any, b: Any, out: Optional[Any] = None) -> Any:
        with tf.device(self._place):
            return tf.multiply(a, b)

    def add_scaled(self, a: Any, factor: Any, b: Any, out: Optional[Any] = None) -> Any:
        with tf.device(self._place):
            compute = _add_scaled if a.shape.num_elements() >= LEAST_FOR_XLA else _add
            return compute(a, self._number(factor, b.dtype), b)

    def dot(self, a: Any, b: Any) -> Any:
        with tf.device(self._place):
            if self.device == "cpu" and a.shape[0] >= LEAST_IN_BLOCKS and a.shape[0] % DOT_BLOCKS == 0:
                rows, columns = tf.reshape(a, (DOT_BLOCKS, 1, -1)), tf.reshape(b, (DOT_BLOCKS, -1, 1))
                return tf.reduce_sum(tf.linalg.matmul(rows, columns))
            return tf.tensordot(a, b, 1)

    def matmul(self, a: Any, b: Any, out: Optional[Any] = None) -> Any:
        with tf.device(self._place):
            if a.dtype == tf.int8:
                return _whole_product(a, b)
            return tf.linalg.matvec(a, b) if len(b.shape) == 1 else tf.linalg.matmul(a, b)

    def right_factor(self, matrix: Any) -> Any:
        return matrix

    def subtract_scaled(self, a: Any, factor: Any, b: Any, out: Optional[Any] = None) -> Any:
        with tf.device(self._place):
            return _add_scaled(a, -self._number(factor, b.dtype), b)

    def add_quotient(self, a: Any, b: Any, divisor: Any, sign: float = 1.0, out: Optional[Any] = None) -> Any:
        with tf.device(self._place):
            return _add_scaled(a, sign / self._number(divisor, b.dtype), b)

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

    def csr(self, starts: Any, columns: Any, values: Any, num_columns: int) -> Any:
        with tf.device(self._place):
            return make_csr(starts, columns, values)

    def csr_matvec(self, matrix: Any, x: Any, out: Optional[Any] = None) -> Any:
        with tf.device(self._place):
            return multiply_csr(matrix, x)

    def fft(self, x: Any) -> Any:
        with tf.device(self._place):
            return tf.signal.fft(x)

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function as one graph; numbers among its arguments may change without a new one."""
        graph = tf.function(function, autograph=False)

        def call(*args: Any) -> Any:
            return graph(*(tf.constant(a, tf.float64) if isinstance(a, float) else a for a in args))

        return call

    def finish(self, *arrays: Any) -> None:
        """TensorFlow has finished on the CPU when it returns; on a GPU all it was given is waited for."""
        if self.device != "cpu":
            tf.test.experimental.sync_devices()

    def free_bytes(self) -> int:
        if self.device == "cpu":
            return free_host_bytes()
        untaken = free_gpu_bytes(self._ordinal)
        if untaken is None:
            raise Infeasible("device cuda: the driver does not tell how much memory is free")
        return untaken

    def _number(self, factor: Any, dtype: Any) -> Any:
        """The factor as an array of no dimension on the device; each number is taken there once."""
        if tf.is_tensor(factor):
            return tf.cast(factor, dtype)
        if not tf.executing_eagerly():
            return tf.constant(factor, dtype)
        number, key = self._numbers.get((factor, dtype)), (factor, dtype)
        if number is None:
            number = self._numbers[key] = tf.constant(factor, dtype)
        return number


def _add(a: Any, factor: Any, b: Any) -> Any:
    return a + factor * b


def _multiply_whole(a: Any, b: Any) -> Any:
    if len(b.shape) == 1:
        return tf.squeeze(tf.linalg.matmul(a, b[:, tf.newaxis], output_type=tf.int32), -1)
    return tf.linalg.matmul(a, b, output_type=tf.int32)


_add_scaled = tf.function(_add, autograph=False, jit_compile=True)
_whole_product = tf.function(_multiply_whole, autograph=False, jit_compile=True)


def _drawn(shape: Tuple[int, ...], dtype: str, seed: int) -> Any:
    """Random numbers made on the device."""
    if dtype == "int8":
        whole = tf.random.stateless_uniform(shape, (seed, 0), -LARGEST_INT8, LARGEST_INT8 + 1, tf.int32)
        return tf.cast(whole, tf.int8)
    if dtype.startswith("complex"):
        real = "float64" if dtype == "complex128" else "float32"
        return tf.complex(*(tf.random.stateless_normal(shape, (seed, part), dtype=real) for part in (0, 1)))
    return tf.random.stateless_normal(shape, (seed, 0), dtype=dtype)


def _known(dtype: str) -> str:
    if dtype not in DTYPES and dtype != "int32":
        raise Infeasible(f"tensorflow arrays have no dtype {dtype}; they have {', '.join(DTYPES)}")
    return dtype
