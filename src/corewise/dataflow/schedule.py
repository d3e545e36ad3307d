"""What runs when, where and how wide: the words planner and executors share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Tuple

CALLER = 0  # lane 0 is the calling thread, at full width


@dataclass(frozen=True)
class Task:
    """Calls that run one after the other on one team; tasks are numbered in program order."""

    calls: Tuple[int, ...]  # numbers in the program
    needs: Tuple[int, ...]  # tasks that must have ended


@dataclass(frozen=True)
class Lane:
    """A thread that runs tasks, with its own OpenMP team that never changes its width.

    Its CPUs are `width` of the allocation from number `first` on (numbers within the allocation's list, not
    the kernel's). Lanes may share CPUs: a plan never runs two of those at a time.
    """

    first: int
    width: int
    # The calling thread may run it itself, at width 1 beside its full width (a team that goes N, 1, N keeps
    # its threads). An executor may as well give it a thread of its own. Lane 0 is the caller's anyway.
    by_caller: bool = False


@dataclass(frozen=True)
class Step:
    """One task in a lane; `after` are the tasks that must have ended first, for data or for cores."""

    task: int
    lane: int
    after: Tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """A schedule: each lane runs its steps in the order given here."""

    lanes: Tuple[Lane, ...]  # lane 0 is the caller
    steps: Tuple[Step, ...]
    expected_s: float
