"""LSTM cells on JAX: a compiled scan over the steps, and its transpose for the backward pass.

Measured side: standard library, numpy and jax only, Python 3.9.
"""

from __future__ import annotations

import functools
from typing import Any, Sequence, Tuple

import jax
import jax.numpy as jnp

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
from corewise.measured.runtimes.jax.arrays import JaxArrays
from corewise.measured.runtimes.jax.settings import apply_to_process, read_process_facts


def prepare_lstm_cell(params: TrialParameters, context: RankContext) -> ArraysPrimitiveJob:
    """Prepare the job on the device of this rank."""
    device = apply_to_process(params, context)
    facts = functools.partial(read_process_facts, device)
    return prepare_arrays_lstm_cell(JaxArrays(device), build_dialect(), params, context, facts)


def build_dialect() -> RecurrentDialect:
    """Build the operations of LSTM cells in JAX."""
    untyped: Any = jax
    return RecurrentDialect(
        jnp.tanh,
        untyped.nn.sigmoid,
        jnp.reshape,
        jnp.split,
        jnp.stack,
        untyped.lax.scan,
        Differentiation(_record, _backward),
    )


def _record(function: Function) -> Function:
    """Return a compiled function that gives the results and the backward pass with its saved arrays."""

    def run_with_vjp(*inputs: Any) -> Any:
        return jax.vjp(function, *inputs)

    compiled: Function = jax.jit(run_with_vjp)
    return compiled


def _backward(function: Function, inputs: Sequence[Any]) -> Tuple[Sequence[Any], Backward]:
    results, vjp = _record(function)(*inputs)
    compiled: Any = jax.jit(lambda vjp, gradients: vjp(gradients))
    return results, lambda gradients: compiled(vjp, tuple(gradients))
