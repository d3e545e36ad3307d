"""A dense symmetric matrix in blocks of rows, one on each rank, and its product by one message per rank.

Measured side: standard library and numpy only, Python 3.9.

Every rank holds whole vectors and a block of rows. The only collective operation of an iteration gathers the rows of
q = A·p. Dot products and updates are repeated on every rank: they cost 10·N operations next to the 2·N²/ranks of the
product, less than the latency of one reduction.
"""

from __future__ import annotations

from typing import Any, Tuple

from corewise.measured.runtimes.communication.communicator import Communicator
from corewise.measured.workloads.kernels.cg.operators import DenseOperator
from corewise.measured.workloads.kernels.distributed.first_rank import sum_over_ranks
from corewise.measured.workloads.kernels.distributed.rank_shares import split_evenly


class RowBlockOperator:
    """The matrix of `DenseOperator`, of which this rank keeps a block of rows."""

    # Messages cannot be part of a compiled function.
    is_compilable = False

    def __init__(self, arrays: Any, size: int, shift: float, seed: int, messages: Communicator) -> None:
        self._arrays, self._messages = arrays, messages
        self._shares = split_evenly(size, messages.num_ranks)
        self._rows = self._shares[messages.rank]
        self._block = DenseOperator(arrays, size, shift, seed, self._rows)
        self.data, self.length, self.blocks = self._block.data, size, self._block.blocks
        # All pieces of a gathered vector have the same length: the last element of a short one is not used.
        self._piece = arrays.create_zeros((-(-size // messages.num_ranks),), "float64")
        is_even = size % messages.num_ranks == 0
        self._gathered = None if is_even else arrays.create_zeros((len(self._piece) * messages.num_ranks,), "float64")

    def compute_product(self, data: Any, p: Any, out: Any) -> Tuple[Any, Any]:
        first, last = self._rows
        self._block.multiply_rows(data, p, self._piece[: last - first])
        if self._gathered is None:
            self._messages.allgather(out, self._piece)
        else:
            self._messages.allgather(self._gathered, self._piece)
            for rank, (start, stop) in enumerate(self._shares):
                begin = rank * len(self._piece)
                self._arrays.copy(self._gathered[begin : begin + stop - start], out=out[start:stop])
        return out, self._arrays.compute_dot(p, out)

    def to_layout(self, x: Any) -> Any:
        return x

    def from_layout(self, x: Any) -> Any:
        return x

    def compute_reference(self, x: Any) -> Any:
        """Multiply by columns in numpy: each rank adds its rows times their elements of x."""
        return sum_over_ranks(self._messages, self._arrays, self._block.compute_reference(x))

    def bound_eigenvalues(self) -> Tuple[float, float]:
        return self._block.bound_eigenvalues()
