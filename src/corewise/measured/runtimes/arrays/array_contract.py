"""The array operations that kernels need from a framework, on one device.

Measured side: standard library and numpy only, Python 3.9. Each runtime has one implementation, in
`runtimes/<name>/arrays.py`; a kernel is written once against this protocol.
"""

from __future__ import annotations

from typing import Any, Callable, Optional, Protocol, Sequence, Tuple

# The array type of the framework.
Array = Any


class Arrays(Protocol):
    """The arrays of a framework on one device.

    Operations return their result. `out` is an array with the shape of the result that may be overwritten. If
    arrays are immutable, `out` is ignored (tensorflow) or donates its memory and becomes invalid (jax). A
    kernel therefore always keeps the returned array and never reads `out` again.
    Scalar results (`compute_dot`) are 0-dimensional arrays on the device; reading one waits for the device.

    Attributes:
        runtime: numpy, torch, jax or tensorflow.
        device: cpu or cuda.
        writes_in_place: False if `out` is ignored or invalid afterwards.
        threads_elementwise: False if elementwise operations use one thread.
        memory_factor: peak memory of a kernel over the size of its arrays; a kernel may give a better value.
        dtypes: the supported number formats.
    """

    runtime: str
    device: str
    writes_in_place: bool
    threads_elementwise: bool
    memory_factor: float
    dtypes: Tuple[str, ...]

    def create_empty(self, shape: Tuple[int, ...], dtype: str) -> Array: ...

    def create_zeros(self, shape: Tuple[int, ...], dtype: str) -> Array: ...

    def draw_normal(self, shape: Tuple[int, ...], dtype: str, seed: int) -> Array:
        """Draw normal random numbers on the device, in pieces; int8 gets integers from -127 to 127."""
        ...

    def from_host(self, array: Any) -> Array:
        """Copy a numpy array to the device with its dtype."""
        ...

    def to_host(self, array: Array) -> Any:
        """Copy to a numpy array (bfloat16 becomes float32); waits for the values."""
        ...

    def copy(self, a: Array, out: Optional[Array] = None) -> Array: ...

    def scale(self, factor: Any, a: Array, out: Optional[Array] = None) -> Array:
        """Return factor * a; the factor is a number or a 0-dimensional array."""
        ...

    def add(self, a: Array, b: Array, out: Optional[Array] = None) -> Array: ...

    def multiply(self, a: Array, b: Array, out: Optional[Array] = None) -> Array: ...

    def add_scaled(self, a: Array, factor: Any, b: Array, out: Optional[Array] = None) -> Array:
        """Return a + factor * b, in one pass over memory if possible; `out` may be `a` or `b`."""
        ...

    def compute_dot(self, a: Array, b: Array) -> Array: ...

    def matmul(self, a: Array, b: Array, out: Optional[Array] = None) -> Array:
        """Multiply two matrices, or a matrix and a vector; int8 gives int32.

        Raises Infeasible if the framework has no fast product of this number format.
        """
        ...

    def prepare_right_factor(self, matrix: Array) -> Array:
        """Return the matrix in the fastest layout for a right factor that is used often."""
        ...

    def subtract_scaled(self, a: Array, factor: Any, b: Array, out: Optional[Array] = None) -> Array:
        """Return a - factor * b, like `add_scaled`."""
        ...

    def add_quotient(self, a: Array, b: Array, divisor: Array, sign: float = 1.0, out: Optional[Array] = None) -> Array:
        """Return a + sign * b / divisor in one pass. The divisor is a 0-dimensional array, so a GPU needs no
        second kernel to divide one number."""
        ...

    def transpose(self, a: Array) -> Array:
        """Transpose a matrix; the result is a view if the framework has views."""
        ...

    def reshape(self, a: Array, shape: Tuple[int, ...]) -> Array:
        """Change the shape, sharing the memory if possible."""
        ...

    def concatenate(self, arrays: Sequence[Array], axis: int = 0) -> Array: ...

    def stack(self, numbers: Sequence[Array]) -> Array:
        """Join 0-dimensional arrays to a vector."""
        ...

    def build_csr(self, starts: Any, columns: Any, values: Any, num_columns: int) -> Any:
        """Build a sparse CSR matrix on the device from numpy arrays: row starts (with the end), columns and
        values of the entries. It may be an argument of a function passed to `compile`."""
        ...

    def multiply_csr(self, matrix: Any, x: Array, out: Optional[Array] = None) -> Array:
        """Multiply a sparse matrix by a vector."""
        ...

    def compute_fft(self, x: Array) -> Array:
        """Compute the discrete Fourier transform along the last axis."""
        ...

    def compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Compile a function that is called repeatedly: jax.jit, tf.function, a CUDA graph if its arguments
        never move, or the function itself if there is nothing better.

        The next call may overwrite the results of the previous one.
        """
        ...

    def finish(self, *arrays: Array) -> None:
        """Wait for these arrays, or for all work of the device."""
        ...

    def free_bytes(self) -> int:
        """Read how much memory of the device is still free."""
        ...
