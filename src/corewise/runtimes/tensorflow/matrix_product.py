"""One product of matrices in benchdnn's notation on TensorFlow.

Measured side: standard library, numpy and tensorflow only, Python 3.9.
"""

from __future__ import annotations

import functools
from typing import Any, Mapping

from corewise.runtimes.arrays_matrix_product import prepare_arrays_matrix_product
from corewise.runtimes.arrays_primitive import ArraysPrimitiveJob
from corewise.runtimes.base import RankContext
from corewise.runtimes.tensorflow.arrays import TensorflowArrays
from corewise.runtimes.tensorflow.settings import apply_to_process, process_facts


def prepare_matrix_product(params: Mapping[str, Any], context: RankContext) -> ArraysPrimitiveJob:
    """The job on this rank's device."""
    ordinal, device = apply_to_process(params, context), str(params["device"])
    facts = functools.partial(process_facts, device, ordinal)
    return prepare_arrays_matrix_product(TensorflowArrays(device, ordinal), params, context, facts)
