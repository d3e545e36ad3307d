"""What a kernel may ask of a framework: arrays on one device, and the few operations kernels are made of.

Measured side: standard library and numpy only, Python 3.9. Each runtime has one implementation, in
`runtimes/<name>/arrays.py`; a kernel is written once against this protocol.
"""

from __future__ import annotations

from typing import Any, Callable, Optional, Protocol, Sequence, Tuple

Array = Any  # the framework's own


class Arrays(Protocol):
    """A framework's arrays on one device.

    Operations return their result. `out` is an array of the result's shape that may be overwritten. Where
    arrays cannot be written it is ignored (tensorflow), or it lends its memory and is gone (jax), so a kernel
    keeps what is returned, always, and never reads `out` again.
    Scalars that come out of arrays (`dot`) stay arrays of no dimension on the device: reading one waits.
    """

    runtime: str  # numpy, torch, jax, tensorflow
    device: str  # cpu or cuda
    writes_in_place: bool  # False: `out` is ignored, or gone afterwards
    threads_elementwise: bool  # False: what is done element by element takes one thread
    memory_factor: (
        float  # the most memory a kernel takes here, over what its arrays have; kernels may know better
    )
    dtypes: Tuple[str, ...]  # the number formats that arrays can have here

    def empty(self, shape: Tuple[int, ...], dtype: str) -> Array: ...

    def zeros(self, shape: Tuple[int, ...], dtype: str) -> Array: ...

    def normal(self, shape: Tuple[int, ...], dtype: str, seed: int) -> Array:
        """Normal random numbers, made on the device in pieces; int8 gets whole numbers of -127 to 127."""
        ...

    def from_host(self, array: Any) -> Array:
        """A copy of a numpy array on the device, of its own dtype."""
        ...

    def to_host(self, array: Array) -> Any:
        """A numpy array of the same values (bfloat16 as float32); waits for them."""
        ...

    def copy(self, a: Array, out: Optional[Array] = None) -> Array: ...

    def scale(self, factor: Any, a: Array, out: Optional[Array] = None) -> Array:
        """factor * a; the factor is a number or an array of no dimension."""
        ...

    def add(self, a: Array, b: Array, out: Optional[Array] = None) -> Array: ...

    def multiply(self, a: Array, b: Array, out: Optional[Array] = None) -> Array: ...

    def add_scaled(self, a: Array, factor: Any, b: Array, out: Optional[Array] = None) -> Array:
        """a + factor * b in one pass over memory where the framework can; `out` may be `a` or `b`."""
        ...

    def dot(self, a: Array, b: Array) -> Array: ...

    def matmul(self, a: Array, b: Array, out: Optional[Array] = None) -> Array:
        """The product of matrices, or of a matrix and a vector; that of int8 comes in int32.

        Raises Infeasible where the framework has no fast product of this number format.
        """
        ...

    def right_factor(self, matrix: Array) -> Array:
        """The matrix in the layout in which it is multiplied fastest from the left; for those used often."""
        ...

    def subtract_scaled(self, a: Array, factor: Any, b: Array, out: Optional[Array] = None) -> Array:
        """a - factor * b, as `add_scaled` does it."""
        ...

    def add_quotient(
        self, a: Array, b: Array, divisor: Array, sign: float = 1.0, out: Optional[Array] = None
    ) -> Array:
        """a + sign * b / divisor in one pass, the divisor an array of no dimension: a GPU needs no second
        kernel to divide one number."""
        ...

    def transpose(self, a: Array) -> Array:
        """The matrix turned; a view where the framework has views."""
        ...

    def concatenate(self, arrays: Sequence[Array], axis: int = 0) -> Array: ...

    def stack(self, numbers: Sequence[Array]) -> Array:
        """A vector of arrays of no dimension."""
        ...

    def csr(self, starts: Any, columns: Any, values: Any, num_columns: int) -> Any:
        """A sparse matrix on the device of numpy arrays: where each row starts (and the end), the columns and
        the values of its entries. It may stand within the arguments of what is `compiled`."""
        ...

    def csr_matvec(self, matrix: Any, x: Array, out: Optional[Array] = None) -> Array:
        """A sparse matrix times a vector."""
        ...

    def fft(self, x: Array) -> Array:
        """The discrete Fourier transform along the last axis."""
        ...

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function as the framework runs it best when it is called again and again: jax.jit, tf.function,
        a CUDA graph where its arguments never move; itself where there is nothing better.

        What one call returned may be overwritten by the next one.
        """
        ...

    def finish(self, *arrays: Array) -> None:
        """Waits until these arrays, or everything given to the device, are there."""
        ...

    def free_bytes(self) -> int:
        """The memory that may still be taken on the device."""
        ...
