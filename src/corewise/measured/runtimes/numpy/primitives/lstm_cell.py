"""LSTM cells on numpy, forward only: numpy has no automatic differentiation.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, Callable, Tuple

import numpy as np

from corewise.measured.parameters import TrialParameters
from corewise.measured.runtimes.arrays.lstm_cell import RecurrentDialect, prepare_arrays_lstm_cell
from corewise.measured.runtimes.arrays.primitive_job import ArraysPrimitiveJob
from corewise.measured.runtimes.base import RankContext
from corewise.measured.runtimes.numpy.arrays import NumpyArrays
from corewise.measured.runtimes.numpy.runtime import read_kernel_facts


def prepare_lstm_cell(params: TrialParameters, context: RankContext) -> ArraysPrimitiveJob:
    """Prepare the job; products use the threads of the BLAS, the rest uses one."""
    return prepare_arrays_lstm_cell(NumpyArrays(), build_dialect(), params, context, read_kernel_facts)


def build_dialect() -> RecurrentDialect:
    """Build the operations of LSTM cells in numpy."""
    return RecurrentDialect(np.tanh, _compute_sigmoid, np.reshape, np.split, np.stack, _scan)


def _compute_sigmoid(x: Any) -> Any:
    # This form does not overflow.
    return 0.5 + 0.5 * np.tanh(0.5 * x)


def _scan(step: Callable[..., Any], carried: Any, sequence: Any) -> Tuple[Any, Any]:
    outputs = []
    for each in sequence:
        carried, output = step(carried, each)
        outputs.append(output)
    return carried, np.stack(outputs)
