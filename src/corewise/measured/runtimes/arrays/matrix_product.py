"""One matrix product in the notation of benchdnn on the arrays of any framework.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, Sequence

from corewise.measured.parameters import TrialParameters
from corewise.measured.runtimes.arrays.array_contract import Arrays
from corewise.measured.runtimes.arrays.primitive_job import (
    ArraysPrimitiveJob,
    Facts,
    compute_tolerance,
    require_primitive,
)
from corewise.measured.runtimes.base import Check, RankContext
from corewise.measured.workloads.primitives.convolution import format_benchdnn_types
from corewise.measured.workloads.primitives.freivalds_check import compute_product_error
from corewise.measured.workloads.primitives.matrix_problem import MatrixProblem
from corewise.measured.workloads.primitives.matrix_product import MATRIX_PRODUCT

NOUN = "matrix product"


def prepare_arrays_matrix_product(
    arrays: Arrays, params: TrialParameters, context: RankContext, facts: Facts
) -> ArraysPrimitiveJob:
    """Prepare the job; raise Infeasible with the reason if the framework lacks this product."""
    problem, dtype = MATRIX_PRODUCT.read_arguments(params.arguments).problem, params.dtype.value
    factor = _estimate_memory_factor(arrays.runtime, problem, dtype) if arrays.device == "cpu" else 1.0
    require_primitive(arrays, MATRIX_PRODUCT, NOUN, params, context, factor)
    a = arrays.draw_normal(problem.source_shape, dtype, 2 * context.rank)
    b = arrays.draw_normal(problem.weights_shape, dtype, 2 * context.rank + 1)
    multiply = arrays.compile(lambda a, b: (arrays.matmul(a, b),))

    def check(results: Sequence[Any]) -> Check:
        error = compute_product_error(*(arrays.to_host(each) for each in (a, b, *results)))
        return Check(error, compute_tolerance(params, problem.k), "the product with a random vector in float64")

    extra_facts = {"problem": str(problem), "types": format_benchdnn_types(dtype, "u8")}
    return ArraysPrimitiveJob(arrays, NOUN, lambda: multiply(a, b), check, lambda: {**facts(), **extra_facts})


def _estimate_memory_factor(runtime: str, problem: MatrixProblem, dtype: str) -> float:
    """Estimate the memory factor: the check copies a batch, and a 16-bit one twice as float32."""
    # Without a batch the workload counts the check, but not the copies that TensorFlow makes of its input.
    if not problem.batch_shape:
        return 1.4 if runtime == "tensorflow" else 1.0
    return 5.0 if dtype in ("bfloat16", "float16") else 2.5
