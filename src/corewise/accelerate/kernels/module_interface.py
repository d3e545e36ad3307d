"""The interface of the C++ module as Python protocols.

Measured side: standard library only, Python 3.9. The names are those of the C++ module.
"""

from __future__ import annotations

from typing import Any, List, Mapping, Optional, Protocol, Tuple

BoxedCall = Tuple[str, str, Tuple[Any, ...], Mapping[str, Any], Tuple[int, ...], bool]
# Task, thread, lane, width or 0, tasks before it, and whether idle threads of one core may take it.
NativeStep = Tuple[int, int, int, int, List[int], bool]
# CPUs of each thread, and the steps.
NativeSchedule = Tuple[List[List[int]], List[NativeStep]]


class NativeLanes(Protocol):
    """C++ threads, one for each set of CPUs."""

    def usable(self) -> bool:
        """Return whether they can run: not closed, and not those of a parent process."""

    def num_threads(self) -> int:
        """Return the number of threads."""

    def end_unused(self) -> None:
        """End those that no executor needs any more."""

    def close(self) -> None:
        """End all threads after the current run."""


class NativeModule(Protocol):
    """The functions of executor.cpp and module.cpp; graphs, executors and values are opaque."""

    __file__: str

    def Lanes(self) -> NativeLanes:
        """Create lanes without threads."""

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
        """Box the calls."""

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
        """Bind the graph to a schedule; with a backward schedule it can train."""

    def run(self, executor: object, values: List[Any], /) -> None:
        """Put the outputs in their places of the list."""

    def timeline(self, executor: object, is_backward: bool, /) -> List[Tuple[int, int, float, float]]:
        """Return task, lane, start and end in seconds, of the last run's steps."""

    def record(self, graph: object, values: List[Any], /) -> object:
        """Run once on the calling thread and keep all values for measuring."""

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
        """Time the calls on these CPUs in nanoseconds, each time after other calls that are not timed."""

    def measure_training(
        self, executor: object, recorded: object, task: int, cpus: List[int], repeats: int, limit_s: float, /
    ) -> Tuple[List[int], List[int]]:
        """Time a task's forward and backward pass on these CPUs in nanoseconds."""

    def contents(self, tensors: List[Any], /) -> Optional[List[int]]:
        """Hash all bytes of each tensor; None if one cannot be read."""

    def is_inside_a_run(self) -> bool:
        """Return whether the calling thread runs a plan, as a lane or as the caller."""
