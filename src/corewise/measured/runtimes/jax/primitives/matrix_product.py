"""One matrix product in the notation of benchdnn on JAX.

Measured side: standard library, numpy and jax only, Python 3.9.
"""

from __future__ import annotations

import functools

from corewise.measured.parameters import TrialParameters
from corewise.measured.runtimes.arrays.matrix_product import prepare_arrays_matrix_product
from corewise.measured.runtimes.arrays.primitive_job import ArraysPrimitiveJob
from corewise.measured.runtimes.base import RankContext
from corewise.measured.runtimes.jax.arrays import JaxArrays
from corewise.measured.runtimes.jax.settings import apply_to_process, read_process_facts


def prepare_matrix_product(params: TrialParameters, context: RankContext) -> ArraysPrimitiveJob:
    """Prepare the job on the device of this rank."""
    device = apply_to_process(params, context)
    facts = functools.partial(read_process_facts, device)
    return prepare_arrays_matrix_product(JaxArrays(device), params, context, facts)
