"""Measure the seconds of each call at each width, on the threads that will run it.

Measured side: standard library and torch only, Python 3.9.

A pass runs the whole program at one width, chain after chain, each chain on other cores than the previous
one. So a call finds its inputs in the caches of another team. Passes of all widths alternate to cancel drift.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

from corewise.accelerate.capture.program import Program
from corewise.accelerate.capture.torch_modes import read_modes
from corewise.accelerate.malleable.adaptive_width import interpolate_costs
from corewise.accelerate.malleable.execute.task_functions import compile_task, compute_lifetimes
from corewise.accelerate.malleable.execute.thread_teams import Teams
from corewise.accelerate.malleable.plan.lane_widths import list_slots
from corewise.accelerate.malleable.plan.schedule import Lane
from corewise.accelerate.malleable.plan.task_merging import find_chains

MAX_ROUNDS = 12
# Minimum number of measured widths. Where time is short, narrower ones are assumed to scale ideally.
MIN_WIDTHS = 2
# Minimum number of passes per width. The first one warms up.
MIN_ROUNDS = 2
# Widest team measured for a program in slices. Wider teams are assumed to be no faster.
MAX_SLICE_WIDTH = 2


def measure_costs(
    program: Program,
    call_signatures: Sequence[str],
    make_values: Callable[[], List[Any]],
    teams: Teams,
    widths: Sequence[int],
    budget_s: float,
) -> Tuple[Dict[int, float], ...]:
    """Measure for each call the seconds by width: a low quantile over passes and calls of equal signature."""
    passes = _ForwardPasses(program, make_values, teams)
    tried = sorted(select_widths(program, widths), reverse=True)
    samples: Dict[int, List[List[float]]] = {width: [] for width in tried}
    # Seconds of the last pass at each width, 0 before the first.
    seconds = dict.fromkeys(widths, 0.0)
    start = time.perf_counter()
    for number in range(MAX_ROUNDS):
        for width in tried:
            began = time.perf_counter()
            expected = seconds[width] or _estimate_pass_s(seconds, width)
            is_late = began - start + expected > budget_s
            if number == 0:
                is_left_out = is_late and _count_measured(samples) >= MIN_WIDTHS
            # The first pass is not warm. A second one follows unless it takes very long.
            elif number < MIN_ROUNDS:
                is_left_out = is_late and expected > budget_s / 4
            else:
                is_left_out = is_late
            if not is_left_out and (samples[width] or number == 0):
                samples[width].append(passes.run(width))
                seconds[width] = time.perf_counter() - began
    # Use a low quantile: other processes on one core delay wide teams most.
    return summarize_passes(samples, call_signatures, widths, num_quantiles=8)


def select_widths(program: Program, widths: Sequence[int]) -> Tuple[int, ...]:
    """Select the widths worth measuring: wide teams do not help for slices, which are many and small."""
    narrow = tuple(width for width in widths if width <= MAX_SLICE_WIDTH)
    return narrow if program.is_cut else tuple(widths)


def _estimate_pass_s(seconds: Mapping[int, float], width: int) -> float:
    """Estimate a pass at a new width from the next wider one, assuming ideal scaling."""
    wider = min((w for w in seconds if w > width and seconds[w]), default=width)
    return seconds[wider] * wider / width


def _count_measured(samples: Mapping[int, Sequence[Sequence[float]]]) -> int:
    return sum(1 for passes in samples.values() if passes)


def summarize_passes(
    samples: Mapping[int, Sequence[Sequence[float]]],
    call_signatures: Sequence[str],
    widths: Sequence[int],
    num_quantiles: int,
) -> Tuple[Dict[int, float], ...]:
    """Summarize passes by width to the first of `num_quantiles` quantiles of calls of equal signature."""
    calls_by_signature: Dict[str, List[int]] = {}
    for call, signature in enumerate(call_signatures):
        calls_by_signature.setdefault(signature, []).append(call)
    costs: Dict[str, Dict[int, float]] = {signature: {} for signature in calls_by_signature}
    for width, passes in samples.items():
        for signature, calls in calls_by_signature.items() if passes else ():
            # The first pass starts threads and compiles kernels.
            times = sorted(times_of_pass[call] for times_of_pass in passes[1:] or passes for call in calls)
            costs[signature][width] = times[len(times) // num_quantiles]
    return interpolate_costs([costs[signature] for signature in call_signatures], widths)


def run_on_lane(teams: Teams, lane: Lane, job: Callable[[], None]) -> None:
    """Run a job on the lane's team in the modes of this thread, or on this thread at full width."""
    if lane.width == len(teams.cpus):
        job()
        return
    done, modes = threading.Event(), read_modes()
    problems: List[BaseException] = []

    def run() -> None:
        try:
            with modes.enter():
                job()
        except BaseException as problem:
            problems.append(problem)
        finally:
            done.set()

    teams.provide_team(lane).give(run)
    done.wait()
    if problems:
        raise problems[0]


class _ForwardPasses:
    def __init__(self, program: Program, make_values: Callable[[], List[Any]], teams: Teams) -> None:
        self.program, self.make_values, self.teams = program, make_values, teams
        self.chains = find_chains(program)
        private, _, self.shared = compute_lifetimes(program, self.chains)
        self.functions = [
            compile_task(program, chain, values, is_timed=True) for chain, values in zip(self.chains, private)
        ]

    def run(self, width: int) -> List[float]:
        """Run one pass at this width; return the seconds of each call."""
        seconds_by_call = [0.0] * len(self.program.calls)
        values = self.make_values()
        readers = dict(self.shared)
        places = list_slots(width, len(self.teams.cpus))
        for number, chain in enumerate(self.chains):
            times: List[float] = []
            lane = Lane(places[number % len(places)], width)
            run_on_lane(self.teams, lane, self._build_job(number, values, times))
            for call, seconds in zip(chain.calls, times):
                seconds_by_call[call] = seconds
            self._free(number, values, readers)
        return seconds_by_call

    def _build_job(self, number: int, values: List[Any], times: List[float]) -> Callable[[], None]:
        return lambda: self.functions[number](values, time.perf_counter, times)

    def _free(self, number: int, values: List[Any], readers: Dict[int, int]) -> None:
        read = {value for call in self.chains[number].calls for value in self.program.list_reads(call)}
        for value in read & readers.keys():
            readers[value] -= 1
            if readers[value] == 0:
                values[value] = None
