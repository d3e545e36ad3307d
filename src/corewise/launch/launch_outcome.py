"""The options that a launch runs with, and its outcome."""

import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from corewise.measured.worker.signal_names import name_signal

if TYPE_CHECKING:
    from corewise.launch.pinning_proof import PinningProof

# Shells report a process killed by signal n as exit code 128 + n.
DIED_OF_SIGNAL = 128


@dataclass(frozen=True, kw_only=True)
class LaunchPolicy:
    """The options that ranks are run with."""

    grace_s: float = 10.0
    prefix: bool = True
    log_dir: Path | None = None
    verify: bool = False
    allocation: tuple[int, ...] = ()

    def uses_relay(self, num_ranks: int) -> bool:
        """Return True when output goes through us; a single process gets our descriptors."""
        return num_ranks > 1 or self.log_dir is not None


@dataclass(frozen=True)
class RankEnd:
    """How a rank ended.

    Attributes:
        code: The exit code as shells report it.
        signal: The number of the signal that killed the rank, 0 for none.
        problem: Why the rank could not start, empty when it did.
    """

    rank: int
    pid: int
    code: int
    seconds: float
    signal: int = 0
    problem: str = ""
    ended_by_us: bool = False

    @property
    def killed_by(self) -> str:
        """The name of the signal that killed the rank, empty for none."""
        return name_signal(self.signal) if self.signal else ""


@dataclass(frozen=True)
class LaunchOutcome:
    """How a launch ended.

    Attributes:
        end_signal: The name of the signal that asked the launch to end, empty for none.
        leftovers: Processes that ranks left behind and that we ended.
        has_survivors: Whether some processes could not be killed.
        problems: Outputs and logs that are incomplete.
        was_killed: Whether the launch itself was killed, and with it all ranks.
    """

    ranks: tuple[RankEnd, ...]
    first_failed: RankEnd | None
    end_signal: str
    leftovers: tuple[str, ...]
    has_survivors: bool
    problems: tuple[str, ...]
    proof: "PinningProof | None"
    was_killed: bool = False

    @property
    def code(self) -> int:
        if self.first_failed is not None:
            return self.first_failed.code
        if self.was_killed:
            return DIED_OF_SIGNAL + signal.SIGKILL
        return 1 if self.problems or (self.proof is not None and not self.proof.holds) else 0
