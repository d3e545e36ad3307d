"""The communicator of a trial with one rank, which needs no library.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

from typing import Any

from corewise.measured.runtimes.communication.communicator import Communicator


class LoneCommunicator(Communicator):
    """Copies arrays within the only rank; it has nobody to send to."""

    backend = "none"
    rank = 0
    num_ranks = 1

    def send(self, array: Any, to: int) -> None:
        raise ValueError(f"rank {to} does not exist: the trial has one rank")

    def receive(self, array: Any, source: int) -> None:
        raise ValueError(f"rank {source} does not exist: the trial has one rank")

    def exchange(self, sent: Any, to: int, received: Any, source: int) -> None:
        _copy(sent, received)

    def allreduce(self, array: Any) -> None:
        return

    def allgather(self, gathered: Any, piece: Any) -> None:
        _copy(piece, gathered)

    def all_to_all(self, received: Any, sent: Any) -> None:
        _copy(sent, received)

    def broadcast(self, array: Any, root: int) -> None:
        return

    def reduce_scatter(self, piece: Any, array: Any) -> None:
        _copy(array, piece)

    def barrier(self) -> None:
        return

    def agree(self, flag: bool) -> bool:
        return flag


def _copy(source: Any, target: Any) -> None:
    """Copy between contiguous numpy arrays or tensors of the same size."""
    target.reshape(-1)[:] = source.reshape(-1)
