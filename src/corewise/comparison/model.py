"""What a comparison holds, as values: one part computes them from records, others draw them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from corewise.comparison.sides import read_json

Verdict = Literal["faster", "slower", "same"]
VERDICTS: tuple[Verdict, ...] = ("slower", "faster", "same")


@dataclass(frozen=True, kw_only=True)
class SideFacts:
    """One side: where it comes from and how much it holds."""

    store: str
    selected: str  # "math=vendor" when only a part of the store counts, else empty
    num_records: int
    num_ok: int
    measured_from: str  # ISO 8601, UTC; empty when unknown
    measured_to: str
    notices: Sequence[str] = ()  # damage, trials measured more than once


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One thing in which the environments of the two sides differ, or one side differs from itself."""

    group: str  # machine, versions, protocol, env, corewise
    name: str
    a_values: Sequence[str]  # all that occur, most frequent first
    b_values: Sequence[str]
    num_pairs: int  # matched trials in which the two sides differ; 0 when only a side disagrees with itself

    @property
    def within_a(self) -> bool:
        """True when side A's own records disagree."""
        return len(self.a_values) > 1 and self.group != "env"  # variables follow the trials' threads

    @property
    def within_b(self) -> bool:
        """True when side B's own records disagree."""
        return len(self.b_values) > 1 and self.group != "env"


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedTrial:
    """One trial measured on both sides. `ratio` = time of B / time of A; the verdict speaks of B."""

    name: str  # what sets it apart from the other pairs, in words
    a_trial_id: str
    b_trial_id: str
    params_json: bytes  # of side A
    verdict: Verdict
    undecided: bool  # "same" only for want of evidence
    regression: bool  # slower, and by more than the threshold
    reason: str
    ratio: float | None
    low: float | None
    high: float | None
    p_value: float | None  # corrected for looks while measuring
    adjusted_p_value: float | None  # corrected for the number of trials too
    effect_size: float | None  # Cliff's delta
    method: str
    interleaved: bool
    a_time_s: float | None  # of the processes that were compared: geometric mean with Welch's t, else median
    b_time_s: float | None
    a_num_processes: int  # that were compared
    b_num_processes: int
    a_num_disturbed: int  # processes that count although others disturbed them, or were left out for it
    b_num_disturbed: int
    in_doubt: bool  # the disturbed processes that were compared may account for the verdict

    @property
    def params(self) -> dict[str, Any]:
        """The parameters as side A has them."""
        return read_json(self.params_json)


@dataclass(frozen=True, kw_only=True)
class OneSided:
    """A trial that one side measured and the other did not."""

    name: str
    a_trial_id: str  # empty where the side has no record at all
    b_trial_id: str
    reason: str  # of the failure or the skip, or empty


@dataclass(frozen=True, kw_only=True)
class Summary:
    """All pairs in a few numbers and one sentence."""

    disturbed: Sequence[str]  # sentences on the trials that others disturbed; to be said first
    sentence: str
    num_trials: int
    num_faster: int
    num_slower: int
    num_same: int  # those of which the data cannot tell are counted apart
    num_undecided: int
    num_broken: int
    num_fixed: int
    num_regressions: int  # slower beyond the threshold, and broken
    num_disturbed_a: int  # trials of which A has disturbed processes
    num_disturbed_b: int
    num_in_doubt: int  # differences for which disturbed processes may account
    ratio: float | None  # geometric mean over the pairs
    low: float | None
    high: float | None
    notes: Sequence[str] = ()  # what these data cannot show, and what could


@dataclass(frozen=True, kw_only=True)
class Rule:
    """How the verdicts were reached."""

    metric: str  # step_s, or seconds per sample where the sides' steps hold different numbers of samples
    confidence: float
    margin: float  # smallest difference called one across occasions
    threshold: float  # smallest slowdown that counts as a regression
    correction: str = "Benjamini-Hochberg"
    ignore_disturbed: bool = False  # disturbed processes decide nothing


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Side B against side A."""

    a: SideFacts
    b: SideFacts
    rule: Rule
    differences: Sequence[Difference]
    common: Mapping[str, Any]  # parameters that all pairs share, as far as a reader must know them
    trials: Sequence[ComparedTrial]  # worst first
    broken: Sequence[OneSided]  # ok in A, failed in B
    fixed: Sequence[OneSided]  # failed in A, ok in B
    both_failed: Sequence[OneSided]
    only_a: Sequence[OneSided]  # measured in A; B has no such trial, or skipped it
    only_b: Sequence[OneSided]
    summary: Summary
