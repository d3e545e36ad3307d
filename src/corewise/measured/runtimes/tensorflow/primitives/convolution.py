"""One convolution on TensorFlow, with channels last, which its CPU operators require.

Measured side: standard library, numpy and tensorflow only, Python 3.9.
"""

from __future__ import annotations

import functools
from typing import Any, Mapping

import tensorflow as tf  # type: ignore[import-untyped]

from corewise.measured.parameters import TrialParameters
from corewise.measured.runtimes.arrays.convolution import ConvolutionDialect, Operator, prepare_arrays_convolution
from corewise.measured.runtimes.arrays.primitive_job import ArraysPrimitiveJob
from corewise.measured.runtimes.base import Infeasible, RankContext
from corewise.measured.runtimes.tensorflow.arrays import TensorflowArrays
from corewise.measured.runtimes.tensorflow.settings import apply_to_process, read_process_facts
from corewise.measured.workloads.primitives.convolution import ConvolutionArguments


def prepare_convolution(params: TrialParameters, context: RankContext) -> ArraysPrimitiveJob:
    """Prepare the job on the device of this rank."""
    ordinal, device = apply_to_process(params, context), params.device.value
    facts = functools.partial(read_process_facts, device, ordinal)
    arrays = TensorflowArrays(device, ordinal)
    return prepare_arrays_convolution(arrays, DIALECT, params, context, facts)


def build_operator(arguments: ConvolutionArguments) -> Operator:
    """Build the function of one step with the TensorFlow operator of the direction."""
    problem = arguments.problem
    if len(problem.dimensions) != 2:
        raise Infeasible("tensorflow: only problems with height and width are supported")
    height, width = problem.dimensions
    paddings = [0, 0, *(p for d in (height, width) for p in (d.padding, d.padding_after)), 0, 0]
    options = {
        "strides": [1, height.stride, width.stride, 1],
        "padding": "EXPLICIT",
        "explicit_paddings": paddings,
        "dilations": [1, height.dilation + 1, width.dilation + 1, 1],
    }
    raw: Any = tf.raw_ops

    def forward(source: Any, weights: Any, bias: Any = None) -> Any:
        result = raw.Conv2D(input=source, filter=weights, **options)
        return (result if bias is None else tf.nn.bias_add(result, bias),)

    def backward_data(gradient: Any, weights: Any) -> Any:
        sizes = [problem.mb, height.source, width.source, problem.ic]
        return (raw.Conv2DBackpropInput(input_sizes=sizes, filter=weights, out_backprop=gradient, **options),)

    def backward_weights(gradient: Any, source: Any) -> Any:
        sizes = [height.kernel, width.kernel, problem.ic // problem.g, problem.oc]
        result = raw.Conv2DBackpropFilter(input=source, filter_sizes=sizes, out_backprop=gradient, **options)
        return (result,) if arguments.direction == "BWD_W" else (result, raw.BiasAddGrad(out_backprop=gradient))

    by_direction: Mapping[str, Operator] = {
        "BWD_D": backward_data,
        "BWD_W": backward_weights,
        "BWD_WB": backward_weights,
    }
    return by_direction.get(arguments.direction, forward)


DIALECT = ConvolutionDialect(channels_last=True, build_operator=build_operator, memory_factor=1.9)
