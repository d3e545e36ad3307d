"""STREAM: what memory gives and takes, in four operations on long arrays.

Measured side: standard library and numpy only, Python 3.9. Rules and byte counts are those of J. D. McCalpin,
"Memory bandwidth and machine balance in current high performance computers" (1995): every array at least four
times the last-level caches together; copied and scaled arrays count two passes, added ones three, and what a
cache fetches before it is overwritten is not counted.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, Mapping, Optional, Tuple

import numpy as np

from corewise.runtimes.base import Check, Infeasible
from corewise.workloads.base import Work
from corewise.workloads.kernels.base import DTYPE_BYTES, RUNTIMES, KernelRun, Setup
from corewise.workloads.kernels.caches import last_level_cache_bytes
from corewise.workloads.kernels.host_blocks import over_blocks
from corewise.workloads.kernels.parameters import one_of, whole_number, with_defaults

# Operation: arrays passed over, and operations on each element.
OPERATIONS = {"copy": (2, 0), "scale": (2, 1), "add": (3, 1), "triad": (3, 2)}
FACTOR = 3.0
TIMES_CACHE = 4
LEAST_BYTES = 2**28  # also four times the cache of the largest GPUs
BLOCK_ELEMENTS = 2**19  # compared at a time: what the check makes of them stays in a cache
UNIT_ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24}


@dataclasses.dataclass(frozen=True)
class Stream:
    """c = a; b = s·c; c = a + b; a = b + s·c: one of them a step."""

    name: str = "stream"
    summary: str = "memory bandwidth: STREAM's copy, scale, add, triad (args.operation, args.size_bytes)"
    modes: Tuple[str, ...] = ("infer",)
    runtimes: Tuple[str, ...] = RUNTIMES
    concurrent: bool = False

    @property
    def parameters(self) -> Mapping[str, Any]:
        return {"operation": "triad", "size_bytes": default_size_bytes()}

    @property
    def axis_defaults(self) -> Mapping[str, Any]:
        return {"dtype": "float64"}

    def dtypes(self, args: Mapping[str, Any]) -> Tuple[str, ...]:
        return tuple(UNIT_ROUNDOFF)

    def work(self, mode: str, args: Mapping[str, Any], dtype: Optional[str] = None) -> Work:
        """STREAM's own counts of one pass."""
        operation, num_elements = self._point(args, dtype or "float64")
        num_passes, num_operations = OPERATIONS[operation]
        return Work(
            flops_per_sample=float(num_operations * num_elements),
            bytes_per_sample=float(num_passes * num_elements * DTYPE_BYTES[dtype or "float64"]),
            num_parameters=0,
        )

    def needed_bytes(self, args: Mapping[str, Any], dtype: str) -> int:
        operation, num_elements = self._point(args, dtype)
        return OPERATIONS[operation][0] * num_elements * DTYPE_BYTES[dtype]

    def memory_factors(self, args: Mapping[str, Any], dtype: str) -> Mapping[str, float]:
        """What is drawn is copied for jax; tensorflow's result is not written where the last one was."""
        num_arrays = OPERATIONS[self._point(args, dtype)[0]][0]
        return {"jax": (num_arrays + 1) / num_arrays, "tensorflow": (num_arrays + 2) / num_arrays}

    def largest_that_fits(self, args: Mapping[str, Any], dtype: str, free_bytes: int) -> Dict[str, Any]:
        operation, _ = self._point(args, dtype)
        num_elements = free_bytes // OPERATIONS[operation][0] // DTYPE_BYTES[dtype]
        return {**args, "size_bytes": num_elements * DTYPE_BYTES[dtype]} if num_elements else dict(args)

    def build(self, setup: Setup) -> KernelRun:
        operation, num_elements = self._point(setup.args, setup.dtype)
        if setup.num_threads > 1 and not setup.arrays.threads_elementwise:
            raise Infeasible(
                f"threads {setup.num_threads}: {setup.arrays.runtime} computes stream in one thread; "
                f"use threads 1 (with processes {setup.num_threads} to use as many cores), or another runtime"
            )
        return StreamRun(setup, operation, num_elements)

    def _point(self, args: Mapping[str, Any], dtype: str) -> Tuple[str, int]:
        """The operation and the elements of each array."""
        filled = with_defaults(self.name, self.parameters, args)
        operation = one_of(self.name, filled, "operation", tuple(OPERATIONS))
        size_bytes = whole_number(self.name, filled, "size_bytes", DTYPE_BYTES[dtype])
        return operation, size_bytes // DTYPE_BYTES[dtype]


class StreamRun:
    """The arrays of one operation; what it writes is used again in every step."""

    def __init__(self, setup: Setup, operation: str, num_elements: int) -> None:
        self._arrays, self._operation, self._dtype = setup.arrays, operation, setup.dtype
        shape = (num_elements,)
        self._inputs = [
            setup.arrays.normal(shape, setup.dtype, 2 * setup.seed + number)
            for number in range(OPERATIONS[operation][0] - 1)
        ]
        self._out = setup.arrays.zeros(shape, setup.dtype)
        self._compute = setup.arrays.compiled(self._function())

    def _function(self) -> Any:
        arrays = self._arrays
        return {
            "copy": lambda a, out: arrays.copy(a, out=out),
            "scale": lambda a, out: arrays.scale(FACTOR, a, out=out),
            "add": lambda a, b, out: arrays.add(a, b, out=out),
            "triad": lambda a, b, out: arrays.add_scaled(a, FACTOR, b, out=out),
        }[self._operation]

    def step(self) -> None:
        self._out = self._compute(*self._inputs, self._out)
        self._arrays.finish(self._out)

    def check(self) -> Check:
        """Every element computed again in float64, a block at a time."""
        self.step()
        num_elements = int(self._out.shape[0])
        starts = range(0, num_elements, BLOCK_ELEMENTS)
        errors, were_written = zip(*over_blocks(self._compared, starts, self._arrays.device))
        error = float(np.max(errors))  # NaN stays
        if num_elements > 1 and not any(were_written):
            error = float("nan")
        return Check(error, 4 * UNIT_ROUNDOFF[self._dtype], f"all {num_elements} elements in float64")

    def _compared(self, start: int) -> Tuple[float, bool]:
        """The largest error in a block, and whether anything but zeros was written there."""
        written = self._read(self._out, start)
        wanted, scale = _expected(self._operation, [self._read(each, start) for each in self._inputs])
        return float(np.max(np.abs(written - wanted) / scale)), bool(np.any(written))

    def _read(self, array: Any, start: int) -> Any:
        """A block of the array in float64."""
        block = self._arrays.to_host(array[start : start + BLOCK_ELEMENTS])
        return block.astype(np.float64, copy=False)

    def notes(self) -> Tuple[str, ...]:
        """What a reader must know who takes the figure for that of the memory."""
        size_bytes, cache_bytes = self._out.shape[0] * DTYPE_BYTES[self._dtype], last_level_cache_bytes()
        if self._arrays.device != "cpu" or cache_bytes is None or size_bytes >= TIMES_CACHE * cache_bytes:
            return ()
        num_bytes = OPERATIONS[self._operation][0] * size_bytes
        where = "fit" if num_bytes <= cache_bytes else "partly stay in"
        told = f"its arrays ({num_bytes} bytes) {where} the last-level caches ({cache_bytes})"
        return (f"{told}: this is not the bandwidth of the memory",)

    def facts(self) -> Mapping[str, Any]:
        size_bytes = self._out.shape[0] * DTYPE_BYTES[self._dtype]
        if self._arrays.device != "cpu":
            return {"array_bytes": size_bytes}  # the host's caches are not on its way
        cache_bytes = last_level_cache_bytes()
        known = {} if cache_bytes is None else {"last_level_cache_bytes": cache_bytes}
        return {
            "array_bytes": size_bytes,
            **known,
            "times_last_level_cache": None if cache_bytes is None else round(size_bytes / cache_bytes, 2),
        }

    def close(self) -> None:
        self._inputs, self._out, self._compute = [], None, None


def default_size_bytes() -> int:
    """Four times the last-level caches together, whole mebibytes, and no less than 256 MiB."""
    return max(LEAST_BYTES, TIMES_CACHE * (last_level_cache_bytes() or 0))


def _expected(operation: str, inputs: Any) -> Tuple[Any, Any]:
    """The result in float64, and the size of what was added up to it."""
    if operation == "copy":
        return inputs[0], np.maximum(np.abs(inputs[0]), np.finfo(np.float64).tiny)
    if operation == "scale":
        return FACTOR * inputs[0], np.maximum(np.abs(FACTOR * inputs[0]), np.finfo(np.float64).tiny)
    a, b = inputs
    factor = FACTOR if operation == "triad" else 1.0
    return a + factor * b, np.maximum(np.abs(a) + np.abs(factor * b), np.finfo(np.float64).tiny)


STREAM = Stream()
