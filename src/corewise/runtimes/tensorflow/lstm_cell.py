"""LSTM cells on TensorFlow: a loop in a graph, and the graph that a tape makes of it for the way back.

Measured side: standard library, numpy and tensorflow only, Python 3.9.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Mapping, Sequence, Tuple

import tensorflow as tf  # type: ignore[import-untyped]

from corewise.runtimes.arrays_lstm_cell import (
    Backward,
    Differentiation,
    Function,
    RecurrentDialect,
    prepare_arrays_lstm_cell,
)
from corewise.runtimes.arrays_primitive import ArraysPrimitiveJob
from corewise.runtimes.base import RankContext
from corewise.runtimes.tensorflow.arrays import TensorflowArrays
from corewise.runtimes.tensorflow.settings import apply_to_process, process_facts


def prepare_lstm_cell(params: Mapping[str, Any], context: RankContext) -> ArraysPrimitiveJob:
    """The job on this rank's device."""
    ordinal, device = apply_to_process(params, context), str(params["device"])
    facts = functools.partial(process_facts, device, ordinal)
    arrays = TensorflowArrays(device, ordinal)
    return prepare_arrays_lstm_cell(arrays, dialect(), params, context, facts)


def dialect() -> RecurrentDialect:
    """Cells in TensorFlow's words."""
    return RecurrentDialect(
        tf.tanh,
        tf.sigmoid,
        tf.reshape,
        tf.split,
        tf.stack,
        _scan,
        Differentiation(_recorded, _backward),
        memory_factor=1.5,  # its loops keep every intermediate of a step for the way back
    )


def _scan(step: Callable[..., Any], carried: Tuple[Any, ...], sequence: Any) -> Tuple[Any, Any]:
    """A loop of the graph, as Keras has it; written out, a long sequence would be a huge graph."""
    num_steps, dtype = sequence.shape[0], sequence.dtype
    given = tf.TensorArray(dtype, num_steps).unstack(sequence)

    def body(number: Any, carried: Any, made: Any) -> Any:
        carried, output = step(carried, given.read(number))
        return number + 1, carried, made.write(number, output)

    _, carried, made = tf.while_loop(
        lambda number, *_: number < num_steps,
        body,
        (tf.constant(0), carried, tf.TensorArray(dtype, num_steps)),
        maximum_iterations=num_steps,
    )
    return carried, made.stack()


def _recorded(function: Function) -> Function:
    """The results and the tape that holds what the way back needs."""
    return functools.partial(_taped, tf.function(function, autograph=False), False)


def _backward(function: Function, inputs: Sequence[Any]) -> Tuple[Sequence[Any], Backward]:
    results, tape = _taped(tf.function(function, autograph=False), True, *inputs)
    return results, lambda gradients: tape.gradient(results, list(inputs), output_gradients=list(gradients))


def _taped(graph: Function, is_used_again: bool, *inputs: Any) -> Tuple[Any, ...]:
    with tf.GradientTape(persistent=is_used_again) as tape:
        tape.watch(inputs)
        results = graph(*inputs)
    return results, tape
