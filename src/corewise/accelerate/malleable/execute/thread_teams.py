"""Threads that run tasks: one for each position and width, of constant width, pinned.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from typing import Callable, Dict, List, Optional, Protocol, Sequence, Set, Tuple, Union

import torch

from corewise.accelerate.malleable.execute.thread_width import set_own_width
from corewise.accelerate.malleable.idle_threads import has_active_waiting
from corewise.accelerate.malleable.plan.schedule import Lane
from corewise.process_control import set_process_name

Job = Callable[[], None]
# Elements of an addition that uses all threads: torch gives each thread 32768 elements.
_NUM_ELEMENTS_FOR_ALL_THREADS = 1 << 17


class Team:
    """A thread with its OpenMP team; jobs run in the order given."""

    def __init__(self, cpus: Sequence[int]) -> None:
        self.cpus = tuple(cpus)
        self._jobs: List[Optional[Job]] = []
        # A binary semaphore, closed while there is nothing to do.
        self._wake = threading.Lock()
        self._wake.acquire()
        self._guard = threading.Lock()
        # Executors that will give it jobs later.
        self.users: weakref.WeakSet[object] = weakref.WeakSet()
        self._thread = threading.Thread(target=_serve, args=(self._take_job, self.cpus), daemon=True)
        self._thread.start()

    def give(self, job: Optional[Job]) -> None:
        """Queue a job; None ends the thread."""
        with self._guard:
            self._jobs.append(job)
            if self._wake.locked():
                self._wake.release()

    def _take_job(self) -> Optional[Job]:
        while True:
            with self._guard:
                if self._jobs:
                    return self._jobs.pop(0)
            self._wake.acquire()

    def end(self) -> None:
        """End the thread after its jobs."""
        self.give(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()


_thread_state = threading.local()
_team_checks: List[Callable[[], bool]] = []


def register_team_check(is_inside: Callable[[], bool]) -> None:
    """Register a function that recognizes threads of the C++ executor while they run a plan."""
    if is_inside not in _team_checks:
        _team_checks.append(is_inside)


def is_in_team() -> bool:
    """Return whether the calling thread must not wait for teams: it is in one, or they may wait for it.

    That holds while it runs a plan or branches, and while branches run anywhere: they are user code that may
    wait for any thread.
    """
    if getattr(_thread_state, "in_team", False) or any(is_inside() for is_inside in _team_checks):
        return True
    return any(teams.runs_branches or teams.is_held_by_caller() for teams in list(_shared.values()))


def _serve(next_job: Callable[[], Optional[Job]], cpus: Tuple[int, ...]) -> None:
    _thread_state.in_team = True
    set_process_name(f"corewise-{len(cpus)}")
    # The CPUs may have left the allocation. The next check of the allocation detects it.
    with contextlib.suppress(OSError):
        # Pin before the first operator: its OpenMP team inherits the mask.
        os.sched_setaffinity(0, cpus)
    set_own_width(len(cpus))
    while True:
        job = next_job()
        if job is None:
            return
        job()
        # Frees the values of the job.
        del job


class AttachedThreads(Protocol):
    """Threads created elsewhere that end with these teams."""

    def num_threads(self) -> int:
        """Return the number of threads."""

    def end_unused(self) -> None:
        """End those without users."""

    def close(self) -> None:
        """End all of them."""


class _SurplusThreads:
    """Idle OpenMP threads, one more than there are cores.

    While OpenMP threads outnumber cores, libgomp's threads spin for less time before they sleep. So those of
    a wide team soon free their cores for narrow teams. Without lanes they may spin longer.
    """

    def __init__(self, num_cores: int) -> None:
        self._end_event, self._start_event = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._hold_threads, args=(num_cores + 1,), daemon=True)
        self._thread.start()
        self._start_event.wait()
        # Otherwise MKL would choose other widths.
        torch.set_num_threads(torch.get_num_threads())

    def _hold_threads(self, num: int) -> None:
        set_process_name("corewise-crowd")
        set_own_width(num)
        try:
            torch.zeros(_NUM_ELEMENTS_FOR_ALL_THREADS).add_(1.0)
        finally:
            # The constructor waits for it.
            self._start_event.set()
        # The OpenMP team ends with this thread.
        self._end_event.wait()

    def end(self) -> None:
        """End them."""
        self._end_event.set()
        self._thread.join()


class Teams:
    """The teams of one allocation; runs hold `lock`, since two plans at a time could deadlock."""

    def __init__(self, cpus: Sequence[int]) -> None:
        self.cpus = tuple(cpus)
        self.pid = os.getpid()
        self.lock = threading.RLock()
        self.num_users = 0
        # Branches of `parallel` are running.
        self.runs_branches = False
        self._teams: Dict[Tuple[int, int], Team] = {}
        self._attached: List[AttachedThreads] = []
        # At most one.
        self._surplus: List[_SurplusThreads] = []
        # Protects starting and ending of threads. Runs do not hold it.
        self._making = threading.RLock()
        self._finalizer = weakref.finalize(self, _end_all, self._teams, self._attached, self._surplus, self.pid)
        _was_used.add(True)

    def provide_team(self, lane: Lane, user: Optional[object] = None) -> Team:
        """Return the team of a lane, started on first use; it stays as long as `user` lives."""
        key = (lane.first, lane.width)
        with self._making:
            if key not in self._teams:
                if not self._finalizer.alive:
                    raise RuntimeError("these teams are closed")
                self._teams[key] = Team(self.cpus[lane.first : lane.first + lane.width])
                # Otherwise MKL would choose other widths.
                torch.set_num_threads(torch.get_num_threads())
                self.update_surplus_threads()
            team = self._teams[key]
            if user is not None:
                team.users.add(user)
            return team

    def attach_threads(self, others: AttachedThreads) -> None:
        """End other threads together with these teams; they must not reference the teams."""
        self._attached.append(others)

    @property
    def has_threads(self) -> bool:
        """Whether any thread was started."""
        return bool(self._teams) or any(others.num_threads() for others in self._attached)

    def update_surplus_threads(self) -> None:
        """Start or end the surplus threads that make idle threads free their cores soon."""
        with self._making:
            if self.has_threads and not self._surplus and has_active_waiting():
                self._surplus.append(_SurplusThreads(len(self.cpus)))
            elif not self.has_threads and self._surplus:
                self._surplus.pop().end()

    def end_unused(self) -> None:
        """End the threads that no plan needs; the caller holds the lock."""
        with self._making:
            for others in self._attached:
                others.end_unused()
            for key in [key for key, team in self._teams.items() if not team.users]:
                self._teams.pop(key).end()
            self.update_surplus_threads()

    @property
    def is_open(self) -> bool:
        """Whether they can run: not closed, and not those of a parent process."""
        return bool(self._finalizer.alive) and self.pid == os.getpid()

    def release(self) -> None:
        """End all threads when the last user has released these teams."""
        # In a forked child the threads, and maybe the locks, belong to the parent.
        if self.pid != os.getpid():
            return
        with _shared_lock:
            self.num_users -= 1
            is_last = self.num_users <= 0
        if is_last:
            self._end_after_runs()

    def is_held_by_caller(self) -> bool:
        """Return whether the calling thread holds the lock."""
        return bool(self.lock._is_owned())  # type: ignore[attr-defined]

    def _end_after_runs(self) -> None:
        """End the threads now if nothing runs, else later; never waits, as garbage collection may call it."""
        if not self.is_held_by_caller() and self.lock.acquire(blocking=False):
            try:
                self._finalizer()
            finally:
                self.lock.release()
            return
        # At interpreter exit no thread can start, and all threads end anyway.
        with contextlib.suppress(RuntimeError):
            threading.Thread(target=self._end_when_free, daemon=True).start()

    def _end_when_free(self) -> None:
        with self.lock:
            self._finalizer()


def _end_all(
    teams: Dict[Tuple[int, int], Team], others: List[AttachedThreads], surplus: List[_SurplusThreads], pid: int
) -> None:
    # A forked child has none of the threads.
    if pid == os.getpid():
        for one in others:
            one.close()
        threads: List[Union[Team, _SurplusThreads]] = [*teams.values(), *surplus]
        for each in threads:
            each.end()
    teams.clear()
    others.clear()
    surplus.clear()


# Not empty once this process, or its parent before the fork, has had teams.
_was_used: Set[bool] = set()
_shared: weakref.WeakValueDictionary[Tuple[int, ...], Teams] = weakref.WeakValueDictionary()
# Reentrant, because garbage collection may release teams at any time.
_shared_lock = threading.RLock()


def provide_shared_teams(cpus: Sequence[int]) -> Teams:
    """Return the teams of these CPUs, shared by all users until all have released them."""
    with _shared_lock:
        teams = _shared.get(tuple(cpus))
        if teams is None or not teams.is_open:
            teams = _shared[tuple(cpus)] = Teams(cpus)
        teams.num_users += 1
        return teams


def _reset_in_child() -> None:
    global _shared_lock
    _shared_lock = threading.RLock()
    _shared.clear()
    # The OpenMP threads belong to the parent: using them would block for ever.
    if _was_used:
        # torch.set_num_threads would start a thread.
        set_own_width(1)


os.register_at_fork(after_in_child=_reset_in_child)
