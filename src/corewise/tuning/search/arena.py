"""The arena interface, which lets the same search run on this machine and on a recorded grid."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from corewise.tuning.search.setting_space import Setting


@dataclass(frozen=True)
class Sampling:
    """One short measurement of an entrant.

    Attributes:
        throughput: Samples per second.
        latency_s: Median duration of a step.
        check_error: Error of the numerical check; None if there was no check.
        setup_s: Seconds from a warm parent to the first warm-up step, as far as known.
    """

    throughput: float
    latency_s: float
    check_error: float | None = None
    memory_bytes: float = 0.0
    compile_s: float = 0.0
    setup_s: float = 0.0


def find_largest_error(errors: Iterable[float | None]) -> float | None:
    """Return the largest error of a numerical check, or None if there was no check."""
    return max((each for each in errors if each is not None), default=None)


class Rejection(Exception):
    """Raised for a setting that cannot win: it is infeasible here, fails, or computes wrong results."""

    def __init__(self, category: str, reason: str) -> None:
        super().__init__(reason)
        self.category, self.reason = category, reason


class Entrant(Protocol):
    """A setting that is started, checked and warm, and paused between samplings.

    `start_s` is the time it took to get there.
    """

    setting: Setting
    start_s: float

    def sample(self) -> Sampling:
        """Take one more short measurement; raise Rejection if the entrant has failed."""
        ...

    def leave(self) -> None:
        """Terminate the entrant."""
        ...


class Arena(Protocol):
    """Starts entrants and keeps the clock."""

    def enter(self, setting: Setting, limit_s: float) -> Entrant:
        """Start an entrant; raise Rejection if it is not ready for its first sampling in time."""
        ...

    def prepare(self, settings: Iterable[Setting]) -> None:
        """Prepare for the setting that enters next and for those that are likely to follow."""
        ...

    def read_clock(self) -> float:
        """Return the time in seconds, on the clock of all deadlines."""
        ...
