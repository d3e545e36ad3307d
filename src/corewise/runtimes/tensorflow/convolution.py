"""One convolution on TensorFlow, channels last as its CPU operators want it.

Measured side: standard library, numpy and tensorflow only, Python 3.9.
"""

from __future__ import annotations

import functools
from typing import Any, Mapping

import tensorflow as tf  # type: ignore[import-untyped]

from corewise.runtimes.arrays_convolution import Dialect, Operator, prepare_arrays_convolution
from corewise.runtimes.arrays_primitive import ArraysPrimitiveJob
from corewise.runtimes.base import Infeasible, RankContext
from corewise.runtimes.tensorflow.arrays import TensorflowArrays
from corewise.runtimes.tensorflow.settings import apply_to_process, process_facts
from corewise.workloads.primitives.convolution import Asked


def prepare_convolution(params: Mapping[str, Any], context: RankContext) -> ArraysPrimitiveJob:
    """The job on this rank's device."""
    ordinal, device = apply_to_process(params, context), str(params["device"])
    facts = functools.partial(process_facts, device, ordinal)
    arrays = TensorflowArrays(device, ordinal)
    return prepare_arrays_convolution(arrays, DIALECT, params, context, facts)


def operator(asked: Asked) -> Operator:
    """What one step computes, by TensorFlow's own operator for the direction."""
    problem = asked.problem
    if len(problem.dimensions) != 2:
        raise Infeasible("tensorflow: problems with height and width alone are run")
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
        made = raw.Conv2D(input=source, filter=weights, **options)
        return (made if bias is None else tf.nn.bias_add(made, bias),)

    def backward_data(gradient: Any, weights: Any) -> Any:
        sizes = [problem.mb, height.source, width.source, problem.ic]
        return (raw.Conv2DBackpropInput(input_sizes=sizes, filter=weights, out_backprop=gradient, **options),)

    def backward_weights(gradient: Any, source: Any) -> Any:
        sizes = [height.kernel, width.kernel, problem.ic // problem.g, problem.oc]
        made = raw.Conv2DBackpropFilter(input=source, filter_sizes=sizes, out_backprop=gradient, **options)
        return (made,) if asked.direction == "BWD_W" else (made, raw.BiasAddGrad(out_backprop=gradient))

    by_direction: Mapping[str, Operator] = {
        "BWD_D": backward_data,
        "BWD_W": backward_weights,
        "BWD_WB": backward_weights,
    }
    return by_direction.get(asked.direction, forward)


DIALECT = Dialect(channels_last=True, operator=operator, memory_factor=1.9)
