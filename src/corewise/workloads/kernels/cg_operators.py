"""The matrices of conjugate gradients, each as a product with a vector on any framework's arrays.

Measured side: standard library and numpy only, Python 3.9. What a framework compiles takes the matrix as an
argument (`data`): closed over, it would be copied into the program.
"""

from __future__ import annotations

import math
import threading
from typing import Any, List, Protocol, Tuple

import numpy as np

from corewise.workloads.kernels.cg_problem import TILE
from corewise.workloads.kernels.cg_stencil import (
    DIAGONAL,
    NEIGHBOUR,
    stencil_eigenvalues,
    stencil_product,
    stencil_rows,
)
from corewise.workloads.kernels.host_blocks import over_blocks

MATRICES = ("dense", "csr", "matrix-free")
LARGEST_BLOCK = 2**30  # elements: a vendor's product of a larger block runs at half its speed
ELEMENTS_PER_THREAD = 2**17  # of a vector: a block of it is still in the cache when it is used again
LARGEST_INDEX = 2**31 - 1
HOST_BLOCK_BYTES = 2**27  # of a matrix that is read back


class Operator(Protocol):
    """A symmetric matrix, ready to be multiplied with vectors of its own layout."""

    data: Any  # what a product reads besides the vector
    length: int  # elements of a vector in the operator's layout, zeros at borders among them
    blocks: Tuple[slice, ...]  # pieces of a vector that fit the cache; one where blocks do not help

    def product(self, data: Any, p: Any, out: Any) -> Tuple[Any, Any]:
        """A·p and p'A·p."""
        ...

    def embed(self, x: Any) -> Any:
        """A plain numpy vector in the operator's layout."""
        ...

    def extract(self, x: Any) -> Any:
        """The plain numpy vector in one of the operator's layout."""
        ...

    def reference(self, x: Any) -> Any:
        """A times each row of a numpy array, computed in numpy another way."""
        ...

    def eigenvalues(self) -> Tuple[float, float]:
        """Bounds of the spectrum."""
        ...


def make_operator(matrix: str, arrays: Any, size: int, shift: float, seed: int, num_threads: int) -> Operator:
    """The operator of that name on the device."""
    if matrix == "dense":
        return Dense(arrays, size, shift, seed)
    if matrix == "csr":
        return Csr(arrays, size, shift, num_threads)
    return MatrixFree(arrays, size, shift, num_threads)


def vector_blocks(arrays: Any, length: int, num_threads: int) -> Tuple[slice, ...]:
    """Pieces of a vector; one where nothing is written in place or the device has no cache to speak of."""
    step = length
    if arrays.writes_in_place and arrays.device == "cpu":
        step = ELEMENTS_PER_THREAD * max(1, num_threads)
    return tuple(slice(start, min(length, start + step)) for start in range(0, length, max(1, step)))


def dense_diagonal(size: int) -> float:
    """What is added to the diagonal of a symmetric random matrix whose eigenvalues fill -2 to 2.

    The margin holds the largest eigenvalue back with a probability of failure below one in a million
    (C. A. Tracy and H. Widom, 1996: it leaves the edge by about size^(-2/3)).
    """
    return 2.05 + 10 * math.pow(size, -2 / 3)


class Dense:
    """A symmetric matrix of normal random numbers, its diagonal raised until it is positive definite."""

    def __init__(self, arrays: Any, size: int, shift: float, seed: int) -> None:
        self._arrays, self._size, self._shift, self._seed = arrays, size, shift, seed
        self.length = size
        self.blocks: Tuple[slice, ...] = (slice(0, size),)
        num_rows = max(1, min(size, LARGEST_BLOCK // size // TILE * TILE or LARGEST_BLOCK // size))
        self._rows = [(first, min(size, first + num_rows)) for first in range(0, size, num_rows)]
        self.data = tuple(self._row_block(first, last) for first, last in self._rows)

    def _row_block(self, first: int, last: int) -> Any:
        arrays, tiles = self._arrays, []
        if not arrays.writes_in_place:
            for row in range(first, last, TILE):
                columns = range(0, self._size, TILE)
                tiles.append(arrays.concatenate([self._tile(row, column) for column in columns], axis=1))
            return arrays.concatenate(tiles, axis=0) if len(tiles) > 1 else tiles[0]
        block = arrays.zeros((last - first, self._size), "float64")
        for row in range(first, last, TILE):
            for column in range(0, self._size, TILE):
                tile = self._tile(row, column)
                rows = slice(row - first, row - first + tile.shape[0])
                arrays.copy(tile, out=block[rows, column : column + tile.shape[1]])
        return block

    def _tile(self, row: int, column: int) -> Any:
        """One tile; those below the diagonal are those above it, turned."""
        if row > column:
            return self._arrays.transpose(self._tile(column, row))
        num_rows, num_columns = (min(TILE, self._size - start) for start in (row, column))
        number = (row // TILE) * (self._size // TILE + 1) + column // TILE
        tile = self._arrays.normal((num_rows, num_columns), "float64", self._seed * 2**20 + number)
        if row < column:
            return self._arrays.scale(1 / math.sqrt(self._size), tile, out=tile)
        turned = self._arrays.scale(1 / math.sqrt(2 * self._size), self._arrays.transpose(tile))
        tile = self._arrays.add_scaled(turned, 1 / math.sqrt(2 * self._size), tile)
        diagonal = np.eye(num_rows) * (dense_diagonal(self._size) + self._shift)
        return self._arrays.add(tile, self._arrays.from_host(diagonal))

    def product(self, data: Any, p: Any, out: Any) -> Tuple[Any, Any]:
        arrays = self._arrays
        if len(data) == 1:
            out = arrays.matmul(data[0], p, out=out)
        elif arrays.writes_in_place:
            for (first, last), block in zip(self._rows, data):
                arrays.matmul(block, p, out=out[first:last])
        else:
            out = arrays.concatenate([arrays.matmul(block, p) for block in data], axis=0)
        return out, arrays.dot(p, out)

    def embed(self, x: Any) -> Any:
        return x

    def extract(self, x: Any) -> Any:
        return x

    def reference(self, x: Any) -> Any:
        """By columns: the sum of rows times elements, which also needs the matrix to be symmetric."""
        product, adding = np.zeros((len(x), self._size)), threading.Lock()
        step = max(1, HOST_BLOCK_BYTES // (8 * self._size))
        for (first, last), block in zip(self._rows, self.data):

            def add(row: int, first: int = first, last: int = last, block: Any = block) -> None:
                rows = self._arrays.to_host(block[row - first : min(last, row + step) - first])
                part = x[:, row : row + len(rows)] @ rows
                with adding:
                    np.add(product, part, out=product)

            over_blocks(add, range(first, last, step), self._arrays.device)
        return product

    def eigenvalues(self) -> Tuple[float, float]:
        diagonal = dense_diagonal(self._size)
        spread = diagonal - 0.05  # what the diagonal leaves is at least this
        return diagonal - spread + self._shift, diagonal + spread + self._shift


class _Stencil:
    """What both forms of the stencil share."""

    def __init__(self, arrays: Any, edge: int, shift: float) -> None:
        self._arrays, self._edge, self._shift = arrays, edge, shift

    def reference(self, x: Any) -> Any:
        return np.stack([stencil_product(each, self._edge, self._shift) for each in x])

    def eigenvalues(self) -> Tuple[float, float]:
        return stencil_eigenvalues(self._edge, self._shift)


class Csr(_Stencil):
    """The stencil as a matrix of compressed sparse rows, in row blocks."""

    def __init__(self, arrays: Any, edge: int, shift: float, num_threads: int) -> None:
        super().__init__(arrays, edge, shift)
        self.length = edge**3
        self.blocks = vector_blocks(arrays, self.length, num_threads)
        largest = LARGEST_INDEX // 27
        starts = sorted({start for b in self.blocks for start in range(b.start, b.stop, largest)})
        self._rows = list(zip(starts, [*starts[1:], self.length]))
        self.data = tuple(
            arrays.csr(*stencil_rows(edge, first, last, shift), num_columns=self.length)
            for first, last in self._rows
        )

    def product(self, data: Any, p: Any, out: Any) -> Tuple[Any, Any]:
        arrays = self._arrays
        if not arrays.writes_in_place:
            pieces = [arrays.csr_matvec(block, p) for block in data]
            out = pieces[0] if len(pieces) == 1 else arrays.concatenate(pieces, axis=0)
            return out, arrays.dot(p, out)
        curvature = None
        for (first, last), block in zip(self._rows, data):
            here = arrays.csr_matvec(block, p, out=out[first:last])
            part = arrays.dot(p[first:last], here)
            curvature = part if curvature is None else curvature + part
        return out, curvature

    def embed(self, x: Any) -> Any:
        return x

    def extract(self, x: Any) -> Any:
        return x


class MatrixFree(_Stencil):
    """The stencil as sums of neighbours along z, then y, then x: 27 terms in six additions.

    Vectors are cubes with a border of zeros, laid flat: a neighbour is the same array a fixed distance away,
    so that every sum runs over contiguous memory. What the sums leave in the border is cleared.
    """

    def __init__(self, arrays: Any, edge: int, shift: float, num_threads: int) -> None:
        super().__init__(arrays, edge, shift)
        self._row = edge + 2
        self._plane = self._row * self._row
        self.length = self._row**3
        self.blocks = vector_blocks(arrays, self.length, num_threads)
        margin = self._plane + self._row + 1  # before the first inner point, and after the last
        step = self.blocks[0].stop
        inner = range(margin, self.length - margin, step)
        self._pieces = [(start, min(start + step, self.length - margin)) for start in inner]
        longest = max(stop - start for start, stop in self._pieces)
        if arrays.writes_in_place:
            halo = 2 * (self._row + 1)
            self.data = tuple(
                arrays.zeros(shape, "float64") for shape in ((longest + halo,), (longest + 2,), (1, 1))
            )
        else:
            self.data = tuple(arrays.from_host(each) for each in (self._mask(margin), np.zeros(margin)))

    def _mask(self, margin: int) -> Any:
        return self.embed(np.ones(self._edge**3))[margin : self.length - margin]

    def product(self, data: Any, p: Any, out: Any) -> Tuple[Any, Any]:
        arrays = self._arrays
        if not arrays.writes_in_place:
            mask, border = data
            (piece,) = self._pieces
            inner = arrays.multiply(mask, self._neighbours(p, piece, None, None, None))
            out = arrays.concatenate([border, inner, border], axis=0)
            return out, arrays.dot(p, out)
        along_z, along_y, zero = data
        curvature = None
        for start, stop in self._pieces:
            here = self._neighbours(p, (start, stop), along_z, along_y, out[start:stop])
            part = arrays.dot(p[start:stop], here)  # p is zero in the border
            curvature = part if curvature is None else curvature + part
        for face in self._faces(out):
            arrays.copy(zero, out=face)
        return out, curvature

    def _neighbours(self, p: Any, piece: Tuple[int, int], along_z: Any, along_y: Any, out: Any) -> Any:
        """Rows of the product; right at inner points only."""
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

    def _faces(self, out: Any) -> List[Any]:
        """The parts of the border that sums write to; the ends of one row and the start of the next touch."""
        row, plane = self._row, self._plane
        ends = out[row - 1 : row - 1 + (plane - 1) * row].reshape(plane - 1, row)[:, :2]
        sides = out[plane - row : plane - row + (row - 1) * plane].reshape(row - 1, plane)[:, : 2 * row]
        return [ends, sides]

    def embed(self, x: Any) -> Any:
        padded = np.zeros((self._row,) * 3)
        padded[1:-1, 1:-1, 1:-1] = x.reshape((self._edge,) * 3)
        return padded.reshape(-1)

    def extract(self, x: Any) -> Any:
        return x.reshape((self._row,) * 3)[1:-1, 1:-1, 1:-1].reshape(-1)
