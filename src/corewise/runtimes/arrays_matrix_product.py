"""One product of matrices in benchdnn's notation on any framework's arrays.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

import math
from typing import Any, Iterator, List, Mapping, Sequence

import numpy as np

from corewise.runtimes.arrays import Arrays
from corewise.runtimes.arrays_primitive import ArraysPrimitiveJob, Facts, require_primitive, tolerance_of
from corewise.runtimes.base import Check, RankContext
from corewise.workloads.base import workload_args
from corewise.workloads.primitives.convolution import types_of
from corewise.workloads.primitives.matmul import rows_error
from corewise.workloads.primitives.matrix_problem import MatrixProblem
from corewise.workloads.primitives.matrix_product import MATRIX_PRODUCT

NOUN = "product of matrices"
ROWS_AT_A_TIME = 256  # made float64 for the check


def prepare_arrays_matrix_product(
    arrays: Arrays, params: Mapping[str, Any], context: RankContext, facts: Facts
) -> ArraysPrimitiveJob:
    """The job; raises Infeasible with the reason where the framework has no such product."""
    problem, dtype = MATRIX_PRODUCT.asked(workload_args(params)).problem, str(params["dtype"])
    factor = _memory_factor(problem, dtype) if arrays.device == "cpu" else 1.0
    require_primitive(arrays, MATRIX_PRODUCT, NOUN, params, context, factor)
    a = arrays.normal(problem.source_shape, dtype, 2 * context.rank)
    b = arrays.normal(problem.weights_shape, dtype, 2 * context.rank + 1)
    multiply = arrays.compiled(lambda a, b: (arrays.matmul(a, b),))

    def check(results: Sequence[Any]) -> Check:
        error = largest_error(problem, *(arrays.to_host(each) for each in (a, b, *results)))
        return Check(error, tolerance_of(params, problem.k), "the product with a random vector in float64")

    told = {"problem": str(problem), "types": types_of(dtype, "u8")}
    return ArraysPrimitiveJob(arrays, NOUN, lambda: multiply(a, b), check, lambda: {**facts(), **told})


def largest_error(problem: MatrixProblem, a: Any, b: Any, c: Any) -> float:
    """The worst error of a product, by Freivalds' check of every matrix of the batch; NaN if any is.

    Few rows at a time are made float64.
    """
    if c.shape != problem.destination_shape:
        return math.inf
    x = np.random.default_rng().standard_normal(problem.n)
    a, b = (np.broadcast_to(each, (*problem.batch_shape, *each.shape[-2:])) for each in (a, b))
    errors: List[float] = []
    for index in np.ndindex(*problem.batch_shape):
        times_x = [(rows @ x, (rows * rows) @ (x * x)) for rows in _pieces(b[index])]
        b_x, squares = (np.concatenate(pieces) for pieces in zip(*times_x))
        pairs = zip(_pieces(a[index]), _pieces(c[index]))
        errors.extend(rows_error(rows, made, x, b_x, squares) for rows, made in pairs)
    return float(np.max(errors))


def _pieces(matrix: Any) -> Iterator[Any]:
    for start in range(0, len(matrix), ROWS_AT_A_TIME):
        yield matrix[start : start + ROWS_AT_A_TIME].astype(np.float64)


def _memory_factor(problem: MatrixProblem, dtype: str) -> float:
    """For the check a batch lies in memory once more, one of 16 bits twice as float32."""
    if not problem.batch_shape:  # counted by the workload
        return 1.0
    return 5.0 if dtype in ("bfloat16", "float16") else 2.5
