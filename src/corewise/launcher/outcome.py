"""How a launch is to be run, and how it ended."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from corewise.worker.signals import signal_name

if TYPE_CHECKING:
    from corewise.launcher.verify import Proof


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
    problems: tuple[str, ...]
    proof: "Proof | None"

    @property
    def code(self) -> int:
        if self.first_failed is not None:
            return self.first_failed.code
        return 1 if self.proof is not None and not self.proof.holds else 0


def log_file(folder: Path, rank: int) -> Path:
    """Where a rank's output is kept."""
    return folder / f"rank-{rank}.log"
