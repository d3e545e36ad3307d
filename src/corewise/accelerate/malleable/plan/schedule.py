"""The data types that planner and executors share: tasks, lanes, steps, plans."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Tuple

# Lane 0 is the calling thread, at full width.
CALLER = 0


@dataclass(frozen=True)
class OperatorTask:
    """Calls that run one after the other on one team; tasks are numbered in program order."""

    # Numbers of the calls in the program.
    calls: Tuple[int, ...]
    # Tasks that must have ended.
    needs: Tuple[int, ...]


@dataclass(frozen=True)
class Lane:
    """A thread that runs tasks, with an OpenMP team of constant width.

    Its CPUs are `width` of the allocation, starting at index `first` of the allocation's list. Lanes may
    share CPUs: a plan never runs two of those at the same time.
    """

    first: int
    width: int
    # The calling thread may run this lane, at width 1 besides its full width: a team that alternates between
    # N and 1 keeps its threads. An executor may also start a thread for it. Lane 0 always belongs to the
    # caller.
    by_caller: bool = False


@dataclass(frozen=True)
class LaneStep:
    """One task in a lane; `after` are the tasks that must have ended, for data or for cores."""

    task: int
    lane: int
    after: Tuple[int, ...]


@dataclass(frozen=True)
class LanePlan:
    """A schedule: each lane runs its steps in this order."""

    # Lane 0 is the caller.
    lanes: Tuple[Lane, ...]
    steps: Tuple[LaneStep, ...]
    expected_s: float
