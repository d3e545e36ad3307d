"""Collectives other than the sum, in the shared memory of one node.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

from torch import Tensor

from corewise.accelerate.collectives.shared_allreduce import BROADCAST, TYPE_CODES, SharedAllreduce
from corewise.accelerate.unsupported import Unsupported

# The collectives of allreduce.cpp, after those of SharedAllreduce.
ALLGATHER, REDUCE_SCATTER, ALL_TO_ALL = 2, 3, 4
# The type code of bytes that are only copied.
BYTES = 3


class SharedCollectives(SharedAllreduce):
    """Passes tensors among the ranks of one node; all ranks call the same methods in the same order.

    Only `allreduce` works across nodes. The other methods copy tensors of any type. They raise Unsupported if there are
    several nodes, or if a tensor is on a GPU or not contiguous.

    Example:
        >>> collectives = SharedCollectives()  # doctest: +SKIP
        >>> collectives.broadcast(torch.ones(1000), root=0)  # doctest: +SKIP
    """

    def broadcast(self, tensor: Tensor, root: int) -> None:
        """Replace the tensor by that of the rank `root`."""
        self._require_copyable(tensor)
        if not 0 <= root < self.num_ranks:
            raise ValueError(f"there is no rank {root} among {self.num_ranks} ranks")
        self._run(BROADCAST, tensor, tensor, _count_bytes(tensor), BYTES, root=root)

    def allgather(self, gathered: Tensor, piece: Tensor) -> None:
        """Gather one piece of each rank, in the order of ranks, on every rank."""
        self._require_copyable(gathered, piece)
        self._require_pieces(gathered, piece)
        self._run(ALLGATHER, piece, gathered, _count_bytes(piece), BYTES)

    def all_to_all(self, received: Tensor, sent: Tensor) -> None:
        """Send one of `num_ranks` equal pieces to each rank, and receive one of each rank."""
        self._require_copyable(received, sent)
        if received.dtype != sent.dtype or received.numel() != sent.numel() or sent.numel() % self.num_ranks:
            raise ValueError(f"both tensors must have one type and {self.num_ranks} equal pieces")
        self._run(ALL_TO_ALL, sent, received, _count_bytes(sent) // self.num_ranks, BYTES)

    def reduce_scatter(self, piece: Tensor, tensor: Tensor) -> None:
        """Sum the tensor over all ranks, and write the part of this rank into `piece`, which must not overlap it."""
        self._require_copyable(piece, tensor)
        self._require_pieces(tensor, piece)
        reason = self.explain_unsupported(tensor)
        if reason:
            raise Unsupported(reason)
        self._run(REDUCE_SCATTER, tensor, piece, piece.numel(), TYPE_CODES[tensor.dtype])

    def _require_copyable(self, *tensors: Tensor) -> None:
        if self.num_nodes > 1:
            raise Unsupported(f"the ranks are on {self.num_nodes} nodes, which share no memory; use gloo")
        for tensor in tensors:
            if tensor.device.type != "cpu":
                raise Unsupported(f"the tensor is on {tensor.device}")
            if not tensor.is_contiguous():
                raise Unsupported("the tensor is not contiguous")

    def _require_pieces(self, whole: Tensor, piece: Tensor) -> None:
        if whole.dtype != piece.dtype or whole.numel() != piece.numel() * self.num_ranks:
            raise ValueError(
                f"{whole.numel()} elements of {whole.dtype} are not {self.num_ranks} pieces "
                f"of {piece.numel()} elements of {piece.dtype}"
            )


def _count_bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
