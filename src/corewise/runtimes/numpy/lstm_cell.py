"""LSTM cells on numpy, forward alone: it has no operator for them and no differentiation.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, Callable, Mapping, Tuple

import numpy as np

from corewise.runtimes.arrays_lstm_cell import RecurrentDialect, prepare_arrays_lstm_cell
from corewise.runtimes.arrays_primitive import ArraysPrimitiveJob
from corewise.runtimes.base import RankContext
from corewise.runtimes.numpy.arrays import NumpyArrays
from corewise.runtimes.numpy.runtime import kernel_facts


def prepare_lstm_cell(params: Mapping[str, Any], context: RankContext) -> ArraysPrimitiveJob:
    """The job; products take the BLAS's threads, the rest one."""
    return prepare_arrays_lstm_cell(NumpyArrays(), dialect(), params, context, kernel_facts)


def dialect() -> RecurrentDialect:
    """Cells in numpy's words."""
    return RecurrentDialect(np.tanh, _sigmoid, np.reshape, np.split, np.stack, _scan)


def _sigmoid(x: Any) -> Any:
    return 0.5 + 0.5 * np.tanh(0.5 * x)  # without overflow


def _scan(step: Callable[..., Any], carried: Any, sequence: Any) -> Tuple[Any, Any]:
    made = []
    for each in sequence:
        carried, output = step(carried, each)
        made.append(output)
    return carried, np.stack(made)
