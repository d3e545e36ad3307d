"""LSTM cells on JAX: a compiled scan over the steps, and its transposition for the way back.

Measured side: standard library, numpy and jax only, Python 3.9.
"""

from __future__ import annotations

import functools
from typing import Any, Mapping, Sequence, Tuple

import jax
import jax.numpy as jnp

from corewise.runtimes.arrays_lstm_cell import (
    Backward,
    Differentiation,
    Function,
    RecurrentDialect,
    prepare_arrays_lstm_cell,
)
from corewise.runtimes.arrays_primitive import ArraysPrimitiveJob
from corewise.runtimes.base import RankContext
from corewise.runtimes.jax.arrays import JaxArrays
from corewise.runtimes.jax.settings import apply_to_process, process_facts


def prepare_lstm_cell(params: Mapping[str, Any], context: RankContext) -> ArraysPrimitiveJob:
    """The job on this rank's device."""
    device = apply_to_process(params, context)
    facts = functools.partial(process_facts, device)
    return prepare_arrays_lstm_cell(JaxArrays(device), dialect(), params, context, facts)


def dialect() -> RecurrentDialect:
    """Cells in JAX's words."""
    untyped: Any = jax
    return RecurrentDialect(
        jnp.tanh,
        untyped.nn.sigmoid,
        jnp.reshape,
        jnp.split,
        jnp.stack,
        untyped.lax.scan,
        Differentiation(_recorded, _backward),
    )


def _recorded(function: Function) -> Function:
    """The results and the function that leads back, with the arrays it keeps."""

    def with_way_back(*inputs: Any) -> Any:
        return jax.vjp(function, *inputs)

    compiled: Function = jax.jit(with_way_back)
    return compiled


def _backward(function: Function, inputs: Sequence[Any]) -> Tuple[Sequence[Any], Backward]:
    results, way_back = _recorded(function)(*inputs)
    compiled: Any = jax.jit(lambda way_back, gradients: way_back(gradients))
    return results, lambda gradients: compiled(way_back, tuple(gradients))
