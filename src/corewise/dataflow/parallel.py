"""`corewise.parallel`: branches marked by hand, for code whose operators cannot be known beforehand.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import os
import threading
from typing import Any, Callable, List, Optional, Sequence, Tuple

import torch

from corewise.dataflow.adaptive import Allocation
from corewise.dataflow.lanes import slots, widths_for
from corewise.dataflow.modes import Modes, current_modes, runs_under_others_control
from corewise.dataflow.own_width import set_own_width
from corewise.dataflow.schedule import Lane
from corewise.dataflow.teams import Teams, in_team, shared_teams


class _Place:
    """The process's own teams for branches, following the allocation."""

    def __init__(self) -> None:
        self.allocation = Allocation()
        self.held: Optional[Teams] = None
        self.guard = threading.Lock()

    def teams(self) -> Optional[Teams]:
        with self.guard:
            cpus = self.allocation.cpus()
            if self.held is not None and (self.held.cpus != cpus or not self.held.is_open):
                if self.held.is_open:
                    self.held.release()
                self.held = None
            if self.held is None and len(cpus) > 1:
                self.held = shared_teams(cpus)
            return self.held

    def close(self) -> None:
        with self.guard:
            if self.held is not None:
                self.held.release()
            self.held = None


_place: List[_Place] = []


def parallel(*branches: Callable[[], Any]) -> Tuple[Any, ...]:
    """What each of these functions returns, run together, each with its share of the cores.

    The first exception in the order of the branches is raised once all have ended. Called from a branch,
    while another thread's branches run, or while a program is being captured, they run one after the other.
    Branches that draw random numbers do so in no fixed order.
    """
    teams = None
    if len(branches) > 1 and not in_team() and not runs_under_others_control():
        if not _place:
            _place.append(_Place())
        teams = _place[0].teams()
    if teams is None or teams.pid != os.getpid():
        return tuple(branch() for branch in branches)
    try:
        # Closed: another thread has moved to other cores meanwhile.
        if teams.lock.acquire(blocking=False) and teams.is_open:
            teams.runs_branches = True
            return _together(branches, teams)
    finally:
        if teams.is_mine():  # in_team() has told that it was not before
            teams.runs_branches = False
            teams.lock.release()
    return tuple(branch() for branch in branches)  # whoever holds the teams may be waiting for this thread


def close_parallel() -> None:
    """Ends the threads that `parallel` has started; they start again when needed."""
    if _place:
        _place.pop().close()


def _share(num_branches: int, num_cores: int) -> int:
    return max(width for width in widths_for(num_cores) if width <= max(1, num_cores // num_branches))


class _Job:
    """A team's share of the branches, which it runs unless the caller has taken it back."""

    def __init__(self) -> None:
        self.claim, self.ended = threading.Lock(), threading.Lock()
        self.ended.acquire()

    def run(self, modes: Modes, work: Callable[[], None]) -> None:
        if self.claim.acquire(blocking=False):
            try:
                with modes.entered():
                    work()
            finally:
                self.ended.release()


def _together(branches: Tuple[Callable[[], Any], ...], teams: Teams) -> Tuple[Any, ...]:
    num_cores = len(teams.cpus)
    width = _share(len(branches), num_cores)
    results: List[Any] = [None] * len(branches)
    problems: List[Optional[BaseException]] = [None] * len(branches)
    waiting = list(range(len(branches) - 1, -1, -1))  # popped from the end: in the order given
    modes = current_modes()

    def work() -> None:
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

    takes_part = width == 1  # a team that goes N, 1, N keeps its threads; other widths would end them
    places = slots(width, num_cores)[1 if takes_part else 0 : len(branches)]
    jobs = [_Job() for _ in places]

    def begin() -> None:
        for place, job in zip(places, jobs):
            teams.team(Lane(place, width)).give(lambda job=job: job.run(modes, work))  # type: ignore[misc]
        if takes_part:
            set_own_width(1)
            work()

    _run_all(begin, jobs, waiting)
    first = next((problem for problem in problems if problem is not None), None)
    if first is not None:
        raise first
    return tuple(results)


def _run_all(begin: Callable[[], None], jobs: Sequence[_Job], waiting: List[int]) -> None:
    """The caller's own share, then waiting for the others; an interrupt is raised when they have ended."""
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
                if interrupt is None or not job.claim.acquire(blocking=False):  # else it never began
                    job.ended.acquire()
                break
            except BaseException as problem:
                interrupt = problem
                waiting.clear()
    if interrupt is not None:
        raise interrupt
