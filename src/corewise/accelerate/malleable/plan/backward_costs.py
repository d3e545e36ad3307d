"""Measure the seconds of each call's backward pass at each width, on the threads that will run it.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, List, Sequence, Tuple

import torch

from corewise.accelerate.capture import operator_effects
from corewise.accelerate.capture.program import Program, Ref
from corewise.accelerate.malleable.execute.task_functions import compile_task
from corewise.accelerate.malleable.execute.thread_teams import Teams
from corewise.accelerate.malleable.plan.forward_costs import run_on_lane, select_widths, summarize_passes
from corewise.accelerate.malleable.plan.lane_widths import list_slots
from corewise.accelerate.malleable.plan.schedule import Lane, OperatorTask

MAX_ROUNDS = 8
# Minimum number of passes per width. The first one warms up.
MIN_ROUNDS = 2


def measure_backward(
    program: Program,
    call_signatures: Sequence[str],
    make_values: Callable[[], List[Any]],
    teams: Teams,
    widths: Sequence[int],
    budget_s: float,
) -> Tuple[Dict[int, float], ...]:
    """Measure for each call the seconds of its backward pass by width, 0 without one."""
    passes = _BackwardPasses(program, make_values, teams)
    tried = sorted(select_widths(program, widths), reverse=True)
    samples: Dict[int, List[List[float]]] = {width: [] for width in tried}
    until = time.perf_counter() + budget_s
    for number in range(MAX_ROUNDS):
        for width in tried:
            if len(samples[width]) < MIN_ROUNDS or time.perf_counter() < until:
                samples[width].append(passes.run(width, number))
        if time.perf_counter() > until and number + 1 >= MIN_ROUNDS:
            break
    return summarize_passes(samples, call_signatures, widths, num_quantiles=4)


def add_backward_costs(
    forward: Sequence[Dict[int, float]], backward: Sequence[Dict[int, float]]
) -> Tuple[Dict[int, float], ...]:
    """Add the costs of both passes: a plan and its reverse run the same tasks."""
    return tuple(
        {w: forward_cost[w] + backward_cost[w] for w in forward_cost}
        for forward_cost, backward_cost in zip(forward, backward)
    )


class _BackwardPasses:
    """Runs the program call by call, each with a separate autograd graph that is differentiated directly."""

    def __init__(self, program: Program, make_values: Callable[[], List[Any]], teams: Teams) -> None:
        self.program, self.make_values, self.teams = program, make_values, teams
        self.functions = [compile_task(program, OperatorTask((n,), ()), set()) for n in range(len(program.calls))]
        self.written = [_find_written(program, n) for n in range(len(program.calls))]
        last: Dict[int, int] = {}
        for number in range(len(program.calls)):
            for value in (*program.list_reads(number), *program.calls[number].results):
                last[value] = number
        self.gone: List[List[int]] = [[] for _ in program.calls]
        for value, number in last.items():
            self.gone[number].append(value)

    def run(self, width: int, number: int) -> List[float]:
        """Run one pass at this width; return the seconds of each call's backward pass."""
        values, times = self.make_values(), [0.0] * len(self.program.calls)

        def run_calls() -> None:
            for call in range(len(self.program.calls)):
                times[call] = self._time_backward(call, values)
                for value in self.gone[call]:
                    values[value] = None

        places = list_slots(width, len(self.teams.cpus))
        run_on_lane(self.teams, Lane(places[number % len(places)], width), run_calls)
        return times

    def _time_backward(self, call: int, values: List[Any]) -> float:
        originals, leaves = {}, []
        for value in self.program.list_reads(call):
            original = originals[value] = values[value]
            if isinstance(original, torch.Tensor) and original.requires_grad:
                leaf = original.detach().requires_grad_()
                leaves.append(leaf)
                values[value] = leaf.clone() if value in self.written[call] else leaf
        self.functions[call](values)
        results = self.program.calls[call].results
        outputs = [values[v] for v in results if isinstance(values[v], torch.Tensor) and values[v].requires_grad]
        ones = [torch.ones_like(output) for output in outputs]
        start = time.perf_counter()
        if outputs and leaves:
            torch.autograd.grad(outputs, leaves, ones, allow_unused=True)
        seconds = time.perf_counter() - start
        for value in results:
            if isinstance(values[value], torch.Tensor) and values[value].requires_grad:
                values[value] = values[value].detach().requires_grad_()
        for value, original in originals.items():
            values[value] = original
        return seconds if outputs and leaves else 0.0


def _find_written(program: Program, number: int) -> List[int]:
    call = program.calls[number]
    if not operator_effects.has_schema(call.target):
        return []
    written = operator_effects.find_written(call.target, call.args, call.kwargs)
    return [one.value for one in written if isinstance(one, Ref)]
