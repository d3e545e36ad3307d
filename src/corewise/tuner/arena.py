"""Where settings are raced: the same search runs on this machine and on a recorded grid."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from corewise.tuner.space import Setting


@dataclass(frozen=True)
class Sampling:
    """What one short measurement of an entrant gave."""

    throughput: float  # samples per second
    latency_s: float  # median of a step
    check_error: float | None = None  # None: its numbers were not checked
    memory_bytes: float = 0.0
    compile_s: float = 0.0


def largest_error(errors: Iterable[float | None]) -> float | None:
    """The largest of those that a check gave; None where none was made."""
    return max((each for each in errors if each is not None), default=None)


class Rejected(Exception):
    """A setting that cannot win: it does not exist here, fails, or computes wrong numbers."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind, self.reason = kind, reason


class Entrant(Protocol):
    """A setting that is started, checked and warm, and stands still between samplings."""

    setting: Setting
    start_s: float  # what it took to come so far

    def sample(self) -> Sampling:
        """One more short measurement; raises Rejected when the entrant has failed."""
        ...

    def leave(self) -> None:
        """End it."""
        ...


class Arena(Protocol):
    """Starts entrants and tells the time."""

    def enter(self, setting: Setting, limit_s: float) -> Entrant:
        """The started entrant; raises Rejected when it does not come to its first sampling in time."""
        ...

    def expect(self, settings: Iterable[Setting]) -> None:
        """Told which setting enters next and which are likely to follow; may prepare for them."""
        ...

    def now(self) -> float:
        """Seconds on the clock that deadlines are given on."""
        ...
