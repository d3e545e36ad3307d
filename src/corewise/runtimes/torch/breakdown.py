"""A job's step taken apart: each operator timed in the model, then each distinct one alone, in turn.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import statistics
import time
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple

import torch

from corewise.runtimes.base import Infeasible
from corewise.runtimes.steps import StepJob
from corewise.runtimes.torch.breakdown_alone import (
    GPU_CYCLES_PER_CALL,
    Alone,
    Timer,
    compare,
    make_sets,
    run_alone,
    run_alone_on_gpu,
    tolerance_of,
)
from corewise.runtimes.torch.breakdown_inputs import Maker
from corewise.runtimes.torch.breakdown_record import Clock, Key, Met, Watch, as_called, event, num_faults
from corewise.runtimes.torch.cache_size import last_level_cache_bytes
from corewise.runtimes.torch.job import ModuleJob
from corewise.workloads.breakdown import Breakdown, Primitive

SAMPLE_BYTES = 2**29  # kept of the model's own calls, to compare with
MIN_CALLS, MAX_CALLS = 3, 30  # of each primitive alone, in each round
NUM_CALIBRATED = 2000
NUM_TRACKED = 2
SEED = 77


@dataclasses.dataclass(frozen=True)
class Effort:
    """How much is measured: rounds of steps, watched steps and primitives in turn."""

    num_rounds: int = 3
    seconds_of_steps: float = 1.0  # in each round, and as many again watched
    seconds_of_calls: float = 0.05  # of each primitive alone, in each round
    max_steps: int = 20


class WrongNumbers(Exception):
    """A primitive alone does not compute what the model's call did."""


def refuse(job: Any, params: Mapping[str, Any]) -> None:
    """Raises Infeasible, with the reason, for what has no operators to take apart."""
    if isinstance(job, StepJob):
        raise Infeasible(
            "the factory returns a step, not a module: there is nothing to take apart. "
            "Return (module, inputs) from it, as docs/own-workload.md says"
        )
    if not isinstance(job, ModuleJob):
        raise Infeasible(f"{params['workload']} is no model: it is a primitive or kernel already")
    if params["execution"] != "eager":
        raise Infeasible(
            f"execution {params['execution']}: fused kernels are no operators that could be run alone; "
            "primitives are taken from eager execution"
        )
    if params["memory_format"] == "blocked" or params["dtype"] == "int8":
        what = "memory_format blocked" if params["memory_format"] == "blocked" else "dtype int8"
        raise Infeasible(f"{what}: its tensors are opaque, so that no inputs like them can be drawn")
    if int(params["processes"]) > 1:
        raise Infeasible("processes: a model is taken apart in one process; leave processes at 1")


def break_down(
    job: ModuleJob,
    params: Mapping[str, Any],
    effort: Effort = Effort(),  # noqa: B008  (frozen)
    tell: Callable[[str], None] = lambda _phase: None,
    clock: Clock = time.perf_counter_ns,
) -> Breakdown:
    """The step and its primitives, measured in turn; the job has been checked and warmed up before."""
    refuse(job, params)
    on_gpu = params["device"] == "cuda"
    cache_bytes = last_level_cache_bytes(on_gpu)
    watch = Watch(event if on_gpu else clock, cache_bytes, SAMPLE_BYTES)
    tell("recording its operators")
    with _marked_update(job, watch), watch:
        job.step()
    tell("checking the primitives")
    errors = _check(watch)
    job.step()  # the memory is again as steps leave it
    with _marked_update(job, watch), watch, watch.tracking():
        for _ in range(NUM_TRACKED):
            job.step()
    timer = run_alone_on_gpu if on_gpu else run_alone
    measured = _Measured(job, watch, effort, timer, clock, cache_bytes, on_gpu)
    for number in range(effort.num_rounds):
        tell(f"measuring, round {number + 1} of {effort.num_rounds}")
        measured.round()
    measured.require_watched()
    call_cost_s = 0.0 if on_gpu else _call_cost_s(clock)
    return measured.breakdown(errors, call_cost_s, str(params["device"]))


class _Measured:
    """Times gathered round by round."""

    def __init__(
        self,
        job: ModuleJob,
        watch: Watch,
        effort: Effort,
        timer: Timer,
        clock: Clock,
        cache_bytes: int,
        on_gpu: bool,
    ) -> None:
        self._job, self._watch, self._effort, self._timer, self._clock = job, watch, effort, timer, clock
        self._cache_bytes, self._on_gpu = cache_bytes, on_gpu
        self._steps_s: List[List[float]] = []
        self._faults: List[float] = []  # of each plain step
        self._watched_s: List[float] = []
        self._in_model_s: List[Dict[Key, Tuple[int, float]]] = []  # of each watched step: calls, seconds
        self._alone: Dict[Key, List[Alone]] = {}
        self._cached_share: Dict[Key, float] = {}
        self._why_not: Dict[Key, str] = {}
        self._maker = Maker(SEED)

    def round(self) -> None:
        """Steps and watched steps by turns, primitives alone, steps."""
        steps_s = self._steps(watched=True)
        gc.collect()
        for key, met in list(self._watch.met.items()):
            with as_called(met):
                self._run_alone(key, met)
        self._steps_s.append([*steps_s, *self._steps(watched=False)])

    def require_watched(self) -> None:
        """Raises Infeasible where no watched step was made of known operators alone."""
        if not self._in_model_s:
            raise Infeasible(
                "every step calls operators of shapes that no step before it had: there is nothing to count. "
                "Let the factory return inputs of one shape"
            )

    def _steps(self, watched: bool) -> List[float]:
        """Seconds of steps that nobody watches; between them, where asked, as many that are watched."""
        times_s: List[float] = []
        self._job.step()  # caches and threads come back
        until = time.perf_counter() + self._effort.seconds_of_steps
        while len(times_s) < 2 or (time.perf_counter() < until and len(times_s) < self._effort.max_steps):
            faults_before = num_faults()
            times_s.append(self._timed_step())
            self._faults.append(num_faults() - faults_before)
            if watched:
                self._watched_step()
        return times_s

    def _timed_step(self) -> float:
        began = self._clock()
        self._job.step()
        return (self._clock() - began) / 1e9

    def _watched_step(self) -> None:
        watch = self._watch
        num_met = len(watch.met)
        num_calls = max(
            num_met, *(sum(calls for calls, _ in one.values()) for one in self._in_model_s[-1:]), 0
        )
        watch.log.clear()
        if self._on_gpu:  # so that the events do not wait for launches
            torch.cuda._sleep(GPU_CYCLES_PER_CALL * num_calls)  # type: ignore[no-untyped-call]
        with _marked_update(self._job, watch), watch:
            took_s = self._timed_step()
        if len(watch.met) == num_met:  # else operators were met for the first time, which takes long
            self._watched_s.append(took_s)
            self._in_model_s.append(_added_up(watch.log))
        watch.log.clear()

    def _run_alone(self, key: Key, met: Met) -> None:
        if key in self._why_not:
            return
        expected_s = _mean_call_s(self._in_model_s, key)
        num_calls = int(self._effort.seconds_of_calls / expected_s) if expected_s > 0 else MAX_CALLS
        num_calls = max(MIN_CALLS, min(MAX_CALLS, num_calls))
        try:
            sets = make_sets(met, self._maker, self._cache_bytes)
            alone = self._timer(met, sets, num_calls, self._cache_bytes, self._clock)
        except RuntimeError as problem:  # an operator that leans on what was before it
            self._why_not[key] = str(problem).strip().splitlines()[0]
            return
        self._cached_share[key] = sets.cached_share
        self._alone.setdefault(key, []).append(alone)

    def breakdown(self, errors: Mapping[Key, float], call_cost_s: float, device: str) -> Breakdown:
        primitives = [self._primitive(key, met, errors.get(key), call_cost_s) for key, met in self._met()]
        primitives.sort(key=lambda each: -each.in_model_s)
        steps_s = [each for one in self._steps_s for each in one]
        return Breakdown(
            step_s=statistics.median(steps_s),
            watched_step_s=statistics.median(self._watched_s),
            primitives=tuple(primitives),
            steps_s=tuple(steps_s),
            sums_over_steps=tuple(
                self._sum_over_step(number, call_cost_s) for number in range(len(self._steps_s))
            ),
            call_cost_s=call_cost_s,
            cache_bytes=self._cache_bytes,
            num_checked=sum(each.check_error is not None for each in primitives),
            check_error=max((each.check_error or 0.0 for each in primitives), default=0.0),
            num_threads=torch.get_num_threads(),
            device=device,
            minor_faults_per_step=statistics.median(self._faults),
        )

    def _met(self) -> List[Tuple[Key, Met]]:
        """Those that a watched step has called: the rest belonged to the first step alone."""
        called = {key for one in self._in_model_s for key in one}
        return [(key, met) for key, met in self._watch.met.items() if key in called]

    def _primitive(self, key: Key, met: Met, error: Optional[float], call_cost_s: float) -> Primitive:
        num_calls = statistics.fmean(one.get(key, (0, 0.0))[0] for one in self._in_model_s)
        in_model_s = statistics.median(one.get(key, (0, 0.0))[1] for one in self._in_model_s)
        rounds = self._alone.get(key, [])
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
            in_model_s=max(0.0, in_model_s - num_calls * call_cost_s),
            alone_s=alone_s,
            alone_best_s=best_s,
            cached_share=self._cached_share.get(key, 0.0),
            new_pages=met.new_pages,
            new_pages_s=min(pages_s, alone_s or 0.0),
            check_error=error,
            why_not_alone=self._why_not.get(key, ""),
        )

    def _sum_over_step(self, number: int, call_cost_s: float) -> float:
        total_s = 0.0
        for key, met in self._met():
            num_calls = statistics.fmean(one.get(key, (0, 0.0))[0] for one in self._in_model_s)
            rounds = self._alone.get(key, [])
            call_s = (
                rounds[number].call_s(met.new_pages)
                if number < len(rounds)
                else _mean_call_s(self._in_model_s, key)
            )
            total_s += num_calls * max(0.0, call_s - call_cost_s)
        return total_s / statistics.median(self._steps_s[number])


def _added_up(log: List[Tuple[Key, Any, Any]]) -> Dict[Key, Tuple[int, float]]:
    """Calls and seconds of each primitive in one step."""
    found: Dict[Key, Tuple[int, float]] = {}
    for key, began, ended in log:
        took_s = (ended - began) / 1e9 if isinstance(began, int) else began.elapsed_time(ended) / 1e3
        calls, total_s = found.get(key, (0, 0.0))
        found[key] = (calls + 1, total_s + took_s)
    return found


def _mean_call_s(steps: List[Dict[Key, Tuple[int, float]]], key: Key) -> float:
    each = [one[key][1] / one[key][0] for one in steps if key in one]
    return statistics.median(each) if each else 0.0


def _check(watch: Watch) -> Dict[Key, float]:
    """The error of each primitive whose call in the model was kept; raises WrongNumbers."""
    errors: Dict[Key, float] = {}
    for key, met in watch.met.items():
        if met.sample is None:
            continue
        with as_called(met):
            error, allowed = compare(met), tolerance_of(met)
        if not error <= allowed:
            told = f"{met.description['operator']} {met.description['shapes']}"
            raise WrongNumbers(
                f"{told} alone differs from its call in the model by {error:.2g}; {allowed:.2g} is allowed"
            )
        errors[key] = error
        met.sample = None
    return errors


@contextlib.contextmanager
def _marked_update(job: ModuleJob, watch: Watch) -> Iterator[None]:
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


@torch.inference_mode()
def _call_cost_s(clock: Clock) -> float:
    """What it costs to call an operator as the watch does, beyond what a program's own call costs."""
    one, func = torch.ones(1), torch.ops.aten.neg.default
    watched = []
    for _ in range(NUM_CALIBRATED):
        args, kwargs = (one,), {}  # type: ignore[var-annotated]
        began = clock()
        func(*args, **kwargs)
        watched.append(clock() - began)
    plain = []
    for _ in range(NUM_CALIBRATED // 20):
        began = clock()
        for _ in range(20):
            torch.neg(one)
        plain.append((clock() - began) / 20)
    return max(0.0, statistics.median(watched) - statistics.median(plain)) / 1e9
