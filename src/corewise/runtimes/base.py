"""What a runtime offers the worker: warm up once, then turn a trial into a job.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Mapping, Optional, Protocol


class Infeasible(Exception):
    """Raised by `prepare` when the point does not exist here; its text is the reason."""


class NotNow(Infeasible):
    """Raised when memory or disk is not free at this moment: the next `corewise run` tries again."""


class MissingPart(Exception):
    """Raised when a framework or library is not installed; its text says what to install."""


class WorkloadError(Exception):
    """Raised when a user's factory fails or breaks its contract."""


@dataclasses.dataclass(frozen=True)
class Check:
    """The outcome of a numerical check: the largest error seen and what is allowed."""

    error: float
    tolerance: float
    reference: str  # what the numbers were compared with

    @property
    def passed(self) -> bool:
        return self.error <= self.tolerance  # NaN fails


@dataclasses.dataclass(frozen=True)
class RankContext:
    """Who this rank is among its trial's ranks."""

    rank: int
    num_ranks: int
    rendezvous: str  # a folder of this trial's own, on this node
    num_cpus: int
    cache: str = ""  # a folder that the runs of one trial share, for what a compiler leaves
    host_free_bytes: Optional[int] = None  # of memory, before any rank of this run began


class Job(Protocol):
    """A workload ready to step."""

    samples_per_step: float
    independent: bool  # replicas (True) or ranks that must step together (False)

    def check(self) -> Check:
        """The numerical check, run once before any timing."""
        ...

    def step(self) -> None:
        """One whole step, finished on the device when it returns."""
        ...

    def agree(self, flag: bool) -> bool:
        """True when every rank says True; local when ranks are independent."""
        ...

    def facts(self) -> Mapping[str, Any]:
        """Settings read back from the framework after warm-up."""
        ...

    def loss(self) -> Optional[float]:
        """The training loss of the last step, or None."""
        ...

    def close(self) -> None: ...


class ReplicaJob:
    """What jobs share whose ranks know nothing of each other."""

    independent = True

    def agree(self, flag: bool) -> bool:
        return flag

    def loss(self) -> Optional[float]:
        return None

    def close(self) -> None:
        return None


class Runtime(Protocol):
    """A framework as the worker sees it."""

    def warm(self) -> None:
        """Import the framework and do nothing more: no operator, no device."""
        ...

    def warm_for(self, params: Mapping[str, Any]) -> None:
        """Import what trials like this one need besides; called in the parent before it forks."""
        ...

    def versions(self) -> Mapping[str, str]: ...

    def prepare(self, params: Mapping[str, Any], context: RankContext) -> Job:
        """Set threads, build the workload and its input."""
        ...
