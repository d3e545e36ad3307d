"""Measure steps and primitives in rounds; disturbed rounds are discarded and repeated.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import math
import os
import statistics
import time
from typing import Any, Callable, Dict, Iterator, List, Mapping, Tuple

import torch

from corewise.measured.probes.disturbances import DisturbanceProbe, describe_disturbances
from corewise.measured.runtimes.base import Infeasible
from corewise.measured.runtimes.torch.breakdown.isolated_timing import (
    GPU_CYCLES_PER_CALL,
    IsolatedTimes,
    Timer,
    build_input_sets,
)
from corewise.measured.runtimes.torch.breakdown.operator_recorder import (
    Clock,
    Key,
    OperatorRecorder,
    RecordedOperator,
    count_page_faults,
    enter_recorded_modes,
    record_event,
)
from corewise.measured.runtimes.torch.breakdown.synthetic_inputs import InputGenerator
from corewise.measured.runtimes.torch.modules.module_job import ModuleJob
from corewise.measured.workloads.model_breakdown import Breakdown, Primitive, compute_low_quartile, compute_typical

# Calls of each isolated primitive per round.
MIN_CALLS, MAX_CALLS = 3, 30
REPORT_EVERY_S = 2.0
SEED = 77


@dataclasses.dataclass(frozen=True)
class BreakdownEffort:
    """How much is measured.

    Attributes:
        num_rounds: Rounds of steps, recorded steps and isolated primitives.
        seconds_of_steps: Per round; recorded steps take as long again.
        seconds_of_calls: Per round, for each isolated primitive.
        max_steps: Steps per round.
        max_repeats: Disturbed rounds that are repeated, in total.
        last_begin_s: No round but the first begins later.
    """

    num_rounds: int = 3
    seconds_of_steps: float = 1.0
    seconds_of_calls: float = 0.05
    max_steps: int = 20
    max_repeats: int = 2
    last_begin_s: float = math.inf


@dataclasses.dataclass(frozen=True)
class PrimitiveChecks:
    """Errors of isolated primitives against recorded calls, and why some of them are wrong or fail."""

    errors: Mapping[Key, float]
    wrong: Mapping[Key, str]


@dataclasses.dataclass
class TimingRound:
    """The measurements of one round.

    Attributes:
        faults: Page faults of each plain step.
        in_model: For each recorded step, the calls and seconds of each primitive.
        notes: Disturbances.
    """

    steps_s: List[float] = dataclasses.field(default_factory=list)
    faults: List[float] = dataclasses.field(default_factory=list)
    watched_s: List[float] = dataclasses.field(default_factory=list)
    in_model: List[Dict[Key, Tuple[int, float]]] = dataclasses.field(default_factory=list)
    alone: Dict[Key, IsolatedTimes] = dataclasses.field(default_factory=dict)
    notes: Tuple[str, ...] = ()

    def list_call_seconds(self, key: Key) -> List[float]:
        """List the mean seconds of a call of the primitive, for each recorded step that has one."""
        return [one[key][1] / one[key][0] for one in self.in_model if key in one]


class RoundMeasurements:
    """Measures rounds and builds the breakdown from them."""

    def __init__(
        self,
        job: ModuleJob,
        recorder: OperatorRecorder,
        checked: PrimitiveChecks,
        effort: BreakdownEffort,
        timer: Timer,
        clock: Clock,
        cache_bytes: int,
        on_gpu: bool,
    ) -> None:
        self._job, self._recorder, self._effort, self._timer, self._clock = (job, recorder, effort, timer, clock)
        self._cache_bytes, self._on_gpu = cache_bytes, on_gpu
        self._checked = checked
        self._rounds: List[TimingRound] = []
        self.num_repeated = 0
        self._cached_share: Dict[Key, float] = {}
        self._why_not: Dict[Key, str] = dict(checked.wrong)
        self._generator = InputGenerator(SEED)
        self._began = time.monotonic()

    @property
    def num_rounds(self) -> int:
        """Rounds that were not discarded."""
        return len(self._rounds)

    def measure_round(self, report: Callable[[str], None] = lambda _detail: None) -> None:
        """Measure plain and recorded steps by turns, isolated primitives, and plain steps again."""
        timings = TimingRound()
        cpus = sorted(os.sched_getaffinity(0))
        with DisturbanceProbe(cpus) as probe:
            self._run_steps(timings, watched=True)
            gc.collect()
            self._time_all_isolated(timings, report)
            self._run_steps(timings, watched=False)
        timings.notes = tuple(describe_disturbances(probe.metrics, len(cpus)))
        if timings.notes and self.num_repeated < self._effort.max_repeats and not self._is_late():
            self.num_repeated += 1
        else:
            self._rounds.append(timings)

    def is_done(self) -> bool:
        """Return whether all rounds are measured, or it is too late to begin another."""
        return self.num_rounds >= self._effort.num_rounds or (bool(self._rounds) and self._is_late())

    def _is_late(self) -> bool:
        return time.monotonic() - self._began > self._effort.last_begin_s

    def _time_all_isolated(self, timings: TimingRound, report: Callable[[str], None]) -> None:
        operators, reported_at = list(self._recorder.operators.items()), time.monotonic()
        for number, (key, operator) in enumerate(operators):
            if time.monotonic() - reported_at >= REPORT_EVERY_S:
                report(f"{number} of {len(operators)} primitives in isolation")
                reported_at = time.monotonic()
            with enter_recorded_modes(operator):
                self._time_primitive(timings, key, operator)

    def _run_steps(self, timings: TimingRound, watched: bool) -> None:
        """Time plain steps and, with `watched`, a recorded step after each."""
        # The first step warms caches and threads.
        self._job.step()
        until = time.perf_counter() + self._effort.seconds_of_steps
        num_steps = 0
        while num_steps < 2 or (time.perf_counter() < until and num_steps < self._effort.max_steps):
            faults_before = count_page_faults()
            timings.steps_s.append(self._time_step())
            timings.faults.append(count_page_faults() - faults_before)
            num_steps += 1
            if watched:
                self._record_step(timings)

    def _time_step(self) -> float:
        began = self._clock()
        self._job.step()
        return (self._clock() - began) / 1e9

    def _record_step(self, timings: TimingRound) -> None:
        recorder = self._recorder
        num_known = len(recorder.operators)
        last_calls = (sum(calls for calls, _ in step.values()) for step in timings.in_model[-1:])
        num_calls = max(num_known, *last_calls, 0)
        recorder.calls.clear()
        with mark_update(self._job, recorder), recorder:
            took_s = self._time_gpu_step(num_calls) if self._on_gpu else self._time_step()
        # Recording new operators takes long, so steps with new ones do not count.
        if len(recorder.operators) == num_known:
            timings.watched_s.append(took_s)
            timings.in_model.append(_sum_calls(recorder.calls))
        recorder.calls.clear()

    def _time_gpu_step(self, num_calls: int) -> float:
        """Time a step by the GPU's clock; the GPU sleeps first, so that events do not wait for launches."""
        torch.cuda._sleep(GPU_CYCLES_PER_CALL * num_calls)  # type: ignore[no-untyped-call]
        began = record_event()
        self._job.step()
        ended = record_event()
        ended.synchronize()
        return float(began.elapsed_time(ended)) / 1e3

    def _time_primitive(self, timings: TimingRound, key: Key, operator: RecordedOperator) -> None:
        if key in self._why_not:
            return
        calls_s = timings.list_call_seconds(key)
        expected_s = statistics.median(calls_s) if calls_s else 0.0
        num_calls = int(self._effort.seconds_of_calls / expected_s) if expected_s > 0 else MAX_CALLS
        num_calls = max(MIN_CALLS, min(MAX_CALLS, num_calls))
        try:
            sets = build_input_sets(operator, self._generator, self._cache_bytes)
            timings.alone[key] = self._timer(operator, sets, num_calls, self._cache_bytes, self._clock)
        except RuntimeError as problem:
            # The operator depends on preceding ones.
            self._why_not[key] = str(problem).strip().splitlines()[0]
            return
        self._cached_share[key] = sets.cached_share

    def build_breakdown(self, call_cost_s: float, device: str) -> Breakdown:
        """Build the breakdown; raise Infeasible if every recorded step had new operators."""
        if not any(each.in_model for each in self._rounds):
            raise Infeasible(
                "every step calls operators with new shapes, so no operator can be timed in the model. "
                "Let the factory return inputs of one shape"
            )
        primitives = [self._build_primitive(key, operator, call_cost_s) for key, operator in self._list_called()]
        primitives.sort(key=lambda each: -each.in_model_s)
        return Breakdown(
            step_s=compute_typical([each.steps_s for each in self._rounds]),
            watched_step_s=compute_typical([each.watched_s for each in self._rounds]),
            primitives=tuple(primitives),
            steps_s=tuple(step_s for each in self._rounds for step_s in each.steps_s),
            sums_over_steps=tuple(self._compute_sum_over_step(each, call_cost_s) for each in self._rounds),
            call_cost_s=call_cost_s,
            cache_bytes=self._cache_bytes,
            num_checked=sum(each.check_error is not None for each in primitives),
            check_error=max((each.check_error or 0.0 for each in primitives), default=0.0),
            num_threads=torch.get_num_threads(),
            device=device,
            minor_faults_per_step=statistics.median(num for each in self._rounds for num in each.faults),
            num_repeated=self.num_repeated,
            notes=tuple(note for each in self._rounds for note in each.notes),
        )

    def _list_called(self) -> List[Tuple[Key, RecordedOperator]]:
        """List the operators of recorded steps; all others belong to the first step only."""
        called = {key for each in self._rounds for one in each.in_model for key in one}
        return [(key, operator) for key, operator in self._recorder.operators.items() if key in called]

    def _compute_calls_per_step(self, key: Key) -> float:
        """Compute the mean number of calls per step."""
        return statistics.fmean(one.get(key, (0, 0.0))[0] for each in self._rounds for one in each.in_model)

    def _build_primitive(self, key: Key, operator: RecordedOperator, call_cost_s: float) -> Primitive:
        num_calls = self._compute_calls_per_step(key)
        call_in_model_s = compute_typical([each.list_call_seconds(key) for each in self._rounds])
        rounds = [each.alone[key] for each in self._rounds if key in each.alone]
        alone_s = best_s = None
        pages_s = 0.0
        if rounds:
            call_s = statistics.median(each.estimate_call_s(operator.new_pages) for each in rounds)
            best_call_s = min(second for each in rounds for second in each.on_reused_pages.times_s)
            alone_s = num_calls * max(0.0, call_s - call_cost_s)
            best_s = num_calls * max(0.0, min(call_s, best_call_s) - call_cost_s)
            pages_s = num_calls * operator.new_pages * statistics.median(each.page_s for each in rounds)
        return Primitive(
            **operator.description,
            num_calls=num_calls,
            in_model_s=num_calls * max(0.0, call_in_model_s - call_cost_s),
            alone_s=alone_s,
            alone_best_s=best_s,
            cached_share=self._cached_share.get(key, 0.0),
            new_pages=operator.new_pages,
            new_pages_s=min(pages_s, alone_s or 0.0),
            check_error=self._checked.errors.get(key),
            why_not_alone=self._why_not.get(key, ""),
            is_wrong_alone=key in self._checked.wrong,
        )

    def _compute_sum_over_step(self, timings: TimingRound, call_cost_s: float) -> float:
        total_s = 0.0
        for key, operator in self._list_called():
            if key in timings.alone:
                call_s = timings.alone[key].estimate_call_s(operator.new_pages)
            else:
                call_s = compute_typical([each.list_call_seconds(key) for each in self._rounds])
            total_s += self._compute_calls_per_step(key) * max(0.0, call_s - call_cost_s)
        return total_s / compute_low_quartile(timings.steps_s)


def _sum_calls(calls: List[Tuple[Key, Any, Any]]) -> Dict[Key, Tuple[int, float]]:
    """Sum the calls and seconds of each primitive in one step."""
    sums: Dict[Key, Tuple[int, float]] = {}
    for key, began, ended in calls:
        took_s = (ended - began) / 1e9 if isinstance(began, int) else began.elapsed_time(ended) / 1e3
        num_calls, total_s = sums.get(key, (0, 0.0))
        sums[key] = (num_calls + 1, total_s + took_s)
    return sums


@contextlib.contextmanager
def mark_update(job: ModuleJob, recorder: OperatorRecorder) -> Iterator[None]:
    """Mark the calls of the optimizer's step as the update phase."""
    optimizer = job.optimizer
    if optimizer is None:
        yield
        return
    step = optimizer.step

    def run_marked_step(*args: Any, **kwargs: Any) -> Any:
        recorder.is_updating = True
        try:
            return step(*args, **kwargs)
        finally:
            recorder.is_updating = False

    optimizer.step = run_marked_step
    try:
        yield
    finally:
        del optimizer.step
