"""One convolution on the arrays of any framework, in its default layout and without reorders.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Dict, Iterable, Sequence, Tuple

import numpy as np

from corewise.measured.parameters import TrialParameters
from corewise.measured.runtimes.arrays.array_contract import Arrays
from corewise.measured.runtimes.arrays.primitive_job import (
    ArraysPrimitiveJob,
    Facts,
    compute_tolerance,
    require_primitive,
)
from corewise.measured.runtimes.base import Check, RankContext
from corewise.measured.workloads.primitives.convolution import (
    CONVOLUTION,
    WITH_BIAS,
    ConvolutionArguments,
    format_benchdnn_types,
    is_forward,
)
from corewise.measured.workloads.primitives.convolution_reference import (
    REFERENCE,
    count_terms,
    find_worst_error,
    list_results,
)

NOUN = "convolution"
# Takes the arrays of `list_input_shapes` and returns one array per result of the direction.
Operator = Callable[..., Sequence[Any]]


@dataclasses.dataclass(frozen=True)
class ConvolutionDialect:
    """The image layout of a framework and its convolution operator.

    Attributes:
        channels_last: layouts are N…C and …IO; otherwise NC… and OI….
        memory_factor: measured peak memory on a CPU over the estimate of the workload.
    """

    channels_last: bool
    build_operator: Callable[[ConvolutionArguments], Operator]
    memory_factor: float

    def convert_shape(self, name: str, shape: Tuple[int, ...]) -> Tuple[int, ...]:
        """Convert the shape of a benchdnn tensor to the layout of the framework."""
        if not self.channels_last or len(shape) == 1:
            return shape
        if name == "wei":
            return (*shape[2:], shape[1], shape[0])
        return (shape[0], *shape[2:], shape[1])

    def to_benchdnn(self, name: str, array: Any) -> Any:
        """Convert an array of the framework to the layout of benchdnn."""
        if not self.channels_last or array.ndim == 1:
            return array
        if name.endswith("wei"):
            return np.transpose(array, (array.ndim - 1, array.ndim - 2, *range(array.ndim - 2)))
        return np.moveaxis(array, -1, 1)


def list_input_shapes(arguments: ConvolutionArguments) -> Dict[str, Tuple[int, ...]]:
    """List the shapes of the inputs of the direction, by name, in the order of the operator."""
    problem, direction = arguments.problem, arguments.direction
    source, weights = {"src": problem.source_shape}, {"wei": problem.weights_shape}
    if is_forward(direction):
        bias = {"bia": (problem.oc,)} if direction in WITH_BIAS else {}
        return {**source, **weights, **bias}
    gradient = {"diff_dst": problem.destination_shape}
    return {**gradient, **(weights if direction == "BWD_D" else source)}


def prepare_arrays_convolution(
    arrays: Arrays, dialect: ConvolutionDialect, params: TrialParameters, context: RankContext, facts: Facts
) -> ArraysPrimitiveJob:
    """Prepare the job; raise Infeasible with the reason if the framework lacks this convolution."""
    factor = dialect.memory_factor if arrays.device == "cpu" else 1.0
    require_primitive(arrays, CONVOLUTION, NOUN, params, context, factor)
    arguments, dtype, seed = CONVOLUTION.read_arguments(params.arguments), params.dtype.value, context.rank
    given = {
        name: arrays.draw_normal(dialect.convert_shape(name, shape), dtype, 10 * seed + number)
        for number, (name, shape) in enumerate(list_input_shapes(arguments).items())
    }
    operator, inputs = arrays.compile(dialect.build_operator(arguments)), tuple(given.values())

    def to_benchdnn_arrays(named: Iterable[Tuple[str, Any]]) -> Dict[str, Any]:
        return {name: dialect.to_benchdnn(name, arrays.to_host(array)) for name, array in named}

    def check(results: Sequence[Any]) -> Check:
        """Compare selected elements of every result with their sums in float64."""
        computed = to_benchdnn_arrays(zip(list_results(arguments), results))
        error = find_worst_error(arguments.problem, to_benchdnn_arrays(given.items()), computed, seed)
        return Check(error, compute_tolerance(params, count_terms(arguments)), REFERENCE)

    extra_facts = {
        "problem": str(arguments.problem),
        "types": format_benchdnn_types(dtype, arguments.int8_source),
        "direction": arguments.direction,
    }
    return ArraysPrimitiveJob(arrays, NOUN, lambda: operator(*inputs), check, lambda: {**facts(), **extra_facts})
