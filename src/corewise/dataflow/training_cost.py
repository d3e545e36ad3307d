"""What each call's backward pass takes at each width, measured on the threads that will run it.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch

from corewise.dataflow import operators
from corewise.dataflow.adaptive import resized
from corewise.dataflow.cost import widths_to_measure
from corewise.dataflow.generated import task_function
from corewise.dataflow.lanes import slots
from corewise.dataflow.modes import current_modes
from corewise.dataflow.program import Program, Ref
from corewise.dataflow.schedule import Lane, Task
from corewise.dataflow.teams import Teams

MOST_ROUNDS = 8
LEAST_ROUNDS = 2  # the first of which warms up


def measure_backward(
    program: Program,
    kinds: Sequence[str],
    make_values: Callable[[], List[Any]],
    teams: Teams,
    widths: Sequence[int],
    budget_s: float,
) -> Tuple[Dict[int, float], ...]:
    """For each call: width to seconds of its backward alone, 0 where it has none; those of a kind alike."""
    passes = _Passes(program, make_values, teams)
    tried = sorted(widths_to_measure(program, widths), reverse=True)
    samples: Dict[int, List[List[float]]] = {width: [] for width in tried}
    until = time.perf_counter() + budget_s
    for number in range(MOST_ROUNDS):
        for width in tried:
            if len(samples[width]) < LEAST_ROUNDS or time.perf_counter() < until:
                samples[width].append(passes.run(width, number))
        if time.perf_counter() > until and number + 1 >= LEAST_ROUNDS:
            break
    alike: Dict[str, List[int]] = {}
    for call, kind in enumerate(kinds):
        alike.setdefault(kind, []).append(call)
    typical = {kind: {w: _typical(samples[w][1:], calls) for w in tried} for kind, calls in alike.items()}
    return resized([typical[kind] for kind in kinds], widths)


def with_backward(
    forward: Sequence[Dict[int, float]], backward: Sequence[Dict[int, float]]
) -> Tuple[Dict[int, float], ...]:
    """The cost of both passes: a plan and its reverse take what their tasks take together."""
    return tuple({w: there[w] + back[w] for w in there} for there, back in zip(forward, backward))


def _typical(passes: Sequence[Sequence[float]], calls: Sequence[int]) -> float:
    times = sorted(one[call] for one in passes for call in calls)
    return times[len(times) // 4]


class _Passes:
    """The program call by call, each with a graph of its own that is differentiated at once."""

    def __init__(self, program: Program, make_values: Callable[[], List[Any]], teams: Teams) -> None:
        self.program, self.make_values, self.teams = program, make_values, teams
        self.functions = [task_function(program, Task((n,), ()), set()) for n in range(len(program.calls))]
        self.written = [_written(program, n) for n in range(len(program.calls))]
        last: Dict[int, int] = {}
        for number in range(len(program.calls)):
            for value in (*program.reads(number), *program.calls[number].results):
                last[value] = number
        self.gone: List[List[int]] = [[] for _ in program.calls]
        for value, number in last.items():
            self.gone[number].append(value)

    def run(self, width: int, number: int) -> List[float]:
        """Seconds of each call's backward in one pass at this width."""
        values, times = self.make_values(), [0.0] * len(self.program.calls)

        def job() -> None:
            for call in range(len(self.program.calls)):
                times[call] = self._differentiated(call, values)
                for value in self.gone[call]:
                    values[value] = None

        places = slots(width, len(self.teams.cpus))
        if width == len(self.teams.cpus):
            job()
        else:
            _on_team(self.teams, Lane(places[number % len(places)], width), job)
        return times

    def _differentiated(self, call: int, values: List[Any]) -> float:
        kept, leaves = {}, []
        for value in self.program.reads(call):
            one = kept[value] = values[value]
            if isinstance(one, torch.Tensor) and one.requires_grad:
                leaf = one.detach().requires_grad_()
                leaves.append(leaf)
                values[value] = leaf.clone() if value in self.written[call] else leaf
        self.functions[call](values)
        results = self.program.calls[call].results
        made = [values[v] for v in results if isinstance(values[v], torch.Tensor) and values[v].requires_grad]
        ones = [torch.ones_like(one) for one in made]
        start = time.perf_counter()
        if made and leaves:
            torch.autograd.grad(made, leaves, ones, allow_unused=True)
        seconds = time.perf_counter() - start
        for value in results:
            if isinstance(values[value], torch.Tensor) and values[value].requires_grad:
                values[value] = values[value].detach().requires_grad_()
        for value, one in kept.items():
            values[value] = one
        return seconds if made and leaves else 0.0


def _written(program: Program, number: int) -> List[int]:
    call = program.calls[number]
    if not operators.is_known(call.target):
        return []
    found = operators.written(call.target, call.args, call.kwargs)
    return [one.value for one in found if isinstance(one, Ref)]


def _on_team(teams: Teams, lane: Lane, job: Callable[[], None]) -> None:
    """Has a job run by the lane's team, in the modes of this thread, and waits for its end."""
    done, modes = threading.Event(), current_modes()
    problems: List[Optional[BaseException]] = [None]

    def run() -> None:
        try:
            with modes.entered():
                job()
        except BaseException as problem:
            problems[0] = problem
        finally:
            done.set()

    teams.team(lane).give(run)
    done.wait()
    if problems[0] is not None:
        raise problems[0]
