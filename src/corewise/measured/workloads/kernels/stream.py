"""The STREAM workload: memory bandwidth of four operations on long arrays.

Measured side: standard library and numpy only, Python 3.9. Rules and byte counts are those of J. D. McCalpin,
"Memory bandwidth and machine balance in current high performance computers" (1995): every array has at least
four times the size of all last-level caches. Copy and scale count two passes, add and triad three.
Write-allocate traffic is not counted.
"""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from pathlib import Path
from typing import Any, Dict, Mapping, Optional, Tuple

import numpy as np

from corewise.measured.cache_sizes import CPU_FOLDER, read_caches, sum_last_level_bytes
from corewise.measured.runtimes.base import Check, Infeasible
from corewise.measured.workloads.base import Work
from corewise.measured.workloads.kernels.host_blocks import map_blocks
from corewise.measured.workloads.kernels.kernel import DTYPE_BYTES, RUNTIMES, Kernel, KernelRun, KernelSetup
from corewise.measured.workloads.kernels.kernel_parameters import fill_defaults, read_choice, read_whole_number

# By operation: the number of arrays read or written, and flops per element.
OPERATIONS = {"copy": (2, 0), "scale": (2, 1), "add": (3, 1), "triad": (3, 2)}
FACTOR = 3.0
TIMES_CACHE = 4
# Also four times the cache of the largest GPUs.
MIN_BYTES = 2**28
# Elements compared at a time, chosen so that the check's temporaries stay in the cache.
BLOCK_ELEMENTS = 2**19
UNIT_ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24}


@dataclasses.dataclass(frozen=True)
class Stream(Kernel):
    """One step runs one of c = a, b = s·c, c = a + b and a = b + s·c."""

    name: str = "stream"
    summary: str = "memory bandwidth: STREAM's copy, scale, add, triad (args.operation, args.size_bytes)"
    modes: Tuple[str, ...] = ("infer",)
    runtimes: Tuple[str, ...] = RUNTIMES
    concurrent: bool = False

    @property
    def parameters(self) -> Mapping[str, Any]:
        return {"operation": "triad", "size_bytes": compute_default_size_bytes()}

    @property
    def axis_defaults(self) -> Mapping[str, Any]:
        return {"dtype": "float64"}

    def list_dtypes(self, args: Mapping[str, Any]) -> Tuple[str, ...]:
        return tuple(UNIT_ROUNDOFF)

    def count_work(self, mode: str, args: Mapping[str, Any], dtype: Optional[str] = None) -> Work:
        """Return the flops and bytes of one pass, as STREAM counts them."""
        operation, num_elements = self._read_parameters(args, dtype or "float64")
        num_passes, num_operations = OPERATIONS[operation]
        return Work(
            flops_per_sample=float(num_operations * num_elements),
            bytes_per_sample=float(num_passes * num_elements * DTYPE_BYTES[dtype or "float64"]),
            num_parameters=0,
        )

    def estimate_memory_bytes(self, args: Mapping[str, Any], dtype: str) -> int:
        operation, num_elements = self._read_parameters(args, dtype)
        return OPERATIONS[operation][0] * num_elements * DTYPE_BYTES[dtype]

    def estimate_memory_factors(self, args: Mapping[str, Any], dtype: str) -> Mapping[str, float]:
        """Return factors: jax copies random numbers, and tensorflow allocates a new result in each step."""
        num_arrays = OPERATIONS[self._read_parameters(args, dtype)[0]][0]
        return {"jax": (num_arrays + 1) / num_arrays, "tensorflow": (num_arrays + 2) / num_arrays}

    def fit_to_memory(self, args: Mapping[str, Any], dtype: str, free_bytes: int) -> Dict[str, Any]:
        operation, _ = self._read_parameters(args, dtype)
        num_elements = free_bytes // OPERATIONS[operation][0] // DTYPE_BYTES[dtype]
        return {**args, "size_bytes": num_elements * DTYPE_BYTES[dtype]} if num_elements else dict(args)

    def build(self, setup: KernelSetup) -> KernelRun:
        operation, num_elements = self._read_parameters(setup.args, setup.dtype)
        if setup.num_threads > 1 and not setup.arrays.threads_elementwise:
            raise Infeasible(
                f"threads {setup.num_threads}: {setup.arrays.runtime} runs stream in one thread; "
                f"use threads 1 (with processes {setup.num_threads} to use as many cores), or another runtime"
            )
        return StreamRun(setup, operation, num_elements)

    def _read_parameters(self, args: Mapping[str, Any], dtype: str) -> Tuple[str, int]:
        """Return the operation and the number of elements of each array."""
        filled = fill_defaults(self.name, self.parameters, args)
        operation = read_choice(self.name, filled, "operation", tuple(OPERATIONS))
        size_bytes = read_whole_number(self.name, filled, "size_bytes", DTYPE_BYTES[dtype])
        return operation, size_bytes // DTYPE_BYTES[dtype]


class StreamRun(KernelRun):
    """The arrays of one operation; every step reuses the output array."""

    def __init__(self, setup: KernelSetup, operation: str, num_elements: int) -> None:
        self._arrays, self._operation, self._dtype = setup.arrays, operation, setup.dtype
        shape = (num_elements,)
        self._inputs = [
            setup.arrays.draw_normal(shape, setup.dtype, 2 * setup.seed + number)
            for number in range(OPERATIONS[operation][0] - 1)
        ]
        self._out = setup.arrays.create_zeros(shape, setup.dtype)
        self._compute = setup.arrays.compile(self._build_function())

    def _build_function(self) -> Any:
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
        """Compute every element again in float64, a block at a time."""
        self.step()
        num_elements = int(self._out.shape[0])
        starts = range(0, num_elements, BLOCK_ELEMENTS)
        errors, were_written = zip(*map_blocks(self._compare_block, starts, self._arrays.device))
        # np.max propagates NaN.
        error = float(np.max(errors))
        if num_elements > 1 and not any(were_written):
            error = float("nan")
        return Check(error, 4 * UNIT_ROUNDOFF[self._dtype], f"all {num_elements} elements in float64")

    def _compare_block(self, start: int) -> Tuple[float, bool]:
        """Return the largest error in a block, and whether any nonzero value was written there."""
        written = self._read(self._out, start)
        expected, scale = _compute_expected(self._operation, [self._read(each, start) for each in self._inputs])
        return float(np.max(np.abs(written - expected) / scale)), bool(np.any(written))

    def _read(self, array: Any, start: int) -> Any:
        """Return a block of the array in float64."""
        block = self._arrays.to_host(array[start : start + BLOCK_ELEMENTS])
        return block.astype(np.float64, copy=False)

    def collect_notes(self) -> Tuple[str, ...]:
        """Return a warning if the arrays are too small to measure the memory."""
        size_bytes, cache_bytes = self._out.shape[0] * DTYPE_BYTES[self._dtype], read_last_level_cache_bytes()
        if self._arrays.device != "cpu" or cache_bytes is None or size_bytes >= TIMES_CACHE * cache_bytes:
            return ()
        num_bytes = OPERATIONS[self._operation][0] * size_bytes
        where = "fit" if num_bytes <= cache_bytes else "partly stay in"
        size_text = f"its arrays ({num_bytes} bytes) {where} the last-level caches ({cache_bytes})"
        return (f"{size_text}: this is not memory bandwidth",)

    def read_facts(self) -> Mapping[str, Any]:
        size_bytes = self._out.shape[0] * DTYPE_BYTES[self._dtype]
        # The host's caches do not matter for a GPU.
        if self._arrays.device != "cpu":
            return {"array_bytes": size_bytes}
        cache_bytes = read_last_level_cache_bytes()
        known = {} if cache_bytes is None else {"last_level_cache_bytes": cache_bytes}
        return {
            "array_bytes": size_bytes,
            **known,
            "times_last_level_cache": None if cache_bytes is None else round(size_bytes / cache_bytes, 2),
        }

    def close(self) -> None:
        self._inputs, self._out, self._compute = [], None, None


@lru_cache(maxsize=8)
def read_last_level_cache_bytes(folder: Path = CPU_FOLDER) -> Optional[int]:
    """Return the total size of the last-level caches of all CPUs; None if the kernel does not report it."""
    cpus = sorted(int(each.name[3:]) for each in folder.glob("cpu[0-9]*"))
    return sum_last_level_bytes(read_caches(cpus, folder)) or None


def compute_default_size_bytes() -> int:
    """Return four times the size of all last-level caches, but at least 256 MiB."""
    return max(MIN_BYTES, TIMES_CACHE * (read_last_level_cache_bytes() or 0))


def _compute_expected(operation: str, inputs: Any) -> Tuple[Any, Any]:
    """Return the result in float64, and the magnitude of its summands."""
    if operation == "copy":
        return inputs[0], np.maximum(np.abs(inputs[0]), np.finfo(np.float64).tiny)
    if operation == "scale":
        return FACTOR * inputs[0], np.maximum(np.abs(FACTOR * inputs[0]), np.finfo(np.float64).tiny)
    a, b = inputs
    factor = FACTOR if operation == "triad" else 1.0
    return a + factor * b, np.maximum(np.abs(a) + np.abs(factor * b), np.finfo(np.float64).tiny)


STREAM = Stream()
