"""The contract of message passing among the ranks of a trial.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import abc
from typing import Any, Mapping, Tuple

# What shared memory carries among ranks of one node. Between nodes it has the sum only.
ONE_NODE_OPERATIONS = ("allgather", "all_to_all", "broadcast", "reduce_scatter")


class Communicator(abc.ABC):
    """Passes contiguous arrays between ranks. All ranks call the collective operations in the same order.

    An array is a numpy array or a tensor of the framework that the communicator belongs to. Operations are finished
    on return: the data has arrived, also on a GPU, and a sent array may be overwritten.

    Attributes:
        backend: What carries the messages: gloo, shared, mpi, nccl or grpc.
        rank, num_ranks: The number of this rank, and how many there are on all nodes.
    """

    backend: str
    rank: int
    num_ranks: int

    @abc.abstractmethod
    def send(self, array: Any, to: int) -> None:
        """Send the array to another rank."""

    @abc.abstractmethod
    def receive(self, array: Any, source: int) -> None:
        """Receive into the array from another rank."""

    @abc.abstractmethod
    def exchange(self, sent: Any, to: int, received: Any, source: int) -> None:
        """Send one array and receive another one at the same time."""

    @abc.abstractmethod
    def allreduce(self, array: Any) -> None:
        """Replace the array by its sum over all ranks."""

    @abc.abstractmethod
    def allgather(self, gathered: Any, piece: Any) -> None:
        """Gather one piece of each rank, in the order of ranks, on every rank."""

    @abc.abstractmethod
    def all_to_all(self, received: Any, sent: Any) -> None:
        """Send one of `num_ranks` equal pieces to each rank, and receive one of each rank."""

    @abc.abstractmethod
    def broadcast(self, array: Any, root: int) -> None:
        """Send the array of one rank to all others."""

    @abc.abstractmethod
    def reduce_scatter(self, piece: Any, array: Any) -> None:
        """Sum the array over all ranks, and keep the piece of this rank; `array` may be overwritten."""

    @abc.abstractmethod
    def barrier(self) -> None:
        """Wait until every rank has called it."""

    @abc.abstractmethod
    def agree(self, flag: bool) -> bool:
        """Return whether the flag is True on every rank."""

    def explain_unsupported(self, operation: str) -> str:
        """Return why this backend does not carry the operation of that name itself; empty if it does."""
        return ""

    def read_facts(self) -> Mapping[str, Any]:
        """Return facts that prove what carries the messages."""
        return {"collectives_backend": self.backend}

    def close(self) -> None:
        """Release connections and memory; all ranks call it."""
        return


def list_shared_operations(num_nodes: int) -> Tuple[str, ...]:
    """List the operations of `collectives: shared` among ranks on this many nodes."""
    return ("allreduce", *ONE_NODE_OPERATIONS) if num_nodes == 1 else ("allreduce",)
