"""One matrix product in the notation of benchdnn on numpy.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

from corewise.measured.parameters import TrialParameters
from corewise.measured.runtimes.arrays.matrix_product import prepare_arrays_matrix_product
from corewise.measured.runtimes.arrays.primitive_job import ArraysPrimitiveJob
from corewise.measured.runtimes.base import RankContext
from corewise.measured.runtimes.numpy.arrays import NumpyArrays
from corewise.measured.runtimes.numpy.runtime import read_back


def prepare_matrix_product(params: TrialParameters, context: RankContext) -> ArraysPrimitiveJob:
    """Prepare the job; its threads are those of the BLAS."""
    return prepare_arrays_matrix_product(NumpyArrays(), params, context, read_back)
