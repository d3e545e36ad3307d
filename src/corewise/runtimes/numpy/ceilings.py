"""Ceilings through numpy: streams in slices, one thread each; products by the BLAS.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Mapping, Optional

import numpy as np

from corewise.runtimes.base import RankContext
from corewise.runtimes.ceilings import CeilingsJob, Limits
from corewise.runtimes.numpy.arrays import NumpyArrays
from corewise.runtimes.numpy.runtime import read_back
from corewise.workloads.base import workload_args
from corewise.workloads.ceilings import CEILINGS

DTYPES = ("float32", "float64")
FIRST_SIZE, LARGEST_SIZE = 512, 8192


class SlicedArrays(NumpyArrays):
    """NumPy whose passes over memory are shared out among threads; it lets go of the interpreter in them."""

    def __init__(self, num_threads: int) -> None:
        super().__init__()
        self._workers = [NumpyArrays() for _ in range(num_threads)]
        self._pool = ThreadPoolExecutor(num_threads)

    def zeros(self, shape: Any, dtype: str) -> Any:
        array = self.empty(shape, dtype)
        self._each(lambda worker, start, end: array[start:end].fill(0), len(array))
        return array

    def copy(self, a: Any, out: Optional[Any] = None) -> Any:
        result = np.empty_like(a) if out is None else out
        self._each(lambda worker, start, end: worker.copy(a[start:end], out=result[start:end]), len(a))
        return result

    def add_scaled(self, a: Any, factor: Any, b: Any, out: Optional[Any] = None) -> Any:
        result = np.empty_like(a) if out is None else out

        def run(worker: NumpyArrays, start: int, end: int) -> None:
            worker.add_scaled(a[start:end], factor, b[start:end], out=result[start:end])

        self._each(run, len(a))
        return result

    def _each(self, run: Callable[[NumpyArrays, int, int], Any], length: int) -> None:
        num = len(self._workers)
        ends = [length * k // num for k in range(num + 1)]
        parts = [
            self._pool.submit(run, worker, start, end)
            for worker, start, end in zip(self._workers, ends, ends[1:])
        ]
        for part in parts:
            part.result()


def prepare_ceilings(params: Mapping[str, Any], context: RankContext) -> CeilingsJob:
    """The job; numpy has no short formats worth measuring."""
    args = {**CEILINGS.parameters, **workload_args(params)}
    limits = Limits(FIRST_SIZE, LARGEST_SIZE, float(args["probe_s"]))
    return CeilingsJob(SlicedArrays(int(params["threads"])), args, DTYPES, limits, read_back)
