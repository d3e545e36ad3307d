"""Measure ceilings with numpy: memory streams in slices, one thread each, and BLAS products.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Optional

import numpy as np

from corewise.measured.parameters import TrialParameters
from corewise.measured.runtimes.base import RankContext
from corewise.measured.runtimes.ceiling_job import CeilingsJob, Limits
from corewise.measured.runtimes.numpy.arrays import NumpyArrays
from corewise.measured.runtimes.numpy.runtime import read_back
from corewise.measured.workloads.ceiling_workload import CEILINGS

DTYPES = ("float32", "float64")
FIRST_SIZE, LARGEST_SIZE = 512, 8192


class SlicedArrays(NumpyArrays):
    """NumPy arrays whose passes over memory run in several threads, which is possible without the GIL."""

    def __init__(self, num_threads: int) -> None:
        super().__init__()
        self._workers = [NumpyArrays() for _ in range(num_threads)]
        self._pool = ThreadPoolExecutor(num_threads)

    def create_zeros(self, shape: Any, dtype: str) -> Any:
        array = self.create_empty(shape, dtype)
        self._run_slices(lambda worker, start, end: array[start:end].fill(0), len(array))
        return array

    def copy(self, a: Any, out: Optional[Any] = None) -> Any:
        result = np.empty_like(a) if out is None else out
        self._run_slices(lambda worker, start, end: worker.copy(a[start:end], out=result[start:end]), len(a))
        return result

    def add_scaled(self, a: Any, factor: Any, b: Any, out: Optional[Any] = None) -> Any:
        result = np.empty_like(a) if out is None else out

        def run(worker: NumpyArrays, start: int, end: int) -> None:
            worker.add_scaled(a[start:end], factor, b[start:end], out=result[start:end])

        self._run_slices(run, len(a))
        return result

    def _run_slices(self, run: Callable[[NumpyArrays, int, int], Any], length: int) -> None:
        num = len(self._workers)
        ends = [length * k // num for k in range(num + 1)]
        parts = [
            self._pool.submit(run, worker, start, end) for worker, start, end in zip(self._workers, ends, ends[1:])
        ]
        for part in parts:
            part.result()


def prepare_ceilings(params: TrialParameters, context: RankContext) -> CeilingsJob:
    """Prepare the job; numpy has no fast products in short formats."""
    args = {**CEILINGS.parameters, **params.arguments}
    limits = Limits(FIRST_SIZE, LARGEST_SIZE, float(args["probe_s"]))
    return CeilingsJob(SlicedArrays(params.threads), args, DTYPES, limits, read_back)
