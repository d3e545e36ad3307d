"""`corewise.parallel`: run branches marked by hand, for code that cannot be captured.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import os
import threading
from typing import Any, Callable, List, Optional, Sequence, Tuple

import torch

from corewise.accelerate.capture.torch_modes import Modes, explain_interception, read_modes
from corewise.accelerate.malleable.adaptive_width import AllocationMonitor
from corewise.accelerate.malleable.execute.thread_teams import Teams, is_in_team, provide_shared_teams
from corewise.accelerate.malleable.execute.thread_width import set_own_width
from corewise.accelerate.malleable.plan.lane_widths import list_slots, list_widths
from corewise.accelerate.malleable.plan.schedule import Lane


class _BranchTeams:
    """The process's teams for branches; they follow the allocation."""

    def __init__(self) -> None:
        self.allocation = AllocationMonitor()
        self.held: Optional[Teams] = None
        self.guard = threading.Lock()

    def provide_teams(self) -> Optional[Teams]:
        with self.guard:
            cpus = self.allocation.read_cpus()
            if self.held is not None and (self.held.cpus != cpus or not self.held.is_open):
                if self.held.is_open:
                    self.held.release()
                self.held = None
            if self.held is None and len(cpus) > 1:
                self.held = provide_shared_teams(cpus)
            return self.held

    def close(self) -> None:
        with self.guard:
            if self.held is not None:
                self.held.release()
            self.held = None


_branch_teams: List[_BranchTeams] = []


def parallel(*branches: Callable[[], Any]) -> Tuple[Any, ...]:
    """Run these functions at the same time, each on a share of the cores; return their results.

    The first exception in the order of the branches is raised after all have ended. Branches run one after
    the other if called from a branch, while another thread's branches run, or while a program is captured.
    Branches that draw random numbers do so in no fixed order.

    Example:
        left, right = corewise.parallel(lambda: encoder(x), lambda: decoder(y))
    """
    teams = None
    if len(branches) > 1 and not is_in_team() and not explain_interception():
        if not _branch_teams:
            _branch_teams.append(_BranchTeams())
        teams = _branch_teams[0].provide_teams()
    if teams is None or teams.pid != os.getpid():
        return tuple(branch() for branch in branches)
    try:
        # If closed, another thread has moved to other cores since.
        if teams.lock.acquire(blocking=False) and teams.is_open:
            teams.runs_branches = True
            return _run_branches(branches, teams)
    finally:
        # is_in_team() returned False above, so the lock was acquired here.
        if teams.is_held_by_caller():
            teams.runs_branches = False
            teams.lock.release()
    # The holder of the teams may be waiting for this thread.
    return tuple(branch() for branch in branches)


def close_parallel() -> None:
    """End the threads that `parallel` started; they start again when needed."""
    if _branch_teams:
        _branch_teams.pop().close()


def _compute_width(num_branches: int, num_cores: int) -> int:
    return max(width for width in list_widths(num_cores) if width <= max(1, num_cores // num_branches))


class _BranchJob:
    """A team's share of the branches, which it runs unless the caller has taken it back."""

    def __init__(self) -> None:
        self.claim, self.ended = threading.Lock(), threading.Lock()
        self.ended.acquire()

    def run(self, modes: Modes, work: Callable[[], None]) -> None:
        if self.claim.acquire(blocking=False):
            try:
                with modes.enter():
                    work()
            finally:
                self.ended.release()


def _run_branches(branches: Tuple[Callable[[], Any], ...], teams: Teams) -> Tuple[Any, ...]:
    num_cores = len(teams.cpus)
    width = _compute_width(len(branches), num_cores)
    results: List[Any] = [None] * len(branches)
    problems: List[Optional[BaseException]] = [None] * len(branches)
    # Popped from the end, so in the given order.
    waiting = list(range(len(branches) - 1, -1, -1))
    modes = read_modes()

    def run_waiting() -> None:
        while True:
            try:
                number = waiting.pop()
            except IndexError:
                return
            try:
                results[number] = branches[number]()
            except BaseException as problem:
                problems[number] = problem
                waiting.clear()

    # The caller takes part only at width 1: its team then keeps its threads.
    takes_part = width == 1
    places = list_slots(width, num_cores)[1 if takes_part else 0 : len(branches)]
    jobs = [_BranchJob() for _ in places]

    def start_branches() -> None:
        for place, job in zip(places, jobs):
            teams.provide_team(Lane(place, width)).give(lambda job=job: job.run(modes, run_waiting))  # type: ignore[misc]
        if takes_part:
            set_own_width(1)
            run_waiting()

    _run_jobs(start_branches, jobs, waiting)
    first = next((problem for problem in problems if problem is not None), None)
    if first is not None:
        raise first
    return tuple(results)


def _run_jobs(begin: Callable[[], None], jobs: Sequence[_BranchJob], waiting: List[int]) -> None:
    """Run the caller's share, then wait for the others; raise an interrupt after they have ended."""
    full_width = torch.get_num_threads()
    interrupt: Optional[BaseException] = None
    try:
        begin()
    except BaseException as problem:
        interrupt = problem
        waiting.clear()
    finally:
        if torch.get_num_threads() != full_width:
            set_own_width(full_width)
    for job in jobs:
        while True:
            try:
                # A claimed job has not started and never will.
                if interrupt is None or not job.claim.acquire(blocking=False):
                    job.ended.acquire()
                break
            except BaseException as problem:
                interrupt = problem
                waiting.clear()
    if interrupt is not None:
        raise interrupt
