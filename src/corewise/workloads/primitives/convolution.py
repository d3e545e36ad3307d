"""One convolution of a problem in benchdnn's notation, in any direction, with or without reorders.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any, Mapping, Optional, Tuple

from corewise.workloads.base import Traits, Work, workload_args
from corewise.workloads.primitives.arguments import chosen, known_args, whole_number
from corewise.workloads.primitives.memory_demand import Demand
from corewise.workloads.primitives.problem import ConvolutionProblem, parse_convolution
from corewise.workloads.primitives.shipped_problems import problem_text
from corewise.workloads.primitives.workload import (
    DTYPE_BYTES,
    FLOAT_DTYPES,
    INT8_SOURCES,
    REORDERS,
    PrimitiveWorkload,
)

DIRECTIONS = ("FWD_B", "FWD_I", "FWD_D", "BWD_D", "BWD_WB", "BWD_W")
WITH_BIAS = ("FWD_B", "BWD_WB")
BENCHDNN_TYPES = {"float32": "f32", "bfloat16": "bf16bf16bf16", "float16": "f16", "float64": "f64"}
BIAS_BYTES = {**DTYPE_BYTES, "int8": 4}  # eight-bit convolutions add a float32 bias
PARAMETERS: Mapping[str, Any] = {
    "problem": "mb16ic64ih28oc64kh3ph1",
    "direction": "FWD_B",
    "reorders": "included",
    "mb": 0,
    "int8_source": "u8",
    "benchdnn": "",
}


@dataclasses.dataclass(frozen=True)
class Convolution(PrimitiveWorkload):
    """A convolution; one sample is one execution of the whole problem."""

    name: str = "convolution"
    summary: str = "one convolution in benchdnn's notation (args.problem, args.direction, args.reorders)"

    @property
    def builders(self) -> Mapping[str, str]:
        runtimes = ("torch", "jax", "tensorflow")
        return {name: f"corewise.runtimes.{name}.convolution:prepare_convolution" for name in runtimes}

    @property
    def parameters(self) -> Mapping[str, Any]:
        return PARAMETERS

    def dtypes(self, args: Mapping[str, Any]) -> Tuple[str, ...]:
        """float32 and its kin in every direction; whole numbers forward only."""
        return (*FLOAT_DTYPES, "int8") if is_forward(self.asked(args).direction) else FLOAT_DTYPES

    def traits(self, args: Mapping[str, Any]) -> Traits:
        return Traits(takes_images=True, has_batch_norm=False, has_dropout=False)

    def asked(self, args: Mapping[str, Any]) -> Asked:
        """The arguments, checked; ValueError says what is wrong."""
        full = known_args(self.name, args, PARAMETERS)
        return Asked(
            problem=parse_convolution(problem_text(str(full["problem"]))).with_mb(
                whole_number(self.name, "mb", full["mb"])
            ),
            direction=chosen(self.name, "direction", full["direction"], DIRECTIONS),
            reorders=chosen(self.name, "reorders", full["reorders"], REORDERS),
            int8_source=chosen(self.name, "int8_source", full["int8_source"], INT8_SOURCES),
            benchdnn=str(full["benchdnn"] or ""),
        )

    def work(self, mode: str, args: Mapping[str, Any], dtype: Optional[str] = None) -> Work:
        """Products that meet the source, as benchdnn counts; every tensor of the direction moved once."""
        asked = self.asked(args)
        return Work(
            flops_per_sample=asked.problem.flops,
            bytes_per_sample=float(moved_bytes(asked.problem, asked.direction, dtype or "float32")),
            num_parameters=0,
        )

    def demand(self, args: Mapping[str, Any], dtype: str, device: str) -> Demand:
        """Every tensor twice: as it comes, and in the layout of the kernel; of 16 bits on the host also in
        float32 for the check."""
        checked = DTYPE_BYTES["float32"] if device == "cpu" and DTYPE_BYTES[dtype] == 2 else 0
        problem, width = self.asked(args).problem, 2 * DTYPE_BYTES[dtype] + checked

        def parts(mb: int) -> Mapping[str, int]:
            own = dataclasses.replace(problem, mb=mb)
            shapes = (own.source_shape, own.weights_shape, own.destination_shape)
            return {name: width * math.prod(shape) for name, shape in zip(sizes, shapes)}

        sizes = {"input": "ic or the image", "weights": "ic, oc or the kernel", "output": "oc or the image"}
        return Demand(problem.mb, "set args.mb to", "minibatch", parts, sizes)

    def refusal(self, params: Mapping[str, Any]) -> Optional[str]:
        """Why the point does not exist in any framework, or None."""
        asked = self.asked(workload_args(params))
        dtype, layout = str(params["dtype"]), str(params["memory_format"])
        if int(params["batch"]) != 1:
            return (
                f"batch {params['batch']}: the problem has its own minibatch (args.mb); leave batch out, or 1"
            )
        if dtype == "int8" and not is_forward(asked.direction):
            return (
                f"direction {asked.direction} in int8: whole numbers have no gradients; int8 is forward only"
            )
        if dtype != "int8" and asked.int8_source != INT8_SOURCES[0]:
            return f"int8_source {asked.int8_source} has no effect: dtype is {dtype}"
        if layout != "contiguous" and len(asked.problem.dimensions) != 2:
            return f"memory_format {layout} is for problems with height and width alone"
        if asked.reorders == "excluded" and layout == "contiguous":
            return (
                "reorders excluded: in a plain layout the operator itself reorders what it is given; "
                "take memory_format channels_last or blocked"
            )
        return None


@dataclasses.dataclass(frozen=True)
class Asked:
    """What a trial's arguments ask for."""

    problem: ConvolutionProblem
    direction: str
    reorders: str
    int8_source: str
    benchdnn: str  # the path of a benchdnn program whose figures are wanted too


def is_forward(direction: str) -> bool:
    return direction.startswith("FWD")


def types_of(dtype: str, int8_source: str) -> str:
    """The number formats in benchdnn's words: f32, bf16bf16bf16, u8s8s8, ..."""
    return BENCHDNN_TYPES.get(dtype, f"{int8_source}s8s8")


def separated_types(types: str) -> str:
    """The same with colons between source, weights and destination, as newer drivers of benchdnn want it."""
    return ":".join(re.findall(r"[a-z]+\d+", types))


def moved_bytes(problem: ConvolutionProblem, direction: str, dtype: str) -> int:
    """The least traffic: forward reads source and weights and writes the destination, backward likewise."""
    sizes = [
        math.prod(shape) for shape in (problem.source_shape, problem.weights_shape, problem.destination_shape)
    ]
    bias = problem.oc * BIAS_BYTES[dtype] if direction in WITH_BIAS else 0
    return sum(sizes) * DTYPE_BYTES[dtype] + bias


CONVOLUTION = Convolution()
