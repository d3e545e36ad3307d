"""A primitive run alone, on new random inputs, with the cache as the model would have left it.

Every call gets the next of several sets of inputs, together larger than the last-level cache, so that all of
them come from memory. Those that in the model had been used a moment before are read again just before the
call. The cores' own caches are swept before each call, as a model's other operators do, so that even the
operator's code comes from further away. Results are kept until they have left the cache, unless the model
reuses their memory at once. Where the model's call meets new pages of memory, which the kernel has to clear,
the primitive is timed on memory that the allocator kept and on memory given back, and counts for as many new
pages as that call met.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import ctypes
import dataclasses
import math
import statistics
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional, Tuple

import torch
from torch import Tensor

from corewise.runtimes.torch.breakdown_inputs import Maker, copied, wanted_in
from corewise.runtimes.torch.breakdown_record import Clock, Met, event, num_faults
from corewise.runtimes.torch.breakdown_work import span_bytes, tensors_in
from corewise.runtimes.torch.cache_size import core_cache_bytes
from corewise.workloads.breakdown import low_quartile

MAX_SETS, MIN_SETS = 64, 2
TIMES_THE_CACHE = 2
MIN_NEW_PAGES = 8  # of a call, from which on they are worth a look
GPU_CYCLES_PER_CALL = 300_000  # longer than it takes to watch and launch an operator
TOLERANCES = {torch.float64: 1e-11, torch.float32: 1e-4, torch.bfloat16: 0.02, torch.float16: 0.005}


@dataclasses.dataclass(frozen=True)
class Sets:
    """Inputs for call after call, and which of them are read again before it."""

    calls: List[Tuple[Any, Any]]
    cached: List[List[Tensor]]  # flat memory, for each of the calls
    cached_share: float


def make_sets(met: Met, maker: Maker, cache_bytes: int) -> Sets:
    """As many sets as it takes to exceed the cache."""
    tensors = wanted_in((met.args, met.kwargs))
    by_place = {each.place: each for each in tensors}
    set_bytes = sum(each.num_bytes for each in by_place.values())
    num_sets = max(MIN_SETS, min(MAX_SETS, TIMES_THE_CACHE * cache_bytes // max(1, set_bytes) + 1))
    often = [2 * count > met.num_tracked for count in met.inputs_cached] or [False] * len(tensors)
    places = {
        each.place for each, is_cached in zip(tensors, often) if is_cached and each.dtype.is_floating_point
    }
    calls, cached = [], []
    for _ in range(num_sets):
        made: Dict[int, Tensor] = {}
        calls.append(maker.make((met.args, met.kwargs), made))
        cached.append([made[place] for place in sorted(places)])
    cached_bytes = sum(by_place[place].num_bytes for place in places)
    return Sets(calls, cached, cached_bytes / set_bytes if set_bytes else 0.0)


@dataclasses.dataclass(frozen=True)
class Timed:
    """Calls one after another: seconds of each, and the pages of memory that were new to the process."""

    times_s: List[float]
    pages: List[int]

    @property
    def call_s(self) -> float:
        return low_quartile(self.times_s)

    @property
    def call_pages(self) -> float:
        return statistics.median(self.pages) if self.pages else 0.0


@dataclasses.dataclass(frozen=True)
class Alone:
    """A primitive alone on memory that the allocator kept and, if the model meets any, on new pages."""

    kept: Timed
    fresh: Optional[Timed] = None

    @property
    def page_s(self) -> float:
        """What a new page costs; 0 where the two do not differ in pages."""
        if self.fresh is None or self.fresh.call_pages - self.kept.call_pages < MIN_NEW_PAGES:
            return 0.0
        more_s = self.fresh.call_s - self.kept.call_s
        return max(0.0, more_s / (self.fresh.call_pages - self.kept.call_pages))

    def call_s(self, new_pages: float) -> float:
        """A call that meets so many new pages, as the model's does; never more than were tried."""
        most = self.fresh.call_pages if self.fresh is not None else 0.0
        return self.kept.call_s + self.page_s * max(0.0, min(new_pages, most) - self.kept.call_pages)


def run_alone(met: Met, sets: Sets, num_calls: int, cache_bytes: int, clock: Clock) -> Alone:
    """The primitive timed on the CPU."""
    others = torch.ones(TIMES_THE_CACHE * torch.get_num_threads() * core_cache_bytes() // 4)

    def sweep() -> None:
        others.mul_(1)

    def give_back_and_sweep() -> None:
        give_memory_back()
        sweep()

    kept = time_alone(met, sets, num_calls, cache_bytes, clock, sweep)
    if met.new_pages < MIN_NEW_PAGES:
        return Alone(kept)
    return Alone(kept, time_alone(met, sets, num_calls, cache_bytes, clock, give_back_and_sweep))


def time_alone(
    met: Met,
    sets: Sets,
    num_calls: int,
    cache_bytes: int,
    clock: Clock,
    before: Callable[[], Any] = lambda: None,
) -> Timed:
    """Each call on the CPU; `before` runs before each of them."""
    func = met.func
    kept: Deque[Any] = deque()
    kept_bytes = 0
    keeps = 2 * met.outputs_cached <= met.num_tracked
    times_s: List[float] = []
    pages: List[int] = []
    for number in range(-1, num_calls):  # the first one does not count
        args, kwargs = sets.calls[number % len(sets.calls)]
        before()
        for each in sets.cached[number % len(sets.calls)]:
            each.mul_(1)
        pages_before = num_faults()
        began = clock()
        made = func(*args, **kwargs)
        ended = clock()
        if number >= 0:
            pages.append(num_faults() - pages_before)
            times_s.append((ended - began) / 1e9)
        if keeps:
            kept.append(made)
            kept_bytes += _own_bytes(made)
            while len(kept) > 1 and kept_bytes > cache_bytes:
                kept_bytes -= _own_bytes(kept.popleft())
        del made
    return Timed(times_s, pages)


def run_alone_on_gpu(met: Met, sets: Sets, num_calls: int, cache_bytes: int, clock: Clock) -> Alone:
    """Each call between two events; the GPU is kept busy first, which hides launching."""
    torch.cuda._sleep(num_calls * GPU_CYCLES_PER_CALL)  # type: ignore[no-untyped-call]
    marks = []
    for number in range(-1, num_calls):
        args, kwargs = sets.calls[number % len(sets.calls)]
        for each in sets.cached[number % len(sets.calls)]:
            each.mul_(1)
        began = event()
        met.func(*args, **kwargs)
        ended = event()
        if number >= 0:
            marks.append((began, ended))
    torch.cuda.synchronize()
    return Alone(Timed([began.elapsed_time(ended) / 1e3 for began, ended in marks], []))


def give_memory_back() -> None:
    """Return what is free to the system, so that what is allocated next lies on new pages."""
    if _TRIM is not None:
        _TRIM(0)


_TRIM = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's


def _own_bytes(made: Any) -> int:
    return sum(span_bytes(each) for each in tensors_in(made))


def compare(met: Met) -> float:
    """The error of the primitive alone against the model's call on the same input, over what is allowed."""
    sample = met.sample
    if sample is None:
        raise ValueError("no call of the model was kept")
    args, kwargs = copied((sample.args, sample.kwargs))
    made = tensors_in(met.func(*args, **kwargs))
    if len(made) != len(sample.outputs):
        return float("inf")
    return max((_error(x, y) for x, y in zip(made, sample.outputs)), default=0.0)


def _error(got: Tensor, expected: Tensor) -> float:
    """The largest difference over the largest value, of finite numbers; all others have to be the same."""
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return float("inf")
    if not got.is_floating_point():
        return (
            0.0 if got.dtype == torch.uint8 or torch.equal(got, expected) else float("inf")
        )  # uint8: scratch
    if got.numel() == 0:
        return 0.0
    x, y = got.detach().double(), expected.double()
    finite = torch.isfinite(y)
    if not bool(finite.all()):  # masks are minus infinity, and what they leave no choice is no number
        if not torch.allclose(x[~finite], y[~finite], equal_nan=True):
            return float("inf")
        x, y = x[finite], y[finite]
        if y.numel() == 0:
            return 0.0
    scale = float(y.abs().max())
    difference = float((x - y).abs().max())
    if not math.isfinite(difference):
        return float("inf")
    return difference / scale if scale > 0 else difference


def tolerance_of(met: Met) -> float:
    """What the number format of its results allows."""
    outputs = met.sample.outputs if met.sample is not None else ()
    return max((TOLERANCES.get(each.dtype, 1e-4) for each in outputs), default=1e-4)


Timer = Callable[[Met, Sets, int, int, Clock], Alone]
