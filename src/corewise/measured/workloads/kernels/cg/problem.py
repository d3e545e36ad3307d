"""A linear system for conjugate gradients and the cost of its solution.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import dataclasses

from corewise.measured.workloads.kernels.cg.stencil import count_nonzeros

# Vectors read or written per iteration. q = Ap and p'q: p, q. r and r'r: r, q, r. x and p: x, p, r, x, p.
VECTOR_PASSES = 10
# Flops per element in two dot products and three updates.
VECTOR_FLOPS = 10
# The vectors x, r, p, q and the right-hand side.
NUM_VECTORS = 5
INDEX_BYTES, VALUE_BYTES = 4, 8
# Rows and columns of a dense matrix that are drawn together.
TILE = 4096
# Tiles in memory while one is built: drawn, transposed, summed, its diagonal, and the diagonal on the device.
NUM_TILES_MADE = 5


@dataclasses.dataclass(frozen=True)
class CgProblem:
    """A linear system and how far it is solved.

    `size` is the number of rows of a dense matrix, or the points along an edge of the stencil's cube.
    """

    matrix: str
    size: int
    iterations: int
    shift: float
    tolerance: float
    checkpoint_every: int
    checkpoint: str

    @property
    def num_rows(self) -> int:
        return self.size if self.matrix == "dense" else self.size**3

    def count_matrix_bytes(self) -> int:
        """Count the bytes of the matrix that one product reads."""
        if self.matrix == "dense":
            return VALUE_BYTES * self.size**2
        if self.matrix == "csr":
            return (VALUE_BYTES + INDEX_BYTES) * count_nonzeros(self.size) + INDEX_BYTES * (self.num_rows + 1)
        return 0

    def estimate_memory_bytes(self, num_ranks: int = 1) -> int:
        """Estimate the device memory, with borders of matrix-free vectors and tiles being built.

        Several ranks share the matrix; each has whole vectors.
        """
        tiles = NUM_TILES_MADE * VALUE_BYTES * min(self.size, TILE) ** 2 if self.matrix == "dense" else 0
        length = (self.size + 2) ** 3 if self.matrix == "matrix-free" else self.num_rows
        return -(-self.count_matrix_bytes() // num_ranks) + NUM_VECTORS * VALUE_BYTES * length + tiles

    def find_largest_size(self, free_bytes: int, num_ranks: int = 1) -> int:
        """Return the largest size below this one that fits into memory; 0 if none does."""
        fits, too_large = 0, self.size
        while too_large - fits > 1:
            middle = (fits + too_large) // 2
            if dataclasses.replace(self, size=middle).estimate_memory_bytes(num_ranks) <= free_bytes:
                fits = middle
            else:
                too_large = middle
        return fits

    def count_flops_per_iteration(self) -> float:
        """Count 2·N² flops for a dense system as in the paper; the stencil adds 10·N as in HPCG."""
        if self.matrix == "dense":
            return 2.0 * self.size**2
        return 2.0 * count_nonzeros(self.size) + VECTOR_FLOPS * self.num_rows

    def count_bytes_per_iteration(self) -> float:
        """Count the minimum traffic: the matrix once, and the fewest passes over vectors."""
        return float(self.count_matrix_bytes() + VECTOR_PASSES * VALUE_BYTES * self.num_rows)
