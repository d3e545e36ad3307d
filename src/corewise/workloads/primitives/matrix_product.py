"""One product of matrices of a problem in benchdnn's notation, with or without reorders.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Mapping, Optional, Tuple

from corewise.workloads.base import Traits, Work, workload_args
from corewise.workloads.primitives.arguments import chosen, known_args
from corewise.workloads.primitives.matrix_problem import MatrixProblem, parse_matrix_product
from corewise.workloads.primitives.memory_demand import Demand
from corewise.workloads.primitives.workload import (
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
class AskedProduct:
    """What a trial's arguments ask for."""

    problem: MatrixProblem
    reorders: str
    int8_source: str
    benchdnn: str


@dataclasses.dataclass(frozen=True)
class MatrixProduct(PrimitiveWorkload):
    """A product; one sample is one execution of the whole problem."""

    name: str = "matrix_product"
    summary: str = "one product of matrices in benchdnn's notation MxK:KxN (args.problem, args.reorders)"

    @property
    def builders(self) -> Mapping[str, str]:
        runtimes = ("numpy", "torch", "jax", "tensorflow")
        return {name: f"corewise.runtimes.{name}.matrix_product:prepare_matrix_product" for name in runtimes}

    @property
    def parameters(self) -> Mapping[str, Any]:
        return PARAMETERS

    def dtypes(self, args: Mapping[str, Any]) -> Tuple[str, ...]:
        return (*FLOAT_DTYPES, "int8")

    def traits(self, args: Mapping[str, Any]) -> Traits:
        return Traits(takes_images=False, has_batch_norm=False, has_dropout=False)

    def asked(self, args: Mapping[str, Any]) -> AskedProduct:
        """The arguments, checked; ValueError says what is wrong."""
        full = known_args(self.name, args, PARAMETERS)
        return AskedProduct(
            problem=parse_matrix_product(str(full["problem"]).strip()),
            reorders=chosen(self.name, "reorders", full["reorders"], REORDERS),
            int8_source=chosen(self.name, "int8_source", full["int8_source"], INT8_SOURCES),
            benchdnn=str(full["benchdnn"] or ""),
        )

    def work(self, mode: str, args: Mapping[str, Any], dtype: Optional[str] = None) -> Work:
        """Two flops for each product of elements; both factors read and the result written once."""
        problem = self.asked(args).problem
        shapes = (problem.source_shape, problem.weights_shape, problem.destination_shape)
        num_elements = sum(math.prod(shape) for shape in shapes)
        return Work(problem.flops, float(num_elements * DTYPE_BYTES[dtype or "float32"]), 0)

    def demand(self, args: Mapping[str, Any], dtype: str, device: str) -> Demand:
        """Factors and result, the second factor also prepared; on the host also in float64 for the check."""
        asked = self.asked(args)
        problem, width = asked.problem, DTYPE_BYTES[dtype]
        copies = 2 if asked.reorders == "excluded" or dtype == "int8" else 1
        checked = DTYPE_BYTES["float64"] if device == "cpu" else 0

        def parts(m: int) -> Mapping[str, int]:
            batches = math.prod(problem.batch_shape)
            return {
                "first factor": m * problem.k * (math.prod(problem.source_shape[:-2]) * width + checked),
                "second factor": math.prod(problem.weights_shape) * width * copies
                + problem.k * problem.n * checked,
                "result": m * problem.n * (batches * width + checked),
            }

        sizes = {"first factor": "K", "second factor": "K or N", "result": "N"}
        if problem.batch_shape:
            sizes = {name: f"the batch, {size}" for name, size in sizes.items()}
        return Demand(problem.m, "write into the problem M =", "number of rows M", parts, sizes)

    def refusal(self, params: Mapping[str, Any]) -> Optional[str]:
        """Why the point does not exist in any framework, or None."""
        asked, dtype = self.asked(workload_args(params)), str(params["dtype"])
        if int(params["batch"]) != 1:
            return (
                f"batch {params['batch']}: write it into the problem, as 8xMxK:8xKxN; leave batch out, or 1"
            )
        if dtype != "int8" and asked.int8_source != INT8_SOURCES[0]:
            return f"int8_source {asked.int8_source} has no effect: dtype is {dtype}"
        if dtype == "int8" and asked.reorders == "excluded":
            return "reorders excluded has no effect: weights of eight-bit products are always prepared"
        if len(asked.problem.source_shape) > 2 and (asked.reorders == "excluded" or dtype == "int8"):
            what = "reorders excluded" if asked.reorders == "excluded" else "dtype int8"
            return f"{what}: weights are prepared for single matrices, not for batches of them"
        return None


MATRIX_PRODUCT = MatrixProduct()
