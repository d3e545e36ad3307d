"""The C++ module as Python sees it.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, List, Mapping, Optional, Protocol, Tuple

BoxedCall = Tuple[str, str, Tuple[Any, ...], Mapping[str, Any], Tuple[int, ...], bool]
# Task, thread, lane, width or 0, tasks before it, and whether idle threads of one core may take it.
NativeStep = Tuple[int, int, int, int, List[int], bool]
NativeSchedule = Tuple[List[List[int]], List[NativeStep]]  # CPUs of each thread, and the steps


class NativeLanes(Protocol):
    """C++ threads, one for each set of CPUs."""

    def usable(self) -> bool:
        """Whether they run: not closed, and not those of a parent process."""

    def num_threads(self) -> int:
        """How many there are."""

    def end_unused(self) -> None:
        """Ends those that no executor needs any more."""

    def close(self) -> None:
        """Ends them, after the run that is under way."""


class NativeModule(Protocol):
    """What executor.cpp and module.cpp offer; graphs, executors and values are opaque."""

    __file__: str

    def Lanes(self) -> NativeLanes:
        """Threads, none yet."""

    def graph(
        self,
        num_values: int,
        calls: List[BoxedCall],
        brought: List[int],
        outputs: List[int],
        may_repeat: bool,
        ref: type,
        /,
    ) -> object:
        """The calls, boxed."""

    def executor(
        self,
        graph: object,
        lanes: NativeLanes,
        tasks: List[List[int]],
        cpus: List[List[int]],
        steps: List[NativeStep],
        back: Optional[NativeSchedule],
        /,
    ) -> object:
        """The graph by a schedule; with one for the way back it can train."""

    def run(self, executor: object, values: List[Any], /) -> None:
        """Puts the outputs in their places of the list."""

    def timeline(self, executor: object, is_backward: bool, /) -> List[Tuple[int, int, float, float]]:
        """Task, lane, start and end in seconds, of the last run's steps."""

    def record(self, graph: object, values: List[Any], /) -> object:
        """All values of one run on the calling thread, held for measuring."""

    def measure(
        self,
        lanes: NativeLanes,
        graph: object,
        recorded: object,
        calls: List[int],
        before: List[int],
        cpus: List[int],
        repeats: int,
        limit_s: float,
        /,
    ) -> List[int]:
        """Nanoseconds of the calls on these CPUs, each time after other calls that are not timed."""

    def measure_training(
        self, executor: object, recorded: object, task: int, cpus: List[int], repeats: int, limit_s: float, /
    ) -> Tuple[List[int], List[int]]:
        """Nanoseconds of a task's forward and backward on these CPUs."""

    def contents(self, tensors: List[Any], /) -> Optional[List[int]]:
        """A number for what each tensor holds, made of every byte; None where one cannot be looked at."""

    def is_inside_a_run(self) -> bool:
        """Whether the calling thread is running a plan: one of the lanes, or who called it."""
