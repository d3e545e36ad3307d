"""The matrices of conjugate gradients, each as a product with a vector on any framework's arrays.

Measured side: standard library and numpy only, Python 3.9. Compiled functions take the matrix as an argument
(`data`): a captured matrix would be copied into the program.
"""

from __future__ import annotations

import math
import threading
from typing import Any, List, Optional, Protocol, Tuple

import numpy as np

from corewise.measured.workloads.kernels.cg.problem import TILE
from corewise.measured.workloads.kernels.cg.stencil import (
    DIAGONAL,
    NEIGHBOUR,
    build_stencil_rows,
    compute_stencil_eigenvalues,
    compute_stencil_product,
)
from corewise.measured.workloads.kernels.host_blocks import map_blocks

MATRICES = ("dense", "csr", "matrix-free")
# Elements of a block. Vendor libraries multiply larger blocks at half the speed.
LARGEST_BLOCK = 2**30
# Vector elements per thread in a block, chosen so that the block is still in the cache when it is read again.
ELEMENTS_PER_THREAD = 2**17
LARGEST_INDEX = 2**31 - 1
# Bytes of the matrix that a check reads back at a time.
HOST_BLOCK_BYTES = 2**27


class Operator(Protocol):
    """A symmetric matrix and the layout of its vectors.

    Attributes:
        data: The arrays that a product reads besides the vector.
        length: Elements of a vector in the operator's layout, border zeros included.
        blocks: Parts of a vector that fit the cache; a single one if blocking does not help.
        is_compilable: Whether the product consists of array operations only, without messages.
    """

    data: Any
    length: int
    blocks: Tuple[slice, ...]
    is_compilable: bool

    def compute_product(self, data: Any, p: Any, out: Any) -> Tuple[Any, Any]:
        """Return A·p and p'A·p."""
        ...

    def to_layout(self, x: Any) -> Any:
        """Convert a plain numpy vector to the operator's layout."""
        ...

    def from_layout(self, x: Any) -> Any:
        """Convert a vector in the operator's layout to a plain numpy vector."""
        ...

    def compute_reference(self, x: Any) -> Any:
        """Return A times each row of a numpy array, computed independently in numpy."""
        ...

    def bound_eigenvalues(self) -> Tuple[float, float]:
        """Return bounds of the spectrum."""
        ...


def build_operator(matrix: str, arrays: Any, size: int, shift: float, seed: int, num_threads: int) -> Operator:
    """Build the operator of that name on the device."""
    if matrix == "dense":
        return DenseOperator(arrays, size, shift, seed)
    if matrix == "csr":
        return CsrOperator(arrays, size, shift, num_threads)
    return MatrixFreeOperator(arrays, size, shift, num_threads)


def split_vector(arrays: Any, length: int, num_threads: int) -> Tuple[slice, ...]:
    """Split a vector into cache-sized blocks; return one block for a GPU or arrays not written in place."""
    step = length
    if arrays.writes_in_place and arrays.device == "cpu":
        step = ELEMENTS_PER_THREAD * max(1, num_threads)
    return tuple(slice(start, min(length, start + step)) for start in range(0, length, max(1, step)))


def compute_dense_diagonal(size: int) -> float:
    """Compute the shift that makes a symmetric random matrix with eigenvalues in -2 to 2 positive definite.

    The margin fails with a probability below one in a million: the largest eigenvalue exceeds the edge by
    about size^(-2/3) (C. A. Tracy and H. Widom, 1996).
    """
    return 2.05 + 10 * math.pow(size, -2 / 3)


class DenseOperator:
    """A symmetric matrix of normal random numbers, made positive definite by its diagonal.

    `rows` limits it to some of its rows.
    """

    is_compilable = True

    def __init__(self, arrays: Any, size: int, shift: float, seed: int, rows: Optional[Tuple[int, int]] = None) -> None:
        self._arrays, self._size, self._shift, self._seed = arrays, size, shift, seed
        self.length = size
        self.blocks: Tuple[slice, ...] = (slice(0, size),)
        num_rows = max(1, min(size, LARGEST_BLOCK // size // TILE * TILE or LARGEST_BLOCK // size))
        start, stop = rows or (0, size)
        self._rows = [(first, min(stop, first + num_rows)) for first in range(start, stop, num_rows)]
        self.data = tuple(self._build_row_block(first, last) for first, last in self._rows)

    def _build_row_block(self, first: int, last: int) -> Any:
        arrays, tiles = self._arrays, []
        if not arrays.writes_in_place:
            for row in range(first, last, TILE):
                columns = range(0, self._size, TILE)
                tiles.append(arrays.concatenate([self._build_tile(row, column) for column in columns], axis=1))
            return arrays.concatenate(tiles, axis=0) if len(tiles) > 1 else tiles[0]
        block = arrays.create_zeros((last - first, self._size), "float64")
        for row in range(first // TILE * TILE, last, TILE):
            used = slice(max(first, row), min(last, row + TILE))
            for column in range(0, self._size, TILE):
                tile = self._build_tile(row, column)
                part = tile[used.start - row : used.stop - row]
                arrays.copy(part, out=block[used.start - first : used.stop - first, column : column + tile.shape[1]])
        return block

    def _build_tile(self, row: int, column: int) -> Any:
        """Build one tile; a tile below the diagonal is the transpose of the one above."""
        if row > column:
            return self._arrays.transpose(self._build_tile(column, row))
        num_rows, num_columns = (min(TILE, self._size - start) for start in (row, column))
        number = (row // TILE) * (self._size // TILE + 1) + column // TILE
        tile = self._arrays.draw_normal((num_rows, num_columns), "float64", self._seed * 2**20 + number)
        if row < column:
            return self._arrays.scale(1 / math.sqrt(self._size), tile, out=tile)
        transposed = self._arrays.scale(1 / math.sqrt(2 * self._size), self._arrays.transpose(tile))
        tile = self._arrays.add_scaled(transposed, 1 / math.sqrt(2 * self._size), tile)
        diagonal = np.eye(num_rows) * (compute_dense_diagonal(self._size) + self._shift)
        return self._arrays.add(tile, self._arrays.from_host(diagonal))

    def compute_product(self, data: Any, p: Any, out: Any) -> Tuple[Any, Any]:
        out = self.multiply_rows(data, p, out)
        return out, self._arrays.compute_dot(p, out)

    def multiply_rows(self, data: Any, p: Any, out: Any) -> Any:
        """Return the rows of this operator times p."""
        arrays = self._arrays
        if len(data) == 1:
            return arrays.matmul(data[0], p, out=out)
        if not arrays.writes_in_place:
            return arrays.concatenate([arrays.matmul(block, p) for block in data], axis=0)
        start = self._rows[0][0]
        for (first, last), block in zip(self._rows, data):
            arrays.matmul(block, p, out=out[first - start : last - start])
        return out

    def to_layout(self, x: Any) -> Any:
        return x

    def from_layout(self, x: Any) -> Any:
        return x

    def compute_reference(self, x: Any) -> Any:
        """Multiply by columns: sum rows times elements, which also requires a symmetric matrix."""
        product, adding = np.zeros((len(x), self._size)), threading.Lock()
        step = max(1, HOST_BLOCK_BYTES // (8 * self._size))
        for (first, last), block in zip(self._rows, self.data):

            def add(row: int, first: int = first, last: int = last, block: Any = block) -> None:
                rows = self._arrays.to_host(block[row - first : min(last, row + step) - first])
                part = x[:, row : row + len(rows)] @ rows
                with adding:
                    np.add(product, part, out=product)

            map_blocks(add, range(first, last, step), self._arrays.device)
        return product

    def bound_eigenvalues(self) -> Tuple[float, float]:
        diagonal = compute_dense_diagonal(self._size)
        # The smallest eigenvalue is at least 0.05.
        spread = diagonal - 0.05
        return diagonal - spread + self._shift, diagonal + spread + self._shift


class _StencilOperator:
    """The common part of both stencil operators."""

    is_compilable = True

    def __init__(self, arrays: Any, edge: int, shift: float) -> None:
        self._arrays, self._edge, self._shift = arrays, edge, shift

    def compute_reference(self, x: Any) -> Any:
        return np.stack([compute_stencil_product(each, self._edge, self._shift) for each in x])

    def bound_eigenvalues(self) -> Tuple[float, float]:
        return compute_stencil_eigenvalues(self._edge, self._shift)


class CsrOperator(_StencilOperator):
    """The stencil as a CSR matrix, in row blocks."""

    def __init__(self, arrays: Any, edge: int, shift: float, num_threads: int) -> None:
        super().__init__(arrays, edge, shift)
        self.length = edge**3
        self.blocks = split_vector(arrays, self.length, num_threads)
        largest = LARGEST_INDEX // 27
        starts = sorted({start for b in self.blocks for start in range(b.start, b.stop, largest)})
        self._rows = list(zip(starts, [*starts[1:], self.length]))
        self.data = tuple(
            arrays.build_csr(*build_stencil_rows(edge, first, last, shift), num_columns=self.length)
            for first, last in self._rows
        )

    def compute_product(self, data: Any, p: Any, out: Any) -> Tuple[Any, Any]:
        arrays = self._arrays
        if not arrays.writes_in_place:
            pieces = [arrays.multiply_csr(block, p) for block in data]
            out = pieces[0] if len(pieces) == 1 else arrays.concatenate(pieces, axis=0)
            return out, arrays.compute_dot(p, out)
        curvature = None
        for (first, last), block in zip(self._rows, data):
            rows = arrays.multiply_csr(block, p, out=out[first:last])
            part = arrays.compute_dot(p[first:last], rows)
            curvature = part if curvature is None else curvature + part
        return out, curvature

    def to_layout(self, x: Any) -> Any:
        return x

    def from_layout(self, x: Any) -> Any:
        return x


class MatrixFreeOperator(_StencilOperator):
    """The stencil as sums of neighbours along z, then y, then x: 27 terms in six additions.

    Vectors are flattened cubes with a border of zeros. A neighbour is then at a fixed offset, and every sum
    runs over contiguous memory. The border is cleared after the sums.
    """

    def __init__(self, arrays: Any, edge: int, shift: float, num_threads: int) -> None:
        super().__init__(arrays, edge, shift)
        self._row = edge + 2
        self._plane = self._row * self._row
        self.length = self._row**3
        self.blocks = split_vector(arrays, self.length, num_threads)
        # Elements before the first inner point and after the last.
        margin = self._plane + self._row + 1
        step = self.blocks[0].stop
        inner = range(margin, self.length - margin, step)
        self._pieces = [(start, min(start + step, self.length - margin)) for start in inner]
        longest = max(stop - start for start, stop in self._pieces)
        if arrays.writes_in_place:
            halo = 2 * (self._row + 1)
            self.data = tuple(
                arrays.create_zeros(shape, "float64") for shape in ((longest + halo,), (longest + 2,), (1, 1))
            )
        else:
            self.data = tuple(arrays.from_host(each) for each in (self._build_mask(margin), np.zeros(margin)))

    def _build_mask(self, margin: int) -> Any:
        return self.to_layout(np.ones(self._edge**3))[margin : self.length - margin]

    def compute_product(self, data: Any, p: Any, out: Any) -> Tuple[Any, Any]:
        arrays = self._arrays
        if not arrays.writes_in_place:
            mask, border = data
            (piece,) = self._pieces
            inner = arrays.multiply(mask, self._sum_neighbours(p, piece, None, None, None))
            out = arrays.concatenate([border, inner, border], axis=0)
            return out, arrays.compute_dot(p, out)
        along_z, along_y, zero = data
        curvature = None
        for start, stop in self._pieces:
            sums = self._sum_neighbours(p, (start, stop), along_z, along_y, out[start:stop])
            # Border elements do not contribute, because p is zero there.
            part = arrays.compute_dot(p[start:stop], sums)
            curvature = part if curvature is None else curvature + part
        for face in self._list_faces(out):
            arrays.copy(zero, out=face)
        return out, curvature

    def _sum_neighbours(self, p: Any, piece: Tuple[int, int], along_z: Any, along_y: Any, out: Any) -> Any:
        """Compute rows of the product; only inner points are valid."""
        arrays, (start, stop), row = self._arrays, piece, self._row
        left, right, length = start - row - 1, stop + row + 1, stop - start
        if along_z is not None:
            along_z, along_y = along_z[: right - left], along_y[: length + 2]
        plane = self._plane
        z = arrays.add(p[left - plane : right - plane], p[left + plane : right + plane], out=along_z)
        z = arrays.add(z, p[left:right], out=z)
        y = arrays.add(z[: length + 2], z[2 * row :], out=along_y)
        y = arrays.add(y, z[row : row + length + 2], out=y)
        x = arrays.add(y[:length], y[2:], out=out)
        x = arrays.add(x, y[1:-1], out=x)
        diagonal = DIAGONAL + self._shift - NEIGHBOUR
        scaled = arrays.scale(diagonal, p[start:stop], out=None if along_z is None else along_z[:length])
        return arrays.add_scaled(scaled, NEIGHBOUR, x, out=x)

    def _list_faces(self, out: Any) -> List[Any]:
        """Return the border parts that the sums overwrite; the end of a row touches the start of the next."""
        row, plane = self._row, self._plane
        ends = out[row - 1 : row - 1 + (plane - 1) * row].reshape(plane - 1, row)[:, :2]
        sides = out[plane - row : plane - row + (row - 1) * plane].reshape(row - 1, plane)[:, : 2 * row]
        return [ends, sides]

    def to_layout(self, x: Any) -> Any:
        padded = np.zeros((self._row,) * 3)
        padded[1:-1, 1:-1, 1:-1] = x.reshape((self._edge,) * 3)
        return padded.reshape(-1)

    def from_layout(self, x: Any) -> Any:
        return x.reshape((self._row,) * 3)[1:-1, 1:-1, 1:-1].reshape(-1)
