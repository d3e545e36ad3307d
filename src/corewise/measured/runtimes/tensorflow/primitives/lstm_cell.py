"""LSTM cells on TensorFlow: a loop in a graph, and the graph of a gradient tape for the backward pass.

Measured side: standard library, numpy and tensorflow only, Python 3.9.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Sequence, Tuple

import tensorflow as tf  # type: ignore[import-untyped]

from corewise.measured.parameters import TrialParameters
from corewise.measured.runtimes.arrays.lstm_cell import (
    Backward,
    Differentiation,
    Function,
    RecurrentDialect,
    prepare_arrays_lstm_cell,
)
from corewise.measured.runtimes.arrays.primitive_job import ArraysPrimitiveJob
from corewise.measured.runtimes.base import RankContext
from corewise.measured.runtimes.tensorflow.arrays import TensorflowArrays
from corewise.measured.runtimes.tensorflow.settings import apply_to_process, read_process_facts


def prepare_lstm_cell(params: TrialParameters, context: RankContext) -> ArraysPrimitiveJob:
    """Prepare the job on the device of this rank."""
    ordinal, device = apply_to_process(params, context), params.device.value
    facts = functools.partial(read_process_facts, device, ordinal)
    arrays = TensorflowArrays(device, ordinal)
    return prepare_arrays_lstm_cell(arrays, build_dialect(), params, context, facts)


def build_dialect() -> RecurrentDialect:
    """Build the operations of LSTM cells in TensorFlow."""
    return RecurrentDialect(
        tf.tanh,
        tf.sigmoid,
        tf.reshape,
        tf.split,
        tf.stack,
        _scan,
        Differentiation(_record, _backward),
        # Loops store every intermediate result of a step for the backward pass.
        memory_factor=1.5,
    )


def _scan(step: Callable[..., Any], carried: Tuple[Any, ...], sequence: Any) -> Tuple[Any, Any]:
    """Run a loop in the graph, as Keras does; an unrolled long sequence would be a huge graph."""
    num_steps, dtype = sequence.shape[0], sequence.dtype
    given = tf.TensorArray(dtype, num_steps).unstack(sequence)

    def run_iteration(number: Any, carried: Any, outputs: Any) -> Any:
        carried, output = step(carried, given.read(number))
        return number + 1, carried, outputs.write(number, output)

    _, carried, outputs = tf.while_loop(
        lambda number, *_: number < num_steps,
        run_iteration,
        (tf.constant(0), carried, tf.TensorArray(dtype, num_steps)),
        maximum_iterations=num_steps,
    )
    return carried, outputs.stack()


def _record(function: Function) -> Function:
    """Return a function that gives the results and the tape for the backward pass."""
    return functools.partial(_run_on_tape, tf.function(function, autograph=False), False)


def _backward(function: Function, inputs: Sequence[Any]) -> Tuple[Sequence[Any], Backward]:
    results, tape = _run_on_tape(tf.function(function, autograph=False), True, *inputs)
    return results, lambda gradients: tape.gradient(results, list(inputs), output_gradients=list(gradients))


def _run_on_tape(graph: Function, is_persistent: bool, *inputs: Any) -> Tuple[Any, ...]:
    with tf.GradientTape(persistent=is_persistent) as tape:
        tape.watch(inputs)
        results = graph(*inputs)
    return results, tape
