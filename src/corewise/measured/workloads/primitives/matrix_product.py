"""The matrix product workload: a problem in benchdnn's notation, with or without reorders.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Mapping, Optional, Tuple

from corewise.measured.parameters import TrialParameters
from corewise.measured.workloads.base import Traits, Work
from corewise.measured.workloads.primitives.matrix_problem import MatrixProblem, parse_matrix_product
from corewise.measured.workloads.primitives.memory_demand import MemoryDemand
from corewise.measured.workloads.primitives.primitive_arguments import fill_defaults, require_choice
from corewise.measured.workloads.primitives.primitive_workload import (
    DTYPE_BYTES,
    FLOAT_DTYPES,
    INT8_SOURCES,
    REORDERS,
    PrimitiveWorkload,
)

PARAMETERS: Mapping[str, Any] = {
    "problem": "512x512:512x512",
    "reorders": "included",
    "int8_source": "u8",
    "benchdnn": "",
}


@dataclasses.dataclass(frozen=True)
class MatrixProductArguments:
    """The checked arguments of a trial."""

    problem: MatrixProblem
    reorders: str
    int8_source: str
    benchdnn: str


@dataclasses.dataclass(frozen=True)
class MatrixProduct(PrimitiveWorkload):
    """A matrix product; one sample is one execution of the whole problem."""

    name: str = "matrix_product"
    summary: str = "one product of matrices in benchdnn's notation MxK:KxN (args.problem, args.reorders)"

    @property
    def builders(self) -> Mapping[str, str]:
        return {
            "numpy": "corewise.measured.runtimes.numpy.primitives.matrix_product:prepare_matrix_product",
            "torch": "corewise.measured.runtimes.torch.primitives.matrix_product:prepare_matrix_product",
            "jax": "corewise.measured.runtimes.jax.primitives.matrix_product:prepare_matrix_product",
            "tensorflow": "corewise.measured.runtimes.tensorflow.primitives.matrix_product:prepare_matrix_product",
        }

    @property
    def parameters(self) -> Mapping[str, Any]:
        return PARAMETERS

    def list_dtypes(self, args: Mapping[str, Any]) -> Tuple[str, ...]:
        return (*FLOAT_DTYPES, "int8")

    def describe_traits(self, args: Mapping[str, Any]) -> Traits:
        return Traits(takes_images=False, has_batch_norm=False, has_dropout=False)

    def read_arguments(self, args: Mapping[str, Any]) -> MatrixProductArguments:
        """Return the checked arguments; raise ValueError for an invalid one."""
        full = fill_defaults(self.name, args, PARAMETERS)
        return MatrixProductArguments(
            problem=parse_matrix_product(str(full["problem"]).strip()),
            reorders=require_choice(self.name, "reorders", full["reorders"], REORDERS),
            int8_source=require_choice(self.name, "int8_source", full["int8_source"], INT8_SOURCES),
            benchdnn=str(full["benchdnn"] or ""),
        )

    def count_work(self, mode: str, args: Mapping[str, Any], dtype: Optional[str] = None) -> Work:
        """Count two flops per multiply-add; both factors are read and the result is written once."""
        problem = self.read_arguments(args).problem
        shapes = (problem.source_shape, problem.weights_shape, problem.destination_shape)
        num_elements = sum(math.prod(shape) for shape in shapes)
        return Work(problem.flops, float(num_elements * DTYPE_BYTES[dtype or "float32"]), 0)

    def build_demand(self, args: Mapping[str, Any], dtype: str, device: str) -> MemoryDemand:
        """Count factors, result, a prepared factor, and on the host float64 copies for the check."""
        asked = self.read_arguments(args)
        problem, width = asked.problem, DTYPE_BYTES[dtype]
        copies = 2 if asked.reorders == "excluded" or dtype == "int8" else 1
        checked = DTYPE_BYTES["float64"] if device == "cpu" else 0

        def count_parts(m: int) -> Mapping[str, int]:
            batches = math.prod(problem.batch_shape)
            return {
                "first factor": m * problem.k * (math.prod(problem.source_shape[:-2]) * width + checked),
                "second factor": math.prod(problem.weights_shape) * width * copies + problem.k * problem.n * checked,
                "result": m * problem.n * (batches * width + checked),
            }

        sizes = {"first factor": "K", "second factor": "K or N", "result": "N"}
        if problem.batch_shape:
            sizes = {name: f"the batch, {size}" for name, size in sizes.items()}
        return MemoryDemand(problem.m, "write into the problem M =", "number of rows M", count_parts, sizes)

    def explain_refusal(self, params: TrialParameters) -> Optional[str]:
        """Return why no framework can run this point, or None."""
        asked, dtype = self.read_arguments(params.arguments), params.dtype.value
        if params.batch != 1:
            return f"batch {params.batch}: write it into the problem, as 8xMxK:8xKxN; leave batch out"
        if dtype != "int8" and asked.int8_source != INT8_SOURCES[0]:
            return f"int8_source {asked.int8_source} has no effect: dtype is {dtype}"
        if dtype == "int8" and asked.reorders == "excluded":
            return "reorders excluded has no effect: weights of int8 products are always prepared"
        if len(asked.problem.source_shape) > 2 and (asked.reorders == "excluded" or dtype == "int8"):
            setting = "reorders excluded" if asked.reorders == "excluded" else "dtype int8"
            return f"{setting}: weights are prepared for single matrices, not for batches"
        return None


MATRIX_PRODUCT = MatrixProduct()
