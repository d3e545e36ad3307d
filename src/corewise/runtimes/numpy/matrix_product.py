"""One product of matrices in benchdnn's notation on numpy.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, Mapping

from corewise.runtimes.arrays_matrix_product import prepare_arrays_matrix_product
from corewise.runtimes.arrays_primitive import ArraysPrimitiveJob
from corewise.runtimes.base import RankContext
from corewise.runtimes.numpy.arrays import NumpyArrays
from corewise.runtimes.numpy.runtime import read_back


def prepare_matrix_product(params: Mapping[str, Any], context: RankContext) -> ArraysPrimitiveJob:
    """The job; its threads are the BLAS's."""
    return prepare_arrays_matrix_product(NumpyArrays(), params, context, read_back)
