"""Times of steps and primitives gathered round by round; a disturbed round is set aside and measured again.

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

from corewise.probes.processes import Disturbance, disturbances
from corewise.runtimes.base import Infeasible
from corewise.runtimes.torch.breakdown_alone import GPU_CYCLES_PER_CALL, Alone, Timer, make_sets
from corewise.runtimes.torch.breakdown_inputs import Maker
from corewise.runtimes.torch.breakdown_record import Clock, Key, Met, Watch, as_called, event, num_faults
from corewise.runtimes.torch.job import ModuleJob
from corewise.workloads.breakdown import Breakdown, Primitive, low_quartile, typical

MIN_CALLS, MAX_CALLS = 3, 30  # of each primitive alone, in each round
TELL_EVERY_S = 2.0
SEED = 77


@dataclasses.dataclass(frozen=True)
class Effort:
    """How much is measured: rounds of steps, watched steps and primitives in turn."""

    num_rounds: int = 3
    seconds_of_steps: float = 1.0  # in each round, and as many again watched
    seconds_of_calls: float = 0.05  # of each primitive alone, in each round
    max_steps: int = 20
    max_repeats: int = 2  # of rounds that were disturbed, in all
    last_begin_s: float = math.inf  # no round but the first begins later


@dataclasses.dataclass(frozen=True)
class Checked:
    """How each primitive alone compares with its call in the model, as far as that was kept."""

    errors: Mapping[Key, float]
    wrong: Mapping[Key, str]  # those that give other numbers alone, or fail, and how


@dataclasses.dataclass
class Round:
    """What one round measured."""

    steps_s: List[float] = dataclasses.field(default_factory=list)
    faults: List[float] = dataclasses.field(default_factory=list)  # of each plain step
    watched_s: List[float] = dataclasses.field(default_factory=list)
    in_model: List[Dict[Key, Tuple[int, float]]] = dataclasses.field(default_factory=list)  # calls, seconds
    alone: Dict[Key, Alone] = dataclasses.field(default_factory=dict)
    notes: Tuple[str, ...] = ()  # what disturbed it

    def calls_s(self, key: Key) -> List[float]:
        """Seconds of a call of the primitive in each watched step that has one."""
        return [one[key][1] / one[key][0] for one in self.in_model if key in one]


class Measured:
    """Times gathered round by round."""

    def __init__(
        self,
        job: ModuleJob,
        watch: Watch,
        checked: Checked,
        effort: Effort,
        timer: Timer,
        clock: Clock,
        cache_bytes: int,
        on_gpu: bool,
    ) -> None:
        self._job, self._watch, self._effort, self._timer, self._clock = job, watch, effort, timer, clock
        self._cache_bytes, self._on_gpu = cache_bytes, on_gpu
        self._checked = checked
        self._rounds: List[Round] = []
        self.num_repeated = 0
        self._cached_share: Dict[Key, float] = {}
        self._why_not: Dict[Key, str] = dict(checked.wrong)
        self._maker = Maker(SEED)
        self._began = time.monotonic()

    @property
    def num_rounds(self) -> int:
        """Those that count."""
        return len(self._rounds)

    def round(self, tell: Callable[[str], None] = lambda _words: None) -> None:
        """Steps and watched steps by turns, primitives alone, steps; a disturbed round is set aside."""
        found = Round()
        cpus = sorted(os.sched_getaffinity(0))
        with Disturbance(cpus) as probe:
            self._steps(found, watched=True)
            gc.collect()
            self._all_alone(found, tell)
            self._steps(found, watched=False)
        found.notes = tuple(disturbances(probe.metrics, len(cpus)))
        if found.notes and self.num_repeated < self._effort.max_repeats and not self._is_late():
            self.num_repeated += 1
        else:
            self._rounds.append(found)

    def is_done(self) -> bool:
        """True when all rounds are measured, or it is too late to begin another."""
        return self.num_rounds >= self._effort.num_rounds or (bool(self._rounds) and self._is_late())

    def _is_late(self) -> bool:
        return time.monotonic() - self._began > self._effort.last_begin_s

    def _all_alone(self, found: Round, tell: Callable[[str], None]) -> None:
        all_met, told_at = list(self._watch.met.items()), time.monotonic()
        for number, (key, met) in enumerate(all_met):
            if time.monotonic() - told_at >= TELL_EVERY_S:
                tell(f"{number} of {len(all_met)} primitives alone")
                told_at = time.monotonic()
            with as_called(met):
                self._run_alone(found, key, met)

    def _steps(self, found: Round, watched: bool) -> None:
        """Steps that nobody watches; between them, where asked, as many that are watched."""
        self._job.step()  # caches and threads come back
        until = time.perf_counter() + self._effort.seconds_of_steps
        num_steps = 0
        while num_steps < 2 or (time.perf_counter() < until and num_steps < self._effort.max_steps):
            faults_before = num_faults()
            found.steps_s.append(self._timed_step())
            found.faults.append(num_faults() - faults_before)
            num_steps += 1
            if watched:
                self._watched_step(found)

    def _timed_step(self) -> float:
        began = self._clock()
        self._job.step()
        return (self._clock() - began) / 1e9

    def _watched_step(self, found: Round) -> None:
        watch = self._watch
        num_met = len(watch.met)
        num_calls = max(num_met, *(sum(calls for calls, _ in one.values()) for one in found.in_model[-1:]), 0)
        watch.log.clear()
        with marked_update(self._job, watch), watch:
            took_s = self._step_after_pause(num_calls) if self._on_gpu else self._timed_step()
        if len(watch.met) == num_met:  # else operators were met for the first time, which takes long
            found.watched_s.append(took_s)
            found.in_model.append(_added_up(watch.log))
        watch.log.clear()

    def _step_after_pause(self, num_calls: int) -> float:
        """The GPU's own time: it sleeps first, so that the events of so many calls wait for no launch."""
        torch.cuda._sleep(GPU_CYCLES_PER_CALL * num_calls)  # type: ignore[no-untyped-call]
        began = event()
        self._job.step()
        ended = event()
        ended.synchronize()
        return float(began.elapsed_time(ended)) / 1e3

    def _run_alone(self, found: Round, key: Key, met: Met) -> None:
        if key in self._why_not:
            return
        calls_s = found.calls_s(key)
        expected_s = statistics.median(calls_s) if calls_s else 0.0
        num_calls = int(self._effort.seconds_of_calls / expected_s) if expected_s > 0 else MAX_CALLS
        num_calls = max(MIN_CALLS, min(MAX_CALLS, num_calls))
        try:
            sets = make_sets(met, self._maker, self._cache_bytes)
            found.alone[key] = self._timer(met, sets, num_calls, self._cache_bytes, self._clock)
        except RuntimeError as problem:  # an operator that leans on what was before it
            self._why_not[key] = str(problem).strip().splitlines()[0]
            return
        self._cached_share[key] = sets.cached_share

    def breakdown(self, call_cost_s: float, device: str) -> Breakdown:
        """All of it; raises Infeasible where no watched step was made of known operators alone."""
        if not any(each.in_model for each in self._rounds):
            raise Infeasible(
                "every step calls operators of shapes that no step before it had: there is nothing to count. "
                "Let the factory return inputs of one shape"
            )
        primitives = [self._primitive(key, met, call_cost_s) for key, met in self._met()]
        primitives.sort(key=lambda each: -each.in_model_s)
        return Breakdown(
            step_s=typical([each.steps_s for each in self._rounds]),
            watched_step_s=typical([each.watched_s for each in self._rounds]),
            primitives=tuple(primitives),
            steps_s=tuple(step_s for each in self._rounds for step_s in each.steps_s),
            sums_over_steps=tuple(self._sum_over_step(each, call_cost_s) for each in self._rounds),
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

    def _met(self) -> List[Tuple[Key, Met]]:
        """Those that a watched step has called: the rest belonged to the first step alone."""
        called = {key for each in self._rounds for one in each.in_model for key in one}
        return [(key, met) for key, met in self._watch.met.items() if key in called]

    def _num_calls(self, key: Key) -> float:
        """In a step; not whole where steps differ."""
        return statistics.fmean(one.get(key, (0, 0.0))[0] for each in self._rounds for one in each.in_model)

    def _primitive(self, key: Key, met: Met, call_cost_s: float) -> Primitive:
        num_calls = self._num_calls(key)
        call_in_model_s = typical([each.calls_s(key) for each in self._rounds])
        rounds = [each.alone[key] for each in self._rounds if key in each.alone]
        alone_s = best_s = None
        pages_s = 0.0
        if rounds:
            call_s = statistics.median(each.call_s(met.new_pages) for each in rounds)
            best_call_s = min(second for each in rounds for second in each.kept.times_s)
            alone_s = num_calls * max(0.0, call_s - call_cost_s)
            best_s = num_calls * max(0.0, min(call_s, best_call_s) - call_cost_s)
            pages_s = num_calls * met.new_pages * statistics.median(each.page_s for each in rounds)
        return Primitive(
            **met.description,
            num_calls=num_calls,
            in_model_s=num_calls * max(0.0, call_in_model_s - call_cost_s),
            alone_s=alone_s,
            alone_best_s=best_s,
            cached_share=self._cached_share.get(key, 0.0),
            new_pages=met.new_pages,
            new_pages_s=min(pages_s, alone_s or 0.0),
            check_error=self._checked.errors.get(key),
            why_not_alone=self._why_not.get(key, ""),
            is_wrong_alone=key in self._checked.wrong,
        )

    def _sum_over_step(self, found: Round, call_cost_s: float) -> float:
        total_s = 0.0
        for key, met in self._met():
            if key in found.alone:
                call_s = found.alone[key].call_s(met.new_pages)
            else:
                call_s = typical([each.calls_s(key) for each in self._rounds])
            total_s += self._num_calls(key) * max(0.0, call_s - call_cost_s)
        return total_s / low_quartile(found.steps_s)


def _added_up(log: List[Tuple[Key, Any, Any]]) -> Dict[Key, Tuple[int, float]]:
    """Calls and seconds of each primitive in one step."""
    found: Dict[Key, Tuple[int, float]] = {}
    for key, began, ended in log:
        took_s = (ended - began) / 1e9 if isinstance(began, int) else began.elapsed_time(ended) / 1e3
        calls, total_s = found.get(key, (0, 0.0))
        found[key] = (calls + 1, total_s + took_s)
    return found


@contextlib.contextmanager
def marked_update(job: ModuleJob, watch: Watch) -> Iterator[None]:
    """What the optimiser's step calls counts as the update."""
    optimizer = getattr(job, "optimizer", None)
    if optimizer is None:
        yield
        return
    step = optimizer.step

    def marked(*args: Any, **kwargs: Any) -> Any:
        watch.updating = True
        try:
            return step(*args, **kwargs)
        finally:
            watch.updating = False

    optimizer.step = marked
    try:
        yield
    finally:
        del optimizer.step
