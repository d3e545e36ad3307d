"""What a search has found: a judgement for each setting, and the best so far."""

from dataclasses import dataclass, field
from typing import Protocol

from corewise.tuner.space import LeftOut, Setting


@dataclass(frozen=True)
class Judged:
    """What became of one setting; logarithms are relative to the default."""

    setting: Setting
    outcome: str  # default | won | lost | tied | latency | rejected
    score: float = 0.0  # log of throughput over the default's, through the incumbents it was raced against
    half_width: float = 0.0  # of the race that judged it
    latency_score: float = 0.0  # log of latency over the default's, through the same incumbents
    throughput: float = 0.0
    latency_s: float = 0.0
    check_error: float | None = None  # None: its numbers were not checked
    start_s: float = 0.0
    compile_s: float = 0.0  # of it
    kind: str = ""  # of a rejection
    reason: str = ""
    against: Setting = ()


class Watcher(Protocol):
    """Who follows a search; called between measurements."""

    def trying(self, setting: Setting) -> None: ...
    def judged(self, found: Judged, incumbent: Setting, score: float) -> None: ...


@dataclass
class Found:
    """Where a search has come to."""

    best: Setting
    judged: dict[Setting, Judged] = field(default_factory=dict)
    finished: bool = False  # False: ended by the deadline
    untried: tuple[LeftOut, ...] = ()

    @property
    def score(self) -> float:
        return self.judged[self.best].score if self.best in self.judged else 0.0

    def is_rejected(self, setting: Setting) -> bool:
        """True when a setting was tried and cannot be used."""
        return setting in self.judged and self.judged[setting].outcome == "rejected"

    def tied(self) -> tuple[Setting, ...]:
        """Settings raced against the best, or beaten by it, of which no difference was shown."""
        best = self.judged.get(self.best)
        found = []
        for each in self.judged.values():
            close = each.outcome in ("tied", "won", "default") and each.setting != self.best
            if best and close and abs(each.score - best.score) <= max(each.half_width, best.half_width):
                found.append(each)
        return tuple(each.setting for each in sorted(found, key=lambda each: -each.score))
