"""Time a primitive in isolation, on random inputs, with the cache in the state that the model would leave.

Calls cycle over several sets of inputs that together exceed the last-level cache, so that inputs come from
memory. Inputs that the model used just before are read again before each call. The cores' private caches are
cleared before each call, as the model's other operators do, which also evicts the operator's code. Results
are held until they have left the cache, unless the model reuses their memory immediately. If the model's call
touches new pages, which the kernel has to clear, the primitive is timed on reused and on new pages, and the
time is interpolated to the model's number of new pages.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional, Tuple

import torch
from torch import Tensor

from corewise.measured.runtimes.torch.breakdown.operator_recorder import (
    Clock,
    RecordedOperator,
    count_page_faults,
    record_event,
)
from corewise.measured.runtimes.torch.breakdown.synthetic_inputs import InputGenerator, copy_tensors, list_descriptions
from corewise.measured.runtimes.torch.breakdown.work_classes import count_distinct_bytes, list_tensors
from corewise.measured.runtimes.torch.cache_size import read_core_cache_bytes
from corewise.measured.runtimes.torch.modules.module_job import release_free_memory
from corewise.measured.workloads.model_breakdown import compute_low_quartile

MAX_SETS, MIN_SETS = 64, 2
TIMES_THE_CACHE = 2
# Fewer new pages per call have no measurable cost.
MIN_NEW_PAGES = 8
# Longer than it takes to record and launch an operator.
GPU_CYCLES_PER_CALL = 300_000
TOLERANCES = {torch.float64: 1e-11, torch.float32: 1e-4, torch.bfloat16: 0.02, torch.float16: 0.005}


@dataclasses.dataclass(frozen=True)
class InputSets:
    """Arguments of successive calls, and for each call the flat buffers to read again before it."""

    calls: List[Tuple[Any, Any]]
    cached: List[List[Tensor]]
    cached_share: float


def build_input_sets(operator: RecordedOperator, generator: InputGenerator, cache_bytes: int) -> InputSets:
    """Build as many sets of inputs as exceed the cache."""
    tensors = list_descriptions((operator.args, operator.kwargs))
    by_index = {each.buffer_index: each for each in tensors}
    set_bytes = sum(each.num_bytes for each in by_index.values())
    num_sets = max(MIN_SETS, min(MAX_SETS, TIMES_THE_CACHE * cache_bytes // max(1, set_bytes) + 1))
    often = [2 * count > operator.num_tracked for count in operator.input_cache_hits] or [False] * len(tensors)
    indices = {
        each.buffer_index for each, is_cached in zip(tensors, often) if is_cached and each.dtype.is_floating_point
    }
    calls, cached = [], []
    for _ in range(num_sets):
        made: Dict[int, Tensor] = {}
        calls.append(generator.generate((operator.args, operator.kwargs), made))
        cached.append([made[index] for index in sorted(indices)])
    cached_bytes = sum(by_index[index].num_bytes for index in indices)
    return InputSets(calls, cached, cached_bytes / set_bytes if set_bytes else 0.0)


@dataclasses.dataclass(frozen=True)
class CallTimes:
    """Seconds and new memory pages of successive calls."""

    times_s: List[float]
    pages: List[int]

    @property
    def call_s(self) -> float:
        return compute_low_quartile(self.times_s)

    @property
    def call_pages(self) -> float:
        return statistics.median(self.pages) if self.pages else 0.0


@dataclasses.dataclass(frozen=True)
class IsolatedTimes:
    """Times of an isolated primitive on reused pages and, if the model touches any, on new pages."""

    on_reused_pages: CallTimes
    on_new_pages: Optional[CallTimes] = None

    @property
    def page_s(self) -> float:
        """The cost of a new page; 0 if both runs touch the same number of pages."""
        if self.on_new_pages is None or self.on_new_pages.call_pages - self.on_reused_pages.call_pages < MIN_NEW_PAGES:
            return 0.0
        more_s = self.on_new_pages.call_s - self.on_reused_pages.call_s
        return max(0.0, more_s / (self.on_new_pages.call_pages - self.on_reused_pages.call_pages))

    def estimate_call_s(self, new_pages: float) -> float:
        """Estimate the time of a call with this many new pages, at most as many as were measured."""
        limit = self.on_new_pages.call_pages if self.on_new_pages is not None else 0.0
        added_pages = max(0.0, min(new_pages, limit) - self.on_reused_pages.call_pages)
        return self.on_reused_pages.call_s + self.page_s * added_pages


def time_isolated(
    operator: RecordedOperator, sets: InputSets, num_calls: int, cache_bytes: int, clock: Clock
) -> IsolatedTimes:
    """Time the primitive on the CPU."""
    others = torch.ones(TIMES_THE_CACHE * torch.get_num_threads() * read_core_cache_bytes() // 4)

    def clear_core_caches() -> None:
        others.mul_(1)

    def release_and_clear() -> None:
        release_free_memory()
        clear_core_caches()

    reused = time_isolated_calls(operator, sets, num_calls, cache_bytes, clock, clear_core_caches)
    if operator.new_pages < MIN_NEW_PAGES:
        return IsolatedTimes(reused)
    return IsolatedTimes(reused, time_isolated_calls(operator, sets, num_calls, cache_bytes, clock, release_and_clear))


def time_isolated_calls(
    operator: RecordedOperator,
    sets: InputSets,
    num_calls: int,
    cache_bytes: int,
    clock: Clock,
    before: Callable[[], Any] = lambda: None,
) -> CallTimes:
    """Time calls on the CPU; `before` runs before each of them."""
    func = operator.func
    held: Deque[Any] = deque()
    held_bytes = 0
    holds_results = 2 * operator.output_cache_hits <= operator.num_tracked
    times_s: List[float] = []
    pages: List[int] = []
    # The first call does not count.
    for number in range(-1, num_calls):
        args, kwargs = sets.calls[number % len(sets.calls)]
        before()
        for each in sets.cached[number % len(sets.calls)]:
            each.mul_(1)
        pages_before = count_page_faults()
        began = clock()
        made = func(*args, **kwargs)
        ended = clock()
        if number >= 0:
            pages.append(count_page_faults() - pages_before)
            times_s.append((ended - began) / 1e9)
        if holds_results:
            held.append(made)
            held_bytes += _sum_bytes(made)
            while len(held) > 1 and held_bytes > cache_bytes:
                held_bytes -= _sum_bytes(held.popleft())
        del made
    return CallTimes(times_s, pages)


def time_isolated_on_gpu(
    operator: RecordedOperator, sets: InputSets, num_calls: int, cache_bytes: int, clock: Clock
) -> IsolatedTimes:
    """Time each call between two events; the GPU is busy first, which hides the launches."""
    torch.cuda._sleep(num_calls * GPU_CYCLES_PER_CALL)  # type: ignore[no-untyped-call]
    marks = []
    for number in range(-1, num_calls):
        args, kwargs = sets.calls[number % len(sets.calls)]
        for each in sets.cached[number % len(sets.calls)]:
            each.mul_(1)
        began = record_event()
        operator.func(*args, **kwargs)
        ended = record_event()
        if number >= 0:
            marks.append((began, ended))
    torch.cuda.synchronize()
    return IsolatedTimes(CallTimes([began.elapsed_time(ended) / 1e3 for began, ended in marks], []))


def _sum_bytes(made: Any) -> int:
    return sum(count_distinct_bytes(each) for each in list_tensors(made))


def compare_with_model(operator: RecordedOperator) -> float:
    """Compare the isolated primitive with the model's call on the same input, and return the error."""
    sample = operator.sample
    if sample is None:
        raise ValueError("no call of the model was recorded")
    args, kwargs = copy_tensors((sample.args, sample.kwargs))
    made = list_tensors(operator.func(*args, **kwargs))
    if len(made) != len(sample.outputs):
        return float("inf")
    return max((_compute_error(x, y) for x, y in zip(made, sample.outputs)), default=0.0)


def _compute_error(got: Tensor, expected: Tensor) -> float:
    """Compute the largest difference over the largest finite value; other values have to be equal."""
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return float("inf")
    if not got.is_floating_point():
        # Tensors of uint8 are scratch memory.
        return 0.0 if got.dtype == torch.uint8 or torch.equal(got, expected) else float("inf")
    if got.numel() == 0:
        return 0.0
    x, y = got.detach().double(), expected.double()
    finite = torch.isfinite(y)
    # Masks are minus infinity, and rows that are completely masked are NaN.
    if not bool(finite.all()):
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


def find_tolerance(operator: RecordedOperator) -> float:
    """Find the tolerance for the dtypes of the results."""
    outputs = operator.sample.outputs if operator.sample is not None else ()
    return max((TOLERANCES.get(each.dtype, 1e-4) for each in outputs), default=1e-4)


Timer = Callable[[RecordedOperator, InputSets, int, int, Clock], IsolatedTimes]
