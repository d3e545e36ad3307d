"""One convolution on JAX, channels first as its default is.

Measured side: standard library, numpy and jax only, Python 3.9.
"""

from __future__ import annotations

import functools
from typing import Any, Mapping

import jax

from corewise.runtimes.arrays_convolution import Dialect, Operator, prepare_arrays_convolution
from corewise.runtimes.arrays_primitive import ArraysPrimitiveJob
from corewise.runtimes.base import RankContext
from corewise.runtimes.jax.arrays import JaxArrays
from corewise.runtimes.jax.settings import apply_to_process, process_facts
from corewise.workloads.primitives.convolution import Asked

LAYOUTS = {1: ("NCW", "OIW", "NCW"), 2: ("NCHW", "OIHW", "NCHW"), 3: ("NCDHW", "OIDHW", "NCDHW")}


def prepare_convolution(params: Mapping[str, Any], context: RankContext) -> ArraysPrimitiveJob:
    """The job on this rank's device."""
    device = apply_to_process(params, context)
    facts = functools.partial(process_facts, device)
    return prepare_arrays_convolution(JaxArrays(device), DIALECT, params, context, facts)


def operator(asked: Asked) -> Operator:
    """What one step computes; gradients are the transposed convolution, as differentiation makes them."""
    problem, dims = asked.problem, asked.problem.dimensions
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
        made = convolve(source, weights)
        return (made if bias is None else made + bias.reshape(1, -1, *(1 for _ in dims)),)

    def backward_data(gradient: Any, weights: Any) -> Any:
        wanted = untyped.ShapeDtypeStruct(problem.source_shape, gradient.dtype)
        return untyped.linear_transpose(lambda source: convolve(source, weights), wanted)(gradient)

    def backward_weights(gradient: Any, source: Any) -> Any:
        wanted = untyped.ShapeDtypeStruct(problem.weights_shape, gradient.dtype)
        made = untyped.linear_transpose(lambda weights: convolve(source, weights), wanted)(gradient)
        if asked.direction == "BWD_W":
            return made
        return (*made, gradient.sum(axis=(0, *range(2, gradient.ndim))))

    by_direction: Mapping[str, Operator] = {
        "BWD_D": backward_data,
        "BWD_W": backward_weights,
        "BWD_WB": backward_weights,
    }
    return by_direction.get(asked.direction, forward)


DIALECT = Dialect(channels_last=False, operator=operator, memory_factor=1.6)
