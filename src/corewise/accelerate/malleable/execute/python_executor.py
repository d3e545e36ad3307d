"""Run a plan on Python threads.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

import torch

from corewise.accelerate.capture.program import Program
from corewise.accelerate.capture.torch_modes import Modes, read_modes
from corewise.accelerate.malleable.execute.task_functions import compile_task, compute_lifetimes
from corewise.accelerate.malleable.execute.thread_teams import Teams
from corewise.accelerate.malleable.execute.thread_width import set_own_width
from corewise.accelerate.malleable.execute.timeline import Span
from corewise.accelerate.malleable.plan.schedule import CALLER, LanePlan, OperatorTask

# Seconds to continue on another thread. Used by the planner.
HANDOVER_S = 30e-6


@dataclass(frozen=True)
class _BoundStep:
    """A step with everything that running it needs."""

    number: int
    task: int
    lane: int
    run: Callable[[List[Any]], None]
    # Steps of other threads that it waits for.
    num_after: int
    # Steps of other threads that wait for it.
    followers: Tuple[int, ...]
    # Values that this task and others read.
    released: Tuple[int, ...]


class PythonExecutor:
    """A plan bound to the functions of its tasks and the teams of its lanes."""

    name = "python"
    handover_s = HANDOVER_S

    def __init__(self, program: Program, tasks: Sequence[OperatorTask], plan: LanePlan, teams: Teams) -> None:
        self.plan, self.teams = plan, teams
        private, _, self.shared = compute_lifetimes(program, tasks)
        functions = [compile_task(program, task, values_of_task) for task, values_of_task in zip(tasks, private)]
        reads = [{v for call in task.calls for v in program.list_reads(call)} & set(self.shared) for task in tasks]
        threads = [CALLER if lane.by_caller else number for number, lane in enumerate(plan.lanes)]
        self.steps = _bind_steps(plan, threads, functions, reads)
        self.by_thread: Dict[int, List[_BoundStep]] = {}
        for step in self.steps:
            self.by_thread.setdefault(threads[step.lane], []).append(step)
        self.workers = {
            thread: teams.provide_team(plan.lanes[thread], self) for thread in self.by_thread if thread != CALLER
        }
        self.first_of = {self.by_thread[thread][0].number: thread for thread in self.workers}
        self.threads = threads
        self.spans: List[Span] = []
        # Stays empty: torch differentiates the whole program.
        self.backward_spans: List[Span] = []

    def run(self, values: List[Any]) -> None:
        """Compute the program's values in place; on return the outputs are among them."""
        run = _ExecutorRun(self, values)
        begins, interrupt = True, None
        while True:
            try:
                if begins:
                    begins = False
                    run.start()
                    run.run_caller()
                if interrupt is not None:
                    run.fail(len(self.steps), interrupt)
                run.wait_for_workers()
                break
            # An interrupt may arrive anywhere, so the loop waits for the workers again.
            except BaseException as problem:
                interrupt = problem
        self.spans = run.spans
        if run.problem is not None:
            raise run.problem


def _bind_steps(
    plan: LanePlan, threads: Sequence[int], functions: Sequence[Callable[[List[Any]], None]], reads: Sequence[Any]
) -> Tuple[_BoundStep, ...]:
    step_of = {step.task: number for number, step in enumerate(plan.steps)}
    waits: List[List[int]] = []
    for number, step in enumerate(plan.steps):
        others = [step_of[task] for task in step.after]
        waits.append([o for o in others if threads[plan.steps[o].lane] != threads[step.lane] and o != number])
    followers: List[List[int]] = [[] for _ in plan.steps]
    for number, others in enumerate(waits):
        for other in others:
            followers[other].append(number)
    return tuple(
        _BoundStep(
            number,
            step.task,
            step.lane,
            functions[step.task],
            len(waits[number]),
            tuple(followers[number]),
            tuple(sorted(reads[step.task])),
        )
        for number, step in enumerate(plan.steps)
    )


class _ExecutorRun:
    """The state of one call: what has ended, who waits for what."""

    def __init__(self, executor: PythonExecutor, values: List[Any]) -> None:
        self.executor, self.values = executor, values
        self.modes: Modes = read_modes()
        self.mutex = threading.Lock()
        # list.pop needs no lock: the thread that pops True was the last one.
        self.left = [[True, *[False] * (step.num_after - 1)] for step in executor.steps]
        self.readers = {value: [True, *[False] * (num - 1)] for value, num in executor.shared.items()}
        self.gates: Dict[int, threading.Lock] = {}
        for step in executor.steps:
            if step.num_after and step.number not in executor.first_of:
                gate = self.gates[step.number] = threading.Lock()
                gate.acquire()
        # Claims of workers that have not ended.
        self.active: Set[threading.Lock] = set()
        self.idle = threading.Lock()
        self.idle.acquire()
        self.waits_for_idle = False
        self.problem: Optional[BaseException] = None
        self.problem_step = len(executor.steps) + 1
        self.spans: List[Span] = []

    def start(self) -> None:
        """Start the workers whose first step waits for nothing."""
        for number in self.executor.first_of:
            if self.executor.steps[number].num_after == 0:
                self._start_worker(number)

    def _start_worker(self, first_step: int) -> None:
        thread = self.executor.first_of[first_step]
        # Whoever acquires it ends the share: the worker, or this thread if interrupted.
        claim = threading.Lock()
        try:
            with self.mutex:
                if self.problem is not None:
                    return
                self.active.add(claim)
            self.executor.workers[thread].give(lambda: self._run_worker(thread, claim))
        except BaseException:
            if claim.acquire(blocking=False):
                self._end(claim)
            raise

    def run_caller(self) -> None:
        """Run the steps of the calling thread: those at full width, and of a lane of width 1."""
        lanes = self.executor.plan.lanes
        full_width = torch.get_num_threads()
        width = full_width
        try:
            for step in self.executor.by_thread.get(CALLER, ()):
                wanted = full_width if step.lane == CALLER else lanes[step.lane].width
                if wanted != width:
                    set_own_width(wanted)
                    width = wanted
                if not self._run_step(step):
                    return
        finally:
            if width != full_width:
                set_own_width(full_width)

    def _run_worker(self, thread: int, claim: threading.Lock) -> None:
        if not claim.acquire(blocking=False):
            return
        try:
            with self.modes.enter():
                for step in self.executor.by_thread[thread]:
                    if not self._run_step(step):
                        break
        finally:
            self._end(claim)

    def _end(self, claim: threading.Lock) -> None:
        with self.mutex:
            self.active.discard(claim)
            if not self.active and self.waits_for_idle:
                self.waits_for_idle = False
                self.idle.release()

    def _run_step(self, step: _BoundStep) -> bool:
        gate = self.gates.get(step.number)
        if gate is not None:
            gate.acquire()
        if self.problem is not None:
            return False
        start = time.perf_counter()
        try:
            step.run(self.values)
        except BaseException as problem:
            self.fail(step.number, problem)
            return False
        self.spans.append(Span(step.task, step.lane, start, time.perf_counter()))
        if step.released or step.followers:
            self._release_followers(step)
        return True

    def _release_followers(self, step: _BoundStep) -> None:
        for value in step.released:
            if self.readers[value].pop():
                self.values[value] = None
        for follower in step.followers:
            if self.left[follower].pop():
                if follower in self.executor.first_of:
                    self._start_worker(follower)
                else:
                    _open(self.gates[follower])

    def fail(self, step: int, problem: BaseException) -> None:
        """Stop the others before their next step; of several errors the first in step order is raised."""
        with self.mutex:
            if step < self.problem_step:
                self.problem, self.problem_step = problem, step
        for gate in self.gates.values():
            _open(gate)

    def wait_for_workers(self) -> None:
        """Wait until no worker uses the values; called again after an interrupt."""
        while True:
            with self.mutex:
                if not self.active:
                    return
                self.waits_for_idle = True
            self.idle.acquire()


def _open(gate: threading.Lock) -> None:
    # Another thread has opened it already.
    with contextlib.suppress(RuntimeError):
        gate.release()
