"""One convolution on JAX, with channels first, which is its default.

Measured side: standard library, numpy and jax only, Python 3.9.
"""

from __future__ import annotations

import functools
from typing import Any, Mapping

import jax

from corewise.measured.parameters import TrialParameters
from corewise.measured.runtimes.arrays.convolution import ConvolutionDialect, Operator, prepare_arrays_convolution
from corewise.measured.runtimes.arrays.primitive_job import ArraysPrimitiveJob
from corewise.measured.runtimes.base import RankContext
from corewise.measured.runtimes.jax.arrays import JaxArrays
from corewise.measured.runtimes.jax.settings import apply_to_process, read_process_facts
from corewise.measured.workloads.primitives.convolution import ConvolutionArguments

LAYOUTS = {1: ("NCW", "OIW", "NCW"), 2: ("NCHW", "OIHW", "NCHW"), 3: ("NCDHW", "OIDHW", "NCDHW")}


def prepare_convolution(params: TrialParameters, context: RankContext) -> ArraysPrimitiveJob:
    """Prepare the job on the device of this rank."""
    device = apply_to_process(params, context)
    facts = functools.partial(read_process_facts, device)
    return prepare_arrays_convolution(JaxArrays(device), DIALECT, params, context, facts)


def build_operator(arguments: ConvolutionArguments) -> Operator:
    """Build the function of one step; gradients are transposed convolutions."""
    problem, dims = arguments.problem, arguments.problem.dimensions
    untyped: Any = jax

    def convolve(source: Any, weights: Any) -> Any:
        return untyped.lax.conv_general_dilated(
            source,
            weights,
            window_strides=[d.stride for d in dims],
            padding=[(d.padding, d.padding_after) for d in dims],
            rhs_dilation=[d.dilation + 1 for d in dims],
            dimension_numbers=LAYOUTS[len(dims)],
            feature_group_count=problem.g,
        )

    def forward(source: Any, weights: Any, bias: Any = None) -> Any:
        result = convolve(source, weights)
        return (result if bias is None else result + bias.reshape(1, -1, *(1 for _ in dims)),)

    def backward_data(gradient: Any, weights: Any) -> Any:
        like = untyped.ShapeDtypeStruct(problem.source_shape, gradient.dtype)
        return untyped.linear_transpose(lambda source: convolve(source, weights), like)(gradient)

    def backward_weights(gradient: Any, source: Any) -> Any:
        like = untyped.ShapeDtypeStruct(problem.weights_shape, gradient.dtype)
        result = untyped.linear_transpose(lambda weights: convolve(source, weights), like)(gradient)
        if arguments.direction == "BWD_W":
            return result
        return (*result, gradient.sum(axis=(0, *range(2, gradient.ndim))))

    by_direction: Mapping[str, Operator] = {
        "BWD_D": backward_data,
        "BWD_W": backward_weights,
        "BWD_WB": backward_weights,
    }
    return by_direction.get(arguments.direction, forward)


DIALECT = ConvolutionDialect(channels_last=False, build_operator=build_operator, memory_factor=1.6)
