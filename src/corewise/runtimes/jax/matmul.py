"""The product of matrices on JAX.

Measured side: standard library, numpy and jax only, Python 3.9.
"""

from __future__ import annotations

import functools
from typing import Any, Mapping

from corewise.runtimes.arrays_matmul import MatmulJob, prepare_product
from corewise.runtimes.base import RankContext
from corewise.runtimes.jax.arrays import JaxArrays
from corewise.runtimes.jax.settings import apply_to_process, process_facts


def prepare_matmul(params: Mapping[str, Any], context: RankContext) -> MatmulJob:
    """The job on this rank's device."""
    device = apply_to_process(params, context)
    return prepare_product(JaxArrays(device), params, context, functools.partial(process_facts, device))
