"""The convolution workload: a problem in benchdnn's notation, in any direction, with or without reorders.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any, Mapping, Optional, Tuple

from corewise.measured.parameters import TrialParameters
from corewise.measured.workloads.base import Traits, Work
from corewise.measured.workloads.primitives.convolution_problem import ConvolutionProblem, parse_convolution
from corewise.measured.workloads.primitives.memory_demand import MemoryDemand
from corewise.measured.workloads.primitives.primitive_arguments import (
    fill_defaults,
    require_choice,
    require_whole_number,
)
from corewise.measured.workloads.primitives.primitive_workload import (
    DTYPE_BYTES,
    FLOAT_DTYPES,
    INT8_SOURCES,
    REORDERS,
    PrimitiveWorkload,
)
from corewise.measured.workloads.primitives.shipped_problems import resolve_problem_text

DIRECTIONS = ("FWD_B", "FWD_I", "FWD_D", "BWD_D", "BWD_WB", "BWD_W")
WITH_BIAS = ("FWD_B", "BWD_WB")
BENCHDNN_TYPES = {"float32": "f32", "bfloat16": "bf16bf16bf16", "float16": "f16", "float64": "f64"}
# int8 convolutions add a float32 bias.
BIAS_BYTES = {**DTYPE_BYTES, "int8": 4}
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
        return {
            "torch": "corewise.measured.runtimes.torch.primitives.convolution:prepare_convolution",
            "jax": "corewise.measured.runtimes.jax.primitives.convolution:prepare_convolution",
            "tensorflow": "corewise.measured.runtimes.tensorflow.primitives.convolution:prepare_convolution",
        }

    @property
    def parameters(self) -> Mapping[str, Any]:
        return PARAMETERS

    def list_dtypes(self, args: Mapping[str, Any]) -> Tuple[str, ...]:
        """Return the float formats, and int8 for the forward direction."""
        return (*FLOAT_DTYPES, "int8") if is_forward(self.read_arguments(args).direction) else FLOAT_DTYPES

    def describe_traits(self, args: Mapping[str, Any]) -> Traits:
        return Traits(takes_images=True, has_batch_norm=False, has_dropout=False)

    def read_arguments(self, args: Mapping[str, Any]) -> ConvolutionArguments:
        """Return the checked arguments; raise ValueError for an invalid one."""
        full = fill_defaults(self.name, args, PARAMETERS)
        return ConvolutionArguments(
            problem=parse_convolution(resolve_problem_text(str(full["problem"]))).replace_mb(
                require_whole_number(self.name, "mb", full["mb"])
            ),
            direction=require_choice(self.name, "direction", full["direction"], DIRECTIONS),
            reorders=require_choice(self.name, "reorders", full["reorders"], REORDERS),
            int8_source=require_choice(self.name, "int8_source", full["int8_source"], INT8_SOURCES),
            benchdnn=str(full["benchdnn"] or ""),
        )

    def count_work(self, mode: str, args: Mapping[str, Any], dtype: Optional[str] = None) -> Work:
        """Count products outside the padding, as benchdnn does; every tensor of the direction moves once."""
        asked = self.read_arguments(args)
        return Work(
            flops_per_sample=asked.problem.flops,
            bytes_per_sample=float(count_moved_bytes(asked.problem, asked.direction, dtype or "float32")),
            num_parameters=0,
        )

    def build_demand(self, args: Mapping[str, Any], dtype: str, device: str) -> MemoryDemand:
        """Count every tensor twice, in its given layout and in that of the kernel.

        The check on the host needs a float32 copy of 16-bit tensors.
        """
        checked = DTYPE_BYTES["float32"] if device == "cpu" and DTYPE_BYTES[dtype] == 2 else 0
        problem, width = self.read_arguments(args).problem, 2 * DTYPE_BYTES[dtype] + checked

        def count_parts(mb: int) -> Mapping[str, int]:
            resized = dataclasses.replace(problem, mb=mb)
            shapes = (resized.source_shape, resized.weights_shape, resized.destination_shape)
            return {name: width * math.prod(shape) for name, shape in zip(sizes, shapes)}

        sizes = {"input": "ic or the image", "weights": "ic, oc or the kernel", "output": "oc or the image"}
        return MemoryDemand(problem.mb, "set args.mb to", "minibatch", count_parts, sizes)

    def explain_refusal(self, params: TrialParameters) -> Optional[str]:
        """Return why no framework can run this point, or None."""
        asked = self.read_arguments(params.arguments)
        dtype, layout = params.dtype.value, params.memory_format.value
        if params.batch != 1:
            return f"batch {params.batch}: the problem defines the minibatch (args.mb); leave batch out"
        if dtype == "int8" and not is_forward(asked.direction):
            return f"direction {asked.direction} in int8: integers have no gradients; int8 is forward only"
        if dtype != "int8" and asked.int8_source != INT8_SOURCES[0]:
            return f"int8_source {asked.int8_source} has no effect: dtype is {dtype}"
        if layout != "contiguous" and len(asked.problem.dimensions) != 2:
            return f"memory_format {layout} is only for problems with height and width"
        if asked.reorders == "excluded" and layout == "contiguous":
            return (
                "reorders excluded: with contiguous tensors the operator itself reorders its inputs; "
                "use memory_format channels_last or blocked"
            )
        return None


@dataclasses.dataclass(frozen=True)
class ConvolutionArguments:
    """The checked arguments of a trial; `benchdnn` is the path of a benchdnn program to run as well."""

    problem: ConvolutionProblem
    direction: str
    reorders: str
    int8_source: str
    benchdnn: str


def is_forward(direction: str) -> bool:
    return direction.startswith("FWD")


def format_benchdnn_types(dtype: str, int8_source: str) -> str:
    """Return the number formats in benchdnn's notation: f32, bf16bf16bf16, u8s8s8, ..."""
    return BENCHDNN_TYPES.get(dtype, f"{int8_source}s8s8")


def separate_types(types: str) -> str:
    """Insert colons between source, weights and destination, as newer drivers of benchdnn require."""
    return ":".join(re.findall(r"[a-z]+\d+", types))


def count_moved_bytes(problem: ConvolutionProblem, direction: str, dtype: str) -> int:
    """Count the minimum traffic: source, weights and destination are each moved once in every direction."""
    sizes = [math.prod(shape) for shape in (problem.source_shape, problem.weights_shape, problem.destination_shape)]
    bias = problem.oc * BIAS_BYTES[dtype] if direction in WITH_BIAS else 0
    return sum(sizes) * DTYPE_BYTES[dtype] + bias


CONVOLUTION = Convolution()
