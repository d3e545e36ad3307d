"""What a kernel may ask of a framework whose data come in pieces: host memory, copies, and work on parts.

Measured side: standard library and numpy only, Python 3.9. Each runtime has one implementation, in
`runtimes/<name>/pieces.py`, made of the runtime's `Arrays`.
"""

from __future__ import annotations

from typing import Any, ContextManager, Protocol, Tuple

Array = Any  # the framework's own


class Pieces(Protocol):
    """A framework's arrays in pieces, on one device."""

    num_streams: int  # how many pieces to work on at once, each in a thread and a stream of its own
    is_host: bool  # the device's memory is the host's: nothing is copied
    writes_in_place: bool  # False: every result is a new array, `out` is not looked at
    num_spare: int  # arrays of the result's size that `multiply_add` takes besides

    def host_buffer(self, shape: Tuple[int, ...], dtype: str) -> Any:
        """A numpy array that the device copies from and to by itself, where there is such memory.

        Where the device is the host, one that `upload` need not copy.
        """
        ...

    def upload(self, host: Any, out: Any = None) -> Array:
        """The values on the device when it returns; where the device is the host, the same memory."""
        ...

    def view(self, array: Array) -> Any:
        """The array as numpy's, the same memory; only where the device is the host."""
        ...

    def download(self, array: Array, host: Any) -> None:
        """Fills a numpy array from the device; it is filled when this returns."""
        ...

    def stream(self) -> ContextManager[Any]:
        """Within it, what this thread asks of the device waits for this thread's work alone."""
        ...

    def wait(self, *results: Array) -> None:
        """Returns when the device has done what this thread asked of it, these results at least."""
        ...

    def fft(self, x: Array, axis: int, out: Any = None) -> Array:
        """The discrete Fourier transform of a matrix along an axis; where arrays are written it is in `out`,
        which may be `x`."""
        ...

    def multiply_add(self, c: Array, a: Array, b: Array) -> Array:
        """c + a·b, the product of matrices, in the memory of `c` where that can be; `c` is gone."""
        ...
