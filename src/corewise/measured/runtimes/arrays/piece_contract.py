"""The operations for kernels that stream data in pieces: host memory, copies, and work on parts.

Measured side: standard library and numpy only, Python 3.9. Each runtime has one implementation, in
`runtimes/<name>/pieces.py`, built on the `Arrays` of the runtime.
"""

from __future__ import annotations

from typing import Any, ContextManager, Protocol, Tuple

# The array type of the framework.
Array = Any


class Pieces(Protocol):
    """The arrays of a framework in pieces, on one device.

    Attributes:
        num_streams: pieces to process concurrently, each in one thread and one stream.
        is_host: the device uses host memory, so nothing is copied.
        writes_in_place: False if every result is a new array and `out` is ignored.
        num_spare: temporary arrays of the size of the result that `add_product` needs.
    """

    num_streams: int
    is_host: bool
    writes_in_place: bool
    num_spare: int

    def allocate_host_buffer(self, shape: Tuple[int, ...], dtype: str) -> Any:
        """Allocate a numpy array in pinned memory, or on the host one that `move_to_device` need not copy."""
        ...

    def move_to_device(self, host: Any, out: Any = None) -> Array:
        """Return the values on the device, complete on return; on the host it shares the memory."""
        ...

    def as_numpy(self, array: Array) -> Any:
        """Return a numpy view of the array; only if the device is the host."""
        ...

    def copy_to_host(self, array: Array, host: Any) -> None:
        """Copy an array to a numpy array, complete on return."""
        ...

    def use_stream(self) -> ContextManager[Any]:
        """Use a separate stream for the device work of this thread inside the context."""
        ...

    def wait(self, *results: Array) -> None:
        """Wait for the device work of this thread, at least for these results."""
        ...

    def compute_fft(self, x: Array, axis: int, out: Any = None) -> Array:
        """Compute the discrete Fourier transform of a matrix along an axis. If arrays are mutable the result
        is in `out`, which may be `x`."""
        ...

    def add_product(self, c: Array, a: Array, b: Array) -> Array:
        """Return c + a·b for matrices, in the memory of `c` if possible; `c` becomes invalid."""
        ...
