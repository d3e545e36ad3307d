"""Bandwidths and flop rates measured on any framework's arrays, some samples of each in every step.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
import math
import time
from typing import Any, Callable, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from corewise.runtimes.base import Check, Infeasible, ReplicaJob
from corewise.workloads.kernels.base import DTYPE_BYTES

FACTOR = 3.0
CHECKED_SIZE = 192  # rows of the products that are checked, elements of the vectors too
LEAST_ARRAY_BYTES = 2**20
MEMORY_SHARE = 0.5  # of what is free, for all arrays together
NUM_ARRAYS = 3
SLOW_S = 0.4  # a first product this slow has no fast path
LARGER_BY = 0.9  # of the rate so far: a larger product at least so fast is preferred
SHORT = ("bfloat16", "int8")
NO_PATH = "no fast product here"
NOT_WORTH = 0.25  # a short format slower than this share of float32 has no fast path
ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "tf32": 2.0**-11, "bfloat16": 2.0**-8, "int8": 0.0}


@dataclasses.dataclass(frozen=True)
class Limits:
    """How large products may become and how long one sample of anything should last."""

    first_size: int
    largest_size: int
    probe_s: float  # of all samples of one thing in a step
    sample_s: float = 0.001  # of one sample at least: short ones find quiet moments, a GPU needs longer ones
    rest_s: float = 0.0  # before the first products that count: those before took the clock of a GPU down


@dataclasses.dataclass
class Probe:
    """One thing that is measured: what a call computes or moves, and how long each sample took."""

    kind: str
    dtype: str
    size: int  # bytes of each array, of products rows and columns
    amount: float  # bytes moved or flops done by one call
    call: Callable[[], Any]
    num_calls: int = 1  # in a sample
    samples_s: List[float] = dataclasses.field(default_factory=list)

    def sample(self, finish: Callable[[], None]) -> float:
        """Seconds of one call, over a sample of them."""
        finish()
        started = time.perf_counter()
        for _ in range(self.num_calls):
            self.call()
        finish()
        return (time.perf_counter() - started) / self.num_calls

    def figure(self) -> Mapping[str, Any]:
        """The best rate and the median one, in units of 10⁹ a second."""
        rates = sorted(self.amount / each_s / 1e9 for each_s in self.samples_s)
        middle = len(rates) // 2
        median = rates[middle] if len(rates) % 2 else (rates[middle - 1] + rates[middle]) / 2
        return {
            "kind": self.kind,
            "dtype": self.dtype,
            "size": self.size,
            "best": rates[-1],
            "median": median,
            "num_samples": len(rates),
        }


class CeilingsJob(ReplicaJob):
    """A step takes samples of every probe in turn; the figures are those of the steps after warm-up."""

    independent = False  # so that steps are counted, not timed: a machine that becomes busy gets as many
    samples_per_step = 1.0

    def __init__(
        self,
        arrays: Any,
        args: Mapping[str, Any],
        dtypes: Sequence[str],
        limits: Limits,
        read_back: Callable[[], Mapping[str, Any]],
        context_of: Optional[Callable[[str], Any]] = None,
    ) -> None:
        self._arrays, self._limits, self._read_back = arrays, limits, read_back
        self._dtypes = tuple(dtypes) if args["products"] else ()
        self._array_bytes = int(args["array_bytes"])
        self._precision = context_of or (lambda dtype: _Nothing())
        self.ceiling_notes: List[str] = []
        self._counts = False  # once it is warm
        self.probes: List[Probe] = [*self._streams(), *self._products(), *self._others()]

    def check(self) -> Check:
        """Every operation that will be timed, against numpy in float64; a short format may drop out."""
        errors = [self._stream_error()]
        for dtype in self._dtypes:
            error = self._product_error(dtype)
            if dtype in SHORT and not error <= 1.0:  # without VNNI, say, sums of int8 products saturate
                self._leave_out(dtype, error)
            else:
                errors.append(error)
        return Check(float(np.max(errors)), 1.0, "numpy in float64, in units of the rounding that is allowed")

    def step(self) -> None:
        """Some samples of each probe, at least one."""
        for probe in self.probes:
            if self._counts and probe.kind == "product" and not probe.samples_s:
                time.sleep(self._limits.rest_s)
            with self._precision(probe.dtype):
                until = time.perf_counter() + self._limits.probe_s
                probe.samples_s.append(probe.sample(self._arrays.finish))
                while time.perf_counter() < until:
                    probe.samples_s.append(probe.sample(self._arrays.finish))

    def facts(self) -> Mapping[str, Any]:
        for probe in self.probes:
            probe.samples_s.clear()  # of warm-up
        self._counts = True
        return self._read_back()

    def sampled_facts(self) -> Mapping[str, Any]:
        """What the steps since warm-up found."""
        found = [probe.figure() for probe in self.probes if probe.samples_s]
        usual = max((each["best"] for each in found if each["dtype"] == "float32"), default=0.0)
        worth = [each for each in found if not _has_no_path(each, usual)]
        notes = [f"{each['dtype']}: {NO_PATH}" for each in found if each not in worth]
        return {"figures": worth, "ceiling_notes": [*self.ceiling_notes, *notes]}

    def close(self) -> None:
        self.probes.clear()

    def _leave_out(self, dtype: str, error: float) -> None:
        self.probes = [one for one in self.probes if (one.kind, one.dtype) != ("product", dtype)]
        self.ceiling_notes.append(
            f"{dtype}: products are wrong here, by {error:.3g} times what rounding allows; not measured"
        )

    def _others(self) -> Sequence[Probe]:
        """Probes of this device alone."""
        return ()

    def _streams(self) -> List[Probe]:
        arrays, dtype = self._arrays, "float64"
        num_bytes = self._fitting_bytes()
        num = num_bytes // DTYPE_BYTES[dtype]
        b = arrays.normal((num,), dtype, seed=1)
        c, a = arrays.scale(0.5, b, out=arrays.zeros((num,), dtype)), arrays.zeros((num,), dtype)
        made = [
            Probe("triad", dtype, num_bytes, 3.0 * num_bytes, lambda: arrays.add_scaled(b, FACTOR, c, out=a)),
            Probe("copy", dtype, num_bytes, 2.0 * num_bytes, lambda: arrays.copy(b, out=a)),
            Probe("read", dtype, num_bytes, 2.0 * num_bytes, lambda: arrays.dot(b, c)),
        ]
        for probe in made:
            probe.sample(arrays.finish)
            self._stretch(probe, probe.sample(arrays.finish))
        return made

    def _fitting_bytes(self) -> int:
        """The bytes of each array that was asked for, or fewer where memory is short."""
        most = int(self._arrays.free_bytes() * MEMORY_SHARE / NUM_ARRAYS)
        if most >= self._array_bytes:
            return self._array_bytes
        if most < LEAST_ARRAY_BYTES:
            raise Infeasible(f"{most} bytes for each array are too few: free some memory")
        self.ceiling_notes.append(
            f"arrays of {most / 2**20:.0f} MiB, not {self._array_bytes / 2**20:.0f}, for want of memory: "
            "part of them may lie in the caches"
        )
        return most // 4096 * 4096

    def _products(self) -> List[Probe]:
        made: List[Probe] = []
        for dtype in self._dtypes:
            try:
                with self._precision(dtype):
                    made.append(self._largest_product(dtype))
            except Infeasible as problem:
                self.ceiling_notes.append(f"{dtype}: {problem}")
        return made

    def _largest_product(self, dtype: str) -> Probe:
        """The product of a size beyond which the rate grows no more, or takes too long."""
        size, best, fastest = self._limits.first_size, None, 0.0
        while True:
            probe = self._product(dtype, size)
            if probe.sample(self._arrays.finish) > SLOW_S and best is None and dtype in SHORT:
                raise Infeasible(NO_PATH)
            each_s = min(probe.sample(self._arrays.finish) for _ in range(3))
            rate = probe.amount / each_s
            if best is None or rate > LARGER_BY * fastest:  # the larger one, unless it is clearly slower
                best, fastest = probe, max(rate, fastest)
                self._stretch(best, each_s)
            if each_s >= self._limits.probe_s or not self._may_grow(dtype, 2 * size):
                return best
            size *= 2

    def _may_grow(self, dtype: str, size: int) -> bool:
        """True while the product's matrices, and those of the size before, leave memory free."""
        needed_bytes = 4 * size * size * max(4, DTYPE_BYTES.get(dtype, 4))
        free_bytes = int(self._arrays.free_bytes())
        return size <= self._limits.largest_size and needed_bytes < free_bytes * MEMORY_SHARE

    def _product(self, dtype: str, size: int) -> Probe:
        arrays, stored = self._arrays, "float32" if dtype == "tf32" else dtype
        a, b = (arrays.normal((size, size), stored, seed=seed) for seed in (2, 3))
        b = arrays.right_factor(b)
        out = arrays.matmul(a, b)
        return Probe("product", dtype, size, 2.0 * size**3, lambda: arrays.matmul(a, b, out=out))

    def _stretch(self, probe: Probe, each_s: float) -> None:
        """As many calls in a sample as make it long enough to be timed."""
        probe.num_calls = max(1, math.ceil(self._limits.sample_s / max(each_s, 1e-9)))

    def _stream_error(self) -> float:
        arrays = self._arrays
        b, c = (arrays.normal((CHECKED_SIZE,), "float64", seed=seed) for seed in (4, 5))
        host_b, host_c = np.asarray(arrays.to_host(b)), np.asarray(arrays.to_host(c))
        pairs: Tuple[Tuple[Any, Any], ...] = (
            (arrays.add_scaled(b, FACTOR, c), host_b + FACTOR * host_c),
            (arrays.copy(b), host_b),
            (arrays.dot(b, c), float(host_b @ host_c)),
        )
        allowed = CHECKED_SIZE * 8 * ROUNDOFF["float64"]
        errors = [np.abs(np.asarray(arrays.to_host(got), np.float64) - want) for got, want in pairs]
        return float(np.max([np.max(error) for error in errors])) / allowed

    def _product_error(self, dtype: str) -> float:
        arrays, stored = self._arrays, "float32" if dtype == "tf32" else dtype
        try:
            a, b = (arrays.normal((CHECKED_SIZE, CHECKED_SIZE), stored, seed=seed) for seed in (6, 7))
            with self._precision(dtype):
                got = arrays.to_host(arrays.matmul(a, arrays.right_factor(b))).astype(np.float64)
        except Infeasible:
            return 0.0  # it will not be timed either
        left, right = (np.asarray(arrays.to_host(each), np.float64) for each in (a, b))
        allowed = 8.0 * (ROUNDOFF[dtype] + CHECKED_SIZE**0.5 * min(2.0**-24, ROUNDOFF[dtype] or 2.0**-24))
        scale = np.sqrt((left * left) @ (right * right))
        error = float(np.max(np.abs(got - left @ right) / scale))
        return error / float(allowed)


def _has_no_path(figure: Mapping[str, Any], usual: float) -> bool:
    """True of a short format so slow that nothing but conversion can be behind it."""
    return figure["kind"] == "product" and figure["dtype"] in SHORT and figure["best"] < NOT_WORTH * usual


class _Nothing:
    """A context in which nothing is changed."""

    def __enter__(self) -> None: ...

    def __exit__(self, *problem: Any) -> None: ...
