"""The matrix product on TensorFlow.

Measured side: standard library, numpy and tensorflow only, Python 3.9.
"""

from __future__ import annotations

import functools

from corewise.measured.parameters import TrialParameters
from corewise.measured.runtimes.arrays.matmul import ArraysMatmulJob, prepare_arrays_matmul
from corewise.measured.runtimes.base import RankContext
from corewise.measured.runtimes.tensorflow.arrays import TensorflowArrays
from corewise.measured.runtimes.tensorflow.settings import apply_to_process, read_process_facts


def prepare_matmul(params: TrialParameters, context: RankContext) -> ArraysMatmulJob:
    """Prepare the job on the device of this rank."""
    ordinal, device = apply_to_process(params, context), params.device.value
    facts = functools.partial(read_process_facts, device, ordinal)
    return prepare_arrays_matmul(TensorflowArrays(device, ordinal), params, context, facts)
