"""The state of a search: a judgement for each setting, and the best so far."""

from dataclasses import dataclass, field
from typing import Protocol

from corewise.tuning.search.rejection_causes import RejectionCause
from corewise.tuning.search.setting_space import Setting, UntriedChoice


@dataclass(frozen=True)
class Judgement:
    """The outcome of one setting.

    Attributes:
        outcome: default, won, lost, tied, latency or rejected.
        score: Log of the throughput ratio to the default, chained over the incumbents it was raced against.
        half_width: Half of the confidence interval of the race that judged it.
        latency_score: Log of the latency ratio to the default, chained in the same manner.
        check_error: Error of the numerical check; None if there was no check.
        compile_s: The part of `start_s` that was spent compiling.
        setup_s: The part of `start_s` from a warm parent to the first warm-up step; 0 if it is unknown.
        category: Why it was rejected, as one of the failure categories of trials.
        against: The incumbent that it was raced against.
    """

    setting: Setting
    outcome: str
    score: float = 0.0
    half_width: float = 0.0
    latency_score: float = 0.0
    throughput: float = 0.0
    latency_s: float = 0.0
    check_error: float | None = None
    start_s: float = 0.0
    compile_s: float = 0.0
    setup_s: float = 0.0
    category: str = ""
    reason: str = ""
    against: Setting = ()


class Watcher(Protocol):
    """An observer of a search; called between measurements."""

    def report_candidate(self, setting: Setting) -> None: ...
    def report_judgement(self, judgement: Judgement, incumbent: Setting, score: float) -> None: ...


@dataclass
class SearchState:
    """The progress of a search; `finished` is False if the deadline ended it."""

    best: Setting
    judgements: dict[Setting, Judgement] = field(default_factory=dict)
    finished: bool = False
    untried: tuple[UntriedChoice, ...] = ()
    causes: list[RejectionCause] = field(default_factory=list)

    @property
    def score(self) -> float:
        return self.judgements[self.best].score if self.best in self.judgements else 0.0

    def is_rejected(self, setting: Setting) -> bool:
        """Return whether a setting was tried and cannot be used."""
        return setting in self.judgements and self.judgements[setting].outcome == "rejected"

    def find_tied(self) -> tuple[Setting, ...]:
        """Return the settings that do not differ significantly from the best, fastest first."""
        best = self.judgements.get(self.best)
        tied = []
        for each in self.judgements.values():
            close = each.outcome in ("tied", "won", "default") and each.setting != self.best
            if best and close and abs(each.score - best.score) <= max(each.half_width, best.half_width):
                tied.append(each)
        return tuple(each.setting for each in sorted(tied, key=lambda each: -each.score))
