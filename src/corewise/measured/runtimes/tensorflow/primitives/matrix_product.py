"""One matrix product in the notation of benchdnn on TensorFlow.

Measured side: standard library, numpy and tensorflow only, Python 3.9.
"""

from __future__ import annotations

import functools

from corewise.measured.parameters import TrialParameters
from corewise.measured.runtimes.arrays.matrix_product import prepare_arrays_matrix_product
from corewise.measured.runtimes.arrays.primitive_job import ArraysPrimitiveJob
from corewise.measured.runtimes.base import RankContext
from corewise.measured.runtimes.tensorflow.arrays import TensorflowArrays
from corewise.measured.runtimes.tensorflow.settings import apply_to_process, read_process_facts


def prepare_matrix_product(params: TrialParameters, context: RankContext) -> ArraysPrimitiveJob:
    """Prepare the job on the device of this rank."""
    ordinal, device = apply_to_process(params, context), params.device.value
    facts = functools.partial(read_process_facts, device, ordinal)
    return prepare_arrays_matrix_product(TensorflowArrays(device, ordinal), params, context, facts)
