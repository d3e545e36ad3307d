"""The matrix product on JAX.

Measured side: standard library, numpy and jax only, Python 3.9.
"""

from __future__ import annotations

import functools

from corewise.measured.parameters import TrialParameters
from corewise.measured.runtimes.arrays.matmul import ArraysMatmulJob, prepare_arrays_matmul
from corewise.measured.runtimes.base import RankContext
from corewise.measured.runtimes.jax.arrays import JaxArrays
from corewise.measured.runtimes.jax.settings import apply_to_process, read_process_facts


def prepare_matmul(params: TrialParameters, context: RankContext) -> ArraysMatmulJob:
    """Prepare the job on the device of this rank."""
    device = apply_to_process(params, context)
    return prepare_arrays_matmul(JaxArrays(device), params, context, functools.partial(read_process_facts, device))
