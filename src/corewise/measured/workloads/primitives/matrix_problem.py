"""Matrix products in the notation of benchdnn's matmul driver: `MxK:KxN`, with leading batch sizes.

The rules are those of oneDNN's tests/benchdnn/doc/driver_matmul.md. Measured side: standard library only,
Python 3.9.
"""

from __future__ import annotations

import dataclasses
import math
import re
from typing import List, Tuple

from corewise.measured.workloads.primitives.problem_notation import ProblemError, build_error_at, parse_size

_NAME = re.compile(r"_?n\"?([^\s\"]*)\"?$")
_NO_DIGIT = re.compile(r"[^0-9]")
# The limit of oneDNN.
MAX_DIMENSIONS = 12


@dataclasses.dataclass(frozen=True)
class MatrixProblem:
    """A product of two matrices, or of two batches that may be broadcast.

    The shapes are (..., M, K) and (..., K, N).
    """

    source_shape: Tuple[int, ...]
    weights_shape: Tuple[int, ...]
    name: str = ""

    @property
    def m(self) -> int:
        return self.source_shape[-2]

    @property
    def k(self) -> int:
        return self.source_shape[-1]

    @property
    def n(self) -> int:
        return self.weights_shape[-1]

    @property
    def batch_shape(self) -> Tuple[int, ...]:
        return tuple(max(a, b) for a, b in zip(self.source_shape[:-2], self.weights_shape[:-2]))

    @property
    def destination_shape(self) -> Tuple[int, ...]:
        return (*self.batch_shape, self.m, self.n)

    @property
    def flops(self) -> float:
        return 2.0 * math.prod(self.destination_shape) * self.k

    def __str__(self) -> str:
        """Return the canonical form, with the destination."""
        shapes = (self.source_shape, self.weights_shape, self.destination_shape)
        text = ":".join("x".join(map(str, shape)) for shape in shapes)
        return f'{text}_n"{self.name}"' if self.name else text


def parse_matrix_product(text: str) -> MatrixProblem:
    """Parse a problem; raise ProblemError that points at the mistake."""
    named = _NAME.search(text)
    sizes = text[: named.start()] if named else text
    parts, shapes, place = sizes.split(":"), [], 0
    if len(parts) not in (2, 3):
        raise build_error_at(text, len(sizes), "write a product as MxK:KxN, or with its result as MxK:KxN:MxN")
    starts: List[int] = []
    for part in parts:
        shapes.append(_parse_shape(text, part, place))
        starts.append(place)
        place += len(part) + 1
    problem = MatrixProblem(shapes[0], shapes[1], named.group(1) if named else "")
    _check_shapes(text, problem, starts)
    if len(shapes) == 3 and shapes[2] != problem.destination_shape:
        wanted = "x".join(map(str, problem.destination_shape))
        raise build_error_at(text, starts[2], f"the result is given as {parts[2]}, but the factors give {wanted}")
    return problem


def _parse_shape(text: str, part: str, place: int) -> Tuple[int, ...]:
    shape: List[int] = []
    for size in part.split("x"):
        other = _NO_DIGIT.search(size)
        if other is not None or not size.strip("0"):
            shown = size if len(size) <= 40 else f"{size[:40]}…"
            raise build_error_at(
                text,
                place + (other.start() if other else 0),
                f"sizes are whole numbers from 1 with x between, not {shown!r}",
            )
        shape.append(parse_size(text, place, size))
        place += len(size) + 1
    if len(shape) > MAX_DIMENSIONS:
        raise build_error_at(text, place - 1, f"a product has at most {MAX_DIMENSIONS} sizes, not {len(shape)}")
    if len(shape) < 2:
        raise build_error_at(text, place - 1, f"a matrix has two sizes with x between, not {part!r}")
    return tuple(shape)


def _check_shapes(text: str, problem: MatrixProblem, starts: List[int]) -> None:
    source, weights = problem.source_shape, problem.weights_shape
    if source[-1] != weights[-2]:
        raise build_error_at(
            text, starts[1], f"the first matrix has {source[-1]} columns, the second {weights[-2]} rows"
        )
    if len(source) != len(weights):
        raise build_error_at(text, starts[1], f"the first has {len(source)} dimensions, the second {len(weights)}")
    for a, b in zip(source[:-2], weights[:-2]):
        if a != b and 1 not in (a, b):
            raise build_error_at(text, starts[1], f"batches of {a} and {b} do not match")


__all__ = ["MatrixProblem", "ProblemError", "parse_matrix_product"]
