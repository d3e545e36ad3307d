"""Measure bandwidths and flop rates on the arrays of any framework, some samples of each per step.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from typing import Any, Callable, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from corewise.measured.runtimes.base import Check, Infeasible, ReplicaJob
from corewise.measured.workloads.kernels.kernel import DTYPE_BYTES

TRIAD_FACTOR = 3.0
# Rows of the checked products and elements of the checked vectors.
CHECKED_SIZE = 192
MIN_ARRAY_BYTES = 2**20
# All arrays together may take this share of the free memory.
MEMORY_SHARE = 0.5
NUM_ARRAYS = 3
# If the first product of a short format takes longer than this, the machine has no fast path for it.
MAX_FIRST_PRODUCT_S = 0.4
# A larger product is preferred if it reaches this share of the best rate so far.
MIN_LARGER_RATE = 0.9
SHORT_FORMATS = ("bfloat16", "int8")
NO_FAST_PATH = "no fast product here"
# A short format below this share of the float32 rate has no fast path.
MIN_SHORT_FORMAT_RATE = 0.25
ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "tf32": 2.0**-11, "bfloat16": 2.0**-8, "int8": 0.0}


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits on the size of products and on the duration of samples.

    Attributes:
        probe_s: time for all samples of one probe in a step.
        sample_s: least duration of one sample. Short samples find quiet moments; a GPU needs longer ones.
        rest_s: pause before the first timed products, in which the clock of a GPU recovers.
    """

    first_size: int
    max_size: int
    probe_s: float
    sample_s: float = 0.001
    rest_s: float = 0.0


@dataclasses.dataclass
class Probe:
    """One measured operation and the duration of each sample.

    Attributes:
        size: bytes of each array; for products the number of rows and columns.
        amount: bytes moved or flops done by one call.
        num_calls: calls in one sample.
    """

    operation: str
    dtype: str
    size: int
    amount: float
    call: Callable[[], Any]
    num_calls: int = 1
    samples_s: List[float] = dataclasses.field(default_factory=list)

    def sample(self, finish: Callable[[], None]) -> float:
        """Time one sample and return the seconds per call."""
        finish()
        started = time.perf_counter()
        for _ in range(self.num_calls):
            self.call()
        finish()
        return (time.perf_counter() - started) / self.num_calls

    def summarize(self) -> Mapping[str, Any]:
        """Return the best and the median rate, in units of 10⁹ per second."""
        rates = sorted(self.amount / each_s / 1e9 for each_s in self.samples_s)
        middle = len(rates) // 2
        median = rates[middle] if len(rates) % 2 else (rates[middle - 1] + rates[middle]) / 2
        return {
            "kind": self.operation,
            "dtype": self.dtype,
            "size": self.size,
            "best": rates[-1],
            "median": median,
            "num_samples": len(rates),
        }


class CeilingsJob(ReplicaJob):
    """A job whose step samples every probe; the figures are those of the steps after warm-up."""

    # A fixed number of steps, not a time window: a machine that becomes busy gets as many samples.
    independent = False
    samples_per_step = 1.0

    def __init__(
        self,
        arrays: Any,
        args: Mapping[str, Any],
        dtypes: Sequence[str],
        limits: Limits,
        read_back: Callable[[], Mapping[str, Any]],
        use_precision: Optional[Callable[[str], Any]] = None,
    ) -> None:
        self._arrays, self._limits, self._read_back = arrays, limits, read_back
        self._dtypes = tuple(dtypes) if args["products"] else ()
        self._array_bytes = int(args["array_bytes"])
        self._use_precision = use_precision or (lambda dtype: contextlib.nullcontext())
        self.ceiling_notes: List[str] = []
        self._is_warm = False
        self.probes: List[Probe] = [
            *self._build_stream_probes(),
            *self._build_product_probes(),
            *self._build_device_probes(),
        ]

    def check(self) -> Check:
        """Compare every timed operation with numpy in float64; drop a short format that is wrong."""
        errors = [self._compute_stream_error()]
        for dtype in self._dtypes:
            error = self._compute_product_error(dtype)
            # Without VNNI, for example, sums of int8 products saturate.
            if dtype in SHORT_FORMATS and not error <= 1.0:
                self._drop_dtype(dtype, error)
            else:
                errors.append(error)
        return Check(float(np.max(errors)), 1.0, "numpy in float64, in units of the allowed rounding error")

    def step(self) -> None:
        """Take at least one sample of each probe."""
        for probe in self.probes:
            if self._is_warm and probe.operation == "product" and not probe.samples_s:
                time.sleep(self._limits.rest_s)
            with self._use_precision(probe.dtype):
                until = time.perf_counter() + self._limits.probe_s
                probe.samples_s.append(probe.sample(self._arrays.finish))
                while time.perf_counter() < until:
                    probe.samples_s.append(probe.sample(self._arrays.finish))

    def read_facts(self) -> Mapping[str, Any]:
        # Discard the samples of the warm-up.
        for probe in self.probes:
            probe.samples_s.clear()
        self._is_warm = True
        return self._read_back()

    def collect_sampled_facts(self) -> Mapping[str, Any]:
        """Return the figures of the steps since warm-up."""
        figures = [probe.summarize() for probe in self.probes if probe.samples_s]
        float32_rate = max((each["best"] for each in figures if each["dtype"] == "float32"), default=0.0)
        fast = [each for each in figures if not _has_no_fast_path(each, float32_rate)]
        notes = [f"{each['dtype']}: {NO_FAST_PATH}" for each in figures if each not in fast]
        return {"figures": fast, "ceiling_notes": [*self.ceiling_notes, *notes]}

    def close(self) -> None:
        self.probes.clear()

    def _drop_dtype(self, dtype: str, error: float) -> None:
        self.probes = [one for one in self.probes if (one.operation, one.dtype) != ("product", dtype)]
        self.ceiling_notes.append(
            f"{dtype}: not measured, because products are wrong here: the error is {error:.3g} times the "
            "allowed rounding error"
        )

    def _build_device_probes(self) -> Sequence[Probe]:
        """Return probes that only this device has."""
        return ()

    def _build_stream_probes(self) -> List[Probe]:
        arrays, dtype = self._arrays, "float64"
        num_bytes = self._fit_array_bytes()
        num = num_bytes // DTYPE_BYTES[dtype]
        b = arrays.draw_normal((num,), dtype, seed=1)
        c, a = (arrays.scale(0.5, b, out=arrays.create_zeros((num,), dtype)), arrays.create_zeros((num,), dtype))
        probes = [
            Probe("triad", dtype, num_bytes, 3.0 * num_bytes, lambda: arrays.add_scaled(b, TRIAD_FACTOR, c, out=a)),
            Probe("copy", dtype, num_bytes, 2.0 * num_bytes, lambda: arrays.copy(b, out=a)),
            Probe("read", dtype, num_bytes, 2.0 * num_bytes, lambda: arrays.compute_dot(b, c)),
        ]
        for probe in probes:
            probe.sample(arrays.finish)
            self._set_num_calls(probe, probe.sample(arrays.finish))
        return probes

    def _fit_array_bytes(self) -> int:
        """Return the requested bytes of each array, or fewer if memory is short."""
        max_bytes = int(self._arrays.free_bytes() * MEMORY_SHARE / NUM_ARRAYS)
        if max_bytes >= self._array_bytes:
            return self._array_bytes
        if max_bytes < MIN_ARRAY_BYTES:
            raise Infeasible(f"{max_bytes} bytes for each array are too few: free some memory")
        self.ceiling_notes.append(
            f"arrays of {max_bytes / 2**20:.0f} MiB, not {self._array_bytes / 2**20:.0f}, because memory is "
            "short: part of them may fit in the caches"
        )
        return max_bytes // 4096 * 4096

    def _build_product_probes(self) -> List[Probe]:
        probes: List[Probe] = []
        for dtype in self._dtypes:
            try:
                with self._use_precision(dtype):
                    probes.append(self._find_largest_product(dtype))
            except Infeasible as problem:
                self.ceiling_notes.append(f"{dtype}: {problem}")
        return probes

    def _find_largest_product(self, dtype: str) -> Probe:
        """Find the product beyond whose size the rate stops growing, or which takes too long."""
        size, best, fastest = self._limits.first_size, None, 0.0
        while True:
            probe = self._build_product(dtype, size)
            if probe.sample(self._arrays.finish) > MAX_FIRST_PRODUCT_S and best is None and dtype in SHORT_FORMATS:
                raise Infeasible(NO_FAST_PATH)
            each_s = min(probe.sample(self._arrays.finish) for _ in range(3))
            rate = probe.amount / each_s
            # Prefer the larger product unless it is clearly slower.
            if best is None or rate > MIN_LARGER_RATE * fastest:
                best, fastest = probe, max(rate, fastest)
                self._set_num_calls(best, each_s)
            if each_s >= self._limits.probe_s or not self._can_grow(dtype, 2 * size):
                return best
            size *= 2

    def _can_grow(self, dtype: str, size: int) -> bool:
        """Return whether the matrices of this size and of the previous one fit in memory."""
        needed_bytes = 4 * size * size * max(4, DTYPE_BYTES.get(dtype, 4))
        free_bytes = int(self._arrays.free_bytes())
        return size <= self._limits.max_size and needed_bytes < free_bytes * MEMORY_SHARE

    def _build_product(self, dtype: str, size: int) -> Probe:
        arrays, stored = self._arrays, "float32" if dtype == "tf32" else dtype
        a, b = (arrays.draw_normal((size, size), stored, seed=seed) for seed in (2, 3))
        b = arrays.prepare_right_factor(b)
        out = arrays.matmul(a, b)
        return Probe("product", dtype, size, 2.0 * size**3, lambda: arrays.matmul(a, b, out=out))

    def _set_num_calls(self, probe: Probe, each_s: float) -> None:
        """Set the number of calls that makes a sample long enough to be timed."""
        probe.num_calls = max(1, math.ceil(self._limits.sample_s / max(each_s, 1e-9)))

    def _compute_stream_error(self) -> float:
        arrays = self._arrays
        b, c = (arrays.draw_normal((CHECKED_SIZE,), "float64", seed=seed) for seed in (4, 5))
        host_b, host_c = np.asarray(arrays.to_host(b)), np.asarray(arrays.to_host(c))
        pairs: Tuple[Tuple[Any, Any], ...] = (
            (arrays.add_scaled(b, TRIAD_FACTOR, c), host_b + TRIAD_FACTOR * host_c),
            (arrays.copy(b), host_b),
            (arrays.compute_dot(b, c), float(host_b @ host_c)),
        )
        allowed = CHECKED_SIZE * 8 * ROUNDOFF["float64"]
        errors = [np.abs(np.asarray(arrays.to_host(got), np.float64) - want) for got, want in pairs]
        return float(np.max([np.max(error) for error in errors])) / allowed

    def _compute_product_error(self, dtype: str) -> float:
        arrays, stored = self._arrays, "float32" if dtype == "tf32" else dtype
        try:
            a, b = (arrays.draw_normal((CHECKED_SIZE, CHECKED_SIZE), stored, seed=seed) for seed in (6, 7))
            with self._use_precision(dtype):
                got = arrays.to_host(arrays.matmul(a, arrays.prepare_right_factor(b))).astype(np.float64)
        except Infeasible:
            # The product will not be timed either.
            return 0.0
        left, right = (np.asarray(arrays.to_host(each), np.float64) for each in (a, b))
        allowed = 8.0 * (ROUNDOFF[dtype] + CHECKED_SIZE**0.5 * min(2.0**-24, ROUNDOFF[dtype] or 2.0**-24))
        scale = np.sqrt((left * left) @ (right * right))
        error = float(np.max(np.abs(got - left @ right) / scale))
        return error / float(allowed)


def _has_no_fast_path(figure: Mapping[str, Any], float32_rate: float) -> bool:
    """Return whether a short format is so slow that it must be computed by conversion."""
    is_short = figure["kind"] == "product" and figure["dtype"] in SHORT_FORMATS
    return is_short and figure["best"] < MIN_SHORT_FORMAT_RATE * float32_rate
