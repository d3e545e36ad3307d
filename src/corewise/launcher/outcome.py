"""How a launch is to be run, and how it ended."""

import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from corewise.worker.signals import signal_name

if TYPE_CHECKING:
    from corewise.launcher.verify import Proof

DIED_OF_SIGNAL = 128  # and its number, as shells say it


@dataclass(frozen=True, kw_only=True)
class Manner:
    """How ranks are to be run."""

    grace_s: float = 10.0
    prefix: bool = True
    log_dir: Path | None = None
    verify: bool = False
    allocation: tuple[int, ...] = ()

    def relays(self, num_ranks: int) -> bool:
        """Whether output goes through us; a single process gets our own descriptors."""
        return num_ranks > 1 or self.log_dir is not None


@dataclass(frozen=True)
class RankEnd:
    """How a rank ended."""

    rank: int
    pid: int
    code: int  # as shells say it
    seconds: float
    signal: int = 0  # that killed it
    problem: str = ""  # why it could not start
    ended_by_us: bool = False

    @property
    def killed_by(self) -> str:
        """The name of the signal that killed it, empty for none."""
        return signal_name(self.signal) if self.signal else ""


@dataclass(frozen=True)
class Outcome:
    """How a launch ended."""

    ranks: tuple[RankEnd, ...]
    first_failed: RankEnd | None
    asked_to_end: str  # the signal that told us to, empty for none
    leftovers: tuple[str, ...]  # processes that ranks left behind and that we ended
    stubborn: bool  # whether some would not die
    problems: tuple[str, ...]  # outputs and logs that are not whole
    proof: "Proof | None"
    was_killed: bool = False  # the launch itself, and with it all ranks

    @property
    def code(self) -> int:
        if self.first_failed is not None:
            return self.first_failed.code
        if self.was_killed:
            return DIED_OF_SIGNAL + signal.SIGKILL
        return 1 if self.problems or (self.proof is not None and not self.proof.holds) else 0
