"""What each call takes at each width, measured on the threads that will run it.

Measured side: standard library and torch only, Python 3.9.

A pass runs the whole program at one width, chain after chain, each chain on other cores than the one before
it: so a call finds its inputs where another team left them. Passes of all widths alternate, against drift.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from corewise.dataflow.adaptive import resized
from corewise.dataflow.generated import lifetimes, task_function
from corewise.dataflow.lanes import slots
from corewise.dataflow.modes import current_modes
from corewise.dataflow.program import Program
from corewise.dataflow.schedule import Lane
from corewise.dataflow.tasks import chains
from corewise.dataflow.teams import Teams

MOST_ROUNDS = 12
LEAST_WIDTHS = 2  # where time is short, narrower ones are taken to scale ideally
LEAST_ROUNDS = 2  # the first of which warms up
WIDEST_OF_SLICES = 2  # of a program in slices: wider teams are taken to be no faster


def measure_costs(
    program: Program,
    kinds: Sequence[str],
    make_values: Callable[[], List[Any]],
    teams: Teams,
    widths: Sequence[int],
    budget_s: float,
) -> Tuple[Dict[int, float], ...]:
    """For each call: width to seconds, near the least of several passes and of calls of its kind."""
    passes = _Passes(program, make_values, teams)
    tried = sorted(widths_to_measure(program, widths), reverse=True)
    samples: Dict[int, List[List[float]]] = {width: [] for width in tried}
    seconds = dict.fromkeys(widths, 0.0)  # of a pass, as far as known
    start = time.perf_counter()
    for number in range(MOST_ROUNDS):
        for width in tried:
            began = time.perf_counter()
            expected = seconds[width] or _stretched(seconds, width)
            is_late = began - start + expected > budget_s
            if number == 0:
                is_left_out = is_late and _num_known(samples) >= LEAST_WIDTHS
            elif number < LEAST_ROUNDS:  # the first pass is not warm: a second one, unless it takes very long
                is_left_out = is_late and expected > budget_s / 4
            else:
                is_left_out = is_late
            if not is_left_out and (samples[width] or number == 0):
                samples[width].append(passes.run(width))
                seconds[width] = time.perf_counter() - began
    measured = [width for width in tried if samples[width]]
    alike: Dict[str, List[int]] = {}
    for call, kind in enumerate(kinds):
        alike.setdefault(kind, []).append(call)
    typical = {kind: {w: _typical(samples[w], calls) for w in measured} for kind, calls in alike.items()}
    return resized([typical[kind] for kind in kinds], widths)


def widths_to_measure(program: Program, widths: Sequence[int]) -> Tuple[int, ...]:
    """Those worth trying: slices are many and small, so wide teams only wait for each other in them."""
    narrow = tuple(width for width in widths if width <= WIDEST_OF_SLICES)
    return narrow if program.is_cut else tuple(widths)


def _stretched(seconds: Mapping[int, float], width: int) -> float:
    """A pass at a width not yet tried: as the next wider one, with all its threads in a row."""
    wider = min((w for w in seconds if w > width and seconds[w]), default=width)
    return seconds[wider] * wider / width


def _num_known(samples: Mapping[int, Sequence[Sequence[float]]]) -> int:
    return sum(1 for passes in samples.values() if passes)


def _typical(passes: Sequence[Sequence[float]], calls: Sequence[int]) -> float:
    warm = passes[1:] or passes  # the first starts threads and makes kernels
    times = sorted(one[call] for one in warm for call in calls)
    return times[len(times) // 8]  # near the least: a neighbour on one core delays wide teams most


class _Passes:
    def __init__(self, program: Program, make_values: Callable[[], List[Any]], teams: Teams) -> None:
        self.program, self.make_values, self.teams = program, make_values, teams
        self.chains = chains(program)
        own, _, self.shared = lifetimes(program, self.chains)
        self.functions = [
            task_function(program, chain, kept, is_timed=True) for chain, kept in zip(self.chains, own)
        ]

    def run(self, width: int) -> List[float]:
        """Seconds of each call in one pass at this width."""
        found = [0.0] * len(self.program.calls)
        values = self.make_values()
        readers = dict(self.shared)
        places = slots(width, len(self.teams.cpus))
        is_caller = width == len(self.teams.cpus)
        for number, chain in enumerate(self.chains):
            times: List[float] = []
            job = self._job(number, values, times)
            if is_caller:
                job()
            else:
                self._elsewhere(Lane(places[number % len(places)], width), job)
            for call, seconds in zip(chain.calls, times):
                found[call] = seconds
            self._free(number, values, readers)
        return found

    def _job(self, number: int, values: List[Any], times: List[float]) -> Callable[[], None]:
        return lambda: self.functions[number](values, time.perf_counter, times)

    def _elsewhere(self, lane: Lane, job: Callable[[], None]) -> None:
        done = threading.Lock()
        done.acquire()
        problems: List[Optional[BaseException]] = [None]
        modes = current_modes()

        def run() -> None:
            try:
                with modes.entered():
                    job()
            except BaseException as problem:
                problems[0] = problem
            finally:
                done.release()

        self.teams.team(lane).give(run)
        done.acquire()
        if problems[0] is not None:
            raise problems[0]

    def _free(self, number: int, values: List[Any], readers: Dict[int, int]) -> None:
        read = {value for call in self.chains[number].calls for value in self.program.reads(call)}
        for value in read & readers.keys():
            readers[value] -= 1
            if readers[value] == 0:
                values[value] = None
