"""One product of matrices in benchdnn's notation on any framework's arrays.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from corewise.runtimes.arrays import Arrays
from corewise.runtimes.arrays_primitive import ArraysPrimitiveJob, Facts, require_primitive, tolerance_of
from corewise.runtimes.base import Check, RankContext
from corewise.workloads.base import workload_args
from corewise.workloads.primitives.convolution import types_of
from corewise.workloads.primitives.matrix_problem import MatrixProblem
from corewise.workloads.primitives.matrix_product import MATRIX_PRODUCT
from corewise.workloads.primitives.product_check import product_error

NOUN = "product of matrices"


def prepare_arrays_matrix_product(
    arrays: Arrays, params: Mapping[str, Any], context: RankContext, facts: Facts
) -> ArraysPrimitiveJob:
    """The job; raises Infeasible with the reason where the framework has no such product."""
    problem, dtype = MATRIX_PRODUCT.asked(workload_args(params)).problem, str(params["dtype"])
    factor = _memory_factor(arrays.runtime, problem, dtype) if arrays.device == "cpu" else 1.0
    require_primitive(arrays, MATRIX_PRODUCT, NOUN, params, context, factor)
    a = arrays.normal(problem.source_shape, dtype, 2 * context.rank)
    b = arrays.normal(problem.weights_shape, dtype, 2 * context.rank + 1)
    multiply = arrays.compiled(lambda a, b: (arrays.matmul(a, b),))

    def check(results: Sequence[Any]) -> Check:
        error = product_error(*(arrays.to_host(each) for each in (a, b, *results)))
        return Check(error, tolerance_of(params, problem.k), "the product with a random vector in float64")

    told = {"problem": str(problem), "types": types_of(dtype, "u8")}
    return ArraysPrimitiveJob(arrays, NOUN, lambda: multiply(a, b), check, lambda: {**facts(), **told})


def _memory_factor(runtime: str, problem: MatrixProblem, dtype: str) -> float:
    """For the check a batch lies in memory once more, one of 16 bits twice as float32."""
    if not problem.batch_shape:  # counted by the workload, but for the copies of what TensorFlow is given
        return 1.4 if runtime == "tensorflow" else 1.0
    return 5.0 if dtype in ("bfloat16", "float16") else 2.5
