"""A system of equations for conjugate gradients: what it asks for and what its solution costs.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import dataclasses

from corewise.workloads.kernels.cg_stencil import num_nonzeros

VECTOR_PASSES = 10  # q = Ap, p'q: p, q; r, r'r: r, q, r; x and p: x, p, r, x, p
VECTOR_FLOPS = 10  # of each element in two dot products and three updates
NUM_VECTORS = 5  # x, r, p, q and the right-hand side
INDEX_BYTES, VALUE_BYTES = 4, 8
TILE = 4096  # of rows and columns of a dense matrix made at once
NUM_TILES_MADE = (
    5  # side by side while one is made: drawn, turned, added up, its diagonal, and that on the device
)


@dataclasses.dataclass(frozen=True)
class Problem:
    """A system of equations and how far it is solved."""

    matrix: str
    size: int  # rows of a dense matrix, or points along an edge of the stencil's cube
    iterations: int
    shift: float
    tolerance: float
    checkpoint_every: int
    checkpoint: str

    @property
    def num_rows(self) -> int:
        return self.size if self.matrix == "dense" else self.size**3

    def matrix_bytes(self) -> int:
        """What one product reads of the matrix."""
        if self.matrix == "dense":
            return VALUE_BYTES * self.size**2
        if self.matrix == "csr":
            return (VALUE_BYTES + INDEX_BYTES) * num_nonzeros(self.size) + INDEX_BYTES * (self.num_rows + 1)
        return 0

    def needed_bytes(self) -> int:
        """The memory of a run on its device; vectors of the matrix-free form have a border, and a dense
        matrix is made of tiles."""
        made = NUM_TILES_MADE * VALUE_BYTES * min(self.size, TILE) ** 2 if self.matrix == "dense" else 0
        length = (self.size + 2) ** 3 if self.matrix == "matrix-free" else self.num_rows
        return self.matrix_bytes() + NUM_VECTORS * VALUE_BYTES * length + made

    def flops_per_iteration(self) -> float:
        """Of a dense system 2·N², as the paper counts; of the stencil with the vectors' 10·N, as HPCG."""
        if self.matrix == "dense":
            return 2.0 * self.size**2
        return 2.0 * num_nonzeros(self.size) + VECTOR_FLOPS * self.num_rows

    def bytes_per_iteration(self) -> float:
        """The least traffic: the matrix once, and vectors in as few passes as the algorithm allows."""
        return float(self.matrix_bytes() + VECTOR_PASSES * VALUE_BYTES * self.num_rows)
