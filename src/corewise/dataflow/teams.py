"""Threads that run tasks: one for each place and width, never resized, pinned within the allocation.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from typing import Callable, Dict, List, Optional, Protocol, Sequence, Set, Tuple, Union

import torch

from corewise.dataflow.own_width import set_own_width
from corewise.dataflow.schedule import Lane
from corewise.dataflow.spinning import stays_awake
from corewise.machine.pinning import set_process_name

Job = Callable[[], None]
_SHARED_BY_ALL = 1 << 17  # numbers to add to: torch gives each thread 32768 of them, and all threads come


class Team:
    """A thread with its OpenMP team; what it is given runs in the order given."""

    def __init__(self, cpus: Sequence[int]) -> None:
        self.cpus = tuple(cpus)
        self._jobs: List[Optional[Job]] = []
        self._wake = threading.Lock()  # a binary semaphore: closed while there is nothing to do
        self._wake.acquire()
        self._guard = threading.Lock()
        self.users: weakref.WeakSet[object] = weakref.WeakSet()  # that will give it jobs later
        self._thread = threading.Thread(target=_serve, args=(self._next, self.cpus), daemon=True)
        self._thread.start()

    def give(self, job: Optional[Job]) -> None:
        """Have a job run, None to end the thread."""
        with self._guard:
            self._jobs.append(job)
            if self._wake.locked():
                self._wake.release()

    def _next(self) -> Optional[Job]:
        while True:
            with self._guard:
                if self._jobs:
                    return self._jobs.pop(0)
            self._wake.acquire()

    def end(self) -> None:
        """Ends the thread once its jobs are done."""
        self.give(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()


_here = threading.local()
_also_in_team: List[Callable[[], bool]] = []


def also_in_team(is_inside: Callable[[], bool]) -> None:
    """Has threads that are not made here, those of the C++ executor, tell that they run a plan."""
    if is_inside not in _also_in_team:
        _also_in_team.append(is_inside)


def in_team() -> bool:
    """Whether the calling thread must not wait for teams: it is one of them, or they may wait for it.

    So it is while it runs a plan or branches itself, and while branches run anywhere: code of the user's,
    which may wait for any thread.
    """
    if getattr(_here, "in_team", False) or any(is_inside() for is_inside in _also_in_team):
        return True
    return any(teams.runs_branches or teams.is_mine() for teams in list(_shared.values()))


def _serve(next_job: Callable[[], Optional[Job]], cpus: Tuple[int, ...]) -> None:
    _here.in_team = True
    set_process_name(f"corewise-{len(cpus)}")
    with contextlib.suppress(OSError):  # taken away meanwhile: the next look at the allocation sees it
        os.sched_setaffinity(0, cpus)  # before the first operator: its OpenMP team inherits this
    set_own_width(len(cpus))
    while True:
        job = next_job()
        if job is None:
            return
        job()
        del job  # holds what its task computed


class Others(Protocol):
    """Threads that are not made here but end with these teams."""

    def num_threads(self) -> int:
        """How many there are."""

    def end_unused(self) -> None:
        """Ends those that nobody will give anything to do."""

    def close(self) -> None:
        """Ends all of them."""


class _Crowd:
    """Idle OpenMP threads, one more than there are cores.

    As long as OpenMP has more threads than cores, its threads wait for less time before they sleep: those of
    a wide team leave their cores to the narrow ones that come next. Without lanes they may wait for longer.
    """

    def __init__(self, num_cores: int) -> None:
        self._over, self._are_there = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._stand, args=(num_cores + 1,), daemon=True)
        self._thread.start()
        self._are_there.wait()
        torch.set_num_threads(torch.get_num_threads())  # else MKL would choose widths of its own

    def _stand(self, num: int) -> None:
        set_process_name("corewise-crowd")
        set_own_width(num)
        try:
            torch.zeros(_SHARED_BY_ALL).add_(1.0)
        finally:
            self._are_there.set()  # who made it waits
        self._over.wait()  # with this thread its team ends

    def end(self) -> None:
        """Ends them."""
        self._over.set()
        self._thread.join()


class Teams:
    """The teams of one allocation; runs hold `lock`: two plans at a time could wait for each other."""

    def __init__(self, cpus: Sequence[int]) -> None:
        self.cpus = tuple(cpus)
        self.pid = os.getpid()
        self.lock = threading.RLock()
        self.num_users = 0
        self.runs_branches = False  # of `parallel`
        self._teams: Dict[Tuple[int, int], Team] = {}
        self._others: List[Others] = []
        self._crowds: List[_Crowd] = []  # one or none
        self._making = threading.RLock()  # threads are made and ended under it; runs do not hold it
        self._finalizer = weakref.finalize(self, _end_all, self._teams, self._others, self._crowds, self.pid)
        _has_run.add(True)

    def team(self, lane: Lane, user: Optional[object] = None) -> Team:
        """The team of a lane, started when first asked for; it stays for a user, others hold the lock."""
        key = (lane.first, lane.width)
        with self._making:
            if key not in self._teams:
                if not self._finalizer.alive:
                    raise RuntimeError("these teams were closed")
                self._teams[key] = Team(self.cpus[lane.first : lane.first + lane.width])
                torch.set_num_threads(torch.get_num_threads())  # else MKL would choose widths of its own
                self.crowd()
            team = self._teams[key]
            if user is not None:
                team.users.add(user)
            return team

    def also_close(self, others: Others) -> None:
        """Has other threads end with these teams; they must not hold them."""
        self._others.append(others)

    @property
    def has_threads(self) -> bool:
        """Whether any of them has been started."""
        return bool(self._teams) or any(others.num_threads() for others in self._others)

    def crowd(self) -> None:
        """Has idle threads give way soon while there are others that may need their cores, and only then."""
        with self._making:
            if self.has_threads and not self._crowds and stays_awake():
                self._crowds.append(_Crowd(len(self.cpus)))
            elif not self.has_threads and self._crowds:
                self._crowds.pop().end()

    def end_unused(self) -> None:
        """Ends the threads that no plan needs; who calls holds the lock."""
        with self._making:
            for others in self._others:
                others.end_unused()
            for key in [key for key, team in self._teams.items() if not team.users]:
                self._teams.pop(key).end()
            self.crowd()

    @property
    def is_open(self) -> bool:
        """Whether they can run: not closed, and not those of a parent process."""
        return bool(self._finalizer.alive) and self.pid == os.getpid()

    def release(self) -> None:
        """Ends all threads when the last who asked for these teams has released them."""
        if self.pid != os.getpid():  # a forked child: the threads are its parent's, and so may be the locks
            return
        with _shared_lock:
            self.num_users -= 1
            is_last = self.num_users <= 0
        if is_last:
            self._end_after_runs()

    def is_mine(self) -> bool:
        """Whether the calling thread holds the lock."""
        return bool(self.lock._is_owned())  # type: ignore[attr-defined]

    def _end_after_runs(self) -> None:
        """Ends the threads, at once where nothing runs; a garbage collector that calls this never waits."""
        if not self.is_mine() and self.lock.acquire(blocking=False):
            try:
                self._finalizer()
            finally:
                self.lock.release()
            return
        with contextlib.suppress(RuntimeError):  # at exit no thread starts, and all end by themselves
            threading.Thread(target=self._end_when_free, daemon=True).start()

    def _end_when_free(self) -> None:
        with self.lock:
            self._finalizer()


def _end_all(
    teams: Dict[Tuple[int, int], Team], others: List[Others], crowds: List[_Crowd], pid: int
) -> None:
    if pid == os.getpid():  # a forked child has none of the threads
        for one in others:
            one.close()
        threads: List[Union[Team, _Crowd]] = [*teams.values(), *crowds]
        for each in threads:
            each.end()
    teams.clear()
    others.clear()
    crowds.clear()


_has_run: Set[bool] = set()  # not empty once there were teams in this process, or in the one it comes from
_shared: weakref.WeakValueDictionary[Tuple[int, ...], Teams] = weakref.WeakValueDictionary()
_shared_lock = threading.RLock()  # a garbage collector may release teams while others are asked for


def shared_teams(cpus: Sequence[int]) -> Teams:
    """The teams of these CPUs, common to all who ask, until all have released them."""
    with _shared_lock:
        found = _shared.get(tuple(cpus))
        if found is None or not found.is_open:
            found = _shared[tuple(cpus)] = Teams(cpus)
        found.num_users += 1
        return found


def _forget_in_child() -> None:
    global _shared_lock
    _shared_lock = threading.RLock()
    _shared.clear()
    if _has_run:  # the OpenMP threads are the parent's too, and whoever calls on them waits for ever
        set_own_width(1)  # torch.set_num_threads would start a thread


os.register_at_fork(after_in_child=_forget_in_child)
