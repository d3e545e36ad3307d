"""Arrays on the CPU as if the device had a memory of its own, as a GPU has."""

import threading
from typing import Any

import numpy as np

from corewise.runtimes.numpy.pieces import NumpyPieces
from corewise.workloads.kernels.framework_pieces import pieces_of


class DeviceApart(NumpyPieces):
    """Every upload and download is a copy; nothing may be left in the host's buffers."""

    is_host = False
    num_streams = 3

    def __init__(self, arrays: Any) -> None:
        super().__init__(arrays)
        self.threads: set[int] = set()

    def upload(self, host: Any, out: Any = None) -> Any:
        self.threads.add(threading.get_ident())
        if out is None:
            out = np.empty_like(host)
        np.copyto(out, host)
        host[...] = np.nan  # who looked at the host's buffer again would see it
        return out

    def download(self, array: Any, host: Any) -> None:
        np.copyto(host, array)
        array[...] = np.nan


def apart(arrays: Any) -> Any:
    """The pieces of a framework that makes its results anew, each upload a copy."""
    pieces = pieces_of(arrays)
    assert not pieces.writes_in_place

    def upload(host: Any, out: Any = None) -> Any:
        there = arrays.from_host(host)
        host[...] = np.nan
        return there

    pieces.is_host, pieces.num_streams, pieces.upload = False, 3, upload
    return pieces
