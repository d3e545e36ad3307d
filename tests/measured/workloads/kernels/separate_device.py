"""CPU arrays that behave like a device with separate memory, such as a GPU."""

import threading
from typing import Any

import numpy as np

from corewise.measured.runtimes.numpy.pieces import NumpyPieces
from corewise.measured.workloads.kernels.framework_pieces import load_pieces


class SeparateDevice(NumpyPieces):
    """Copies every transfer and clears its source, so that reuse of a buffer is detected."""

    is_host = False
    num_streams = 3

    def __init__(self, arrays: Any) -> None:
        super().__init__(arrays)
        self.threads: set[int] = set()

    def move_to_device(self, host: Any, out: Any = None) -> Any:
        self.threads.add(threading.get_ident())
        if out is None:
            out = np.empty_like(host)
        np.copyto(out, host)
        host[...] = np.nan
        return out

    def copy_to_host(self, array: Any, host: Any) -> None:
        np.copyto(host, array)
        array[...] = np.nan


def load_separate_pieces(arrays: Any) -> Any:
    """Return the pieces of a framework that allocates every result, with copying transfers."""
    pieces = load_pieces(arrays)
    assert not pieces.writes_in_place

    def move_to_device(host: Any, out: Any = None) -> Any:
        device_array = arrays.from_host(host)
        host[...] = np.nan
        return device_array

    pieces.is_host, pieces.num_streams, pieces.move_to_device = False, 3, move_to_device
    return pieces
