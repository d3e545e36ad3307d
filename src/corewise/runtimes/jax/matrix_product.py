"""One product of matrices in benchdnn's notation on JAX.

Measured side: standard library, numpy and jax only, Python 3.9.
"""

from __future__ import annotations

import functools
from typing import Any, Mapping

from corewise.runtimes.arrays_matrix_product import prepare_arrays_matrix_product
from corewise.runtimes.arrays_primitive import ArraysPrimitiveJob
from corewise.runtimes.base import RankContext
from corewise.runtimes.jax.arrays import JaxArrays
from corewise.runtimes.jax.settings import apply_to_process, process_facts


def prepare_matrix_product(params: Mapping[str, Any], context: RankContext) -> ArraysPrimitiveJob:
    """The job on this rank's device."""
    device = apply_to_process(params, context)
    facts = functools.partial(process_facts, device)
    return prepare_arrays_matrix_product(JaxArrays(device), params, context, facts)
