"""The transposition of a matrix whose rows are spread over ranks: packed in blocks, exchanged, unpacked in blocks.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

from typing import Any

from corewise.measured.runtimes.communication.communicator import Communicator


class Transposition:
    """Turns this rank's rows of a matrix into its rows of the transposed matrix.

    `sent` holds one piece for each rank: the transposed block that it needs. Rows are packed a few at a time, while
    they are in the cache. `received` is filled by the exchange, and rows of the result are read from it.
    """

    def __init__(
        self, arrays: Any, messages: Communicator, num_rows: int, num_columns: int, sent: Any, received: Any
    ) -> None:
        self._arrays, self._messages = arrays, messages
        ranks = messages.num_ranks
        # Rows of this rank before, and after.
        self.num_rows, self.num_result_rows = num_rows // ranks, num_columns // ranks
        shape = (ranks, self.num_result_rows, self.num_rows)
        self._sent, self._received = sent.reshape(shape), received.reshape(shape)

    def pack(self, rows: Any, first: int) -> None:
        """Pack whole rows of this rank, of which the first has the number `first`."""
        stop, width = first + len(rows), self.num_result_rows
        for rank in range(self._messages.num_ranks):
            block = rows[:, rank * width : (rank + 1) * width]
            self._arrays.copy(block.T, out=self._sent[rank][:, first:stop])

    def exchange(self) -> None:
        """Exchange the packed blocks among all ranks."""
        self._arrays.finish(self._sent)
        # Not every backend transports complex numbers.
        self._messages.all_to_all(self._view_as_real(self._received), self._view_as_real(self._sent))

    def unpack(self, first: int, out: Any) -> Any:
        """Copy rows of the result, from number `first` on, to the matrix `out` and return it."""
        stop, width = first + len(out), self.num_rows
        for rank in range(self._messages.num_ranks):
            self._arrays.copy(self._received[rank][first:stop], out=out[:, rank * width : (rank + 1) * width])
        return out

    def _view_as_real(self, array: Any) -> Any:
        flat = array.reshape(-1)
        real = "float64" if "complex128" in str(flat.dtype) else "float32"
        return flat.view(self._arrays.create_empty((0,), real).dtype)
