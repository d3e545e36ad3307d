"""The values of a comparison. One module computes them from records, others render them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from corewise.analysis.comparison.sides import load_json

Verdict = Literal["faster", "slower", "same"]
VERDICTS: tuple[Verdict, ...] = ("slower", "faster", "same")


@dataclass(frozen=True, kw_only=True)
class SideFacts:
    """The origin and size of one side.

    Attributes:
        selected: for example "math=vendor" if only a part of the store counts, otherwise empty.
        measured_from: ISO 8601 in UTC; empty if unknown.
        notices: damage, and trials that were measured more than once.
    """

    store: str
    selected: str
    num_records: int
    num_ok: int
    measured_from: str
    measured_to: str
    notices: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A field in which the environments of the two sides differ, or the records of one side.

    Attributes:
        group: machine, versions, protocol, env or corewise.
        a_values: all values of side A, most frequent first.
        num_pairs: matched trials in which the sides differ; 0 if only the records of one side differ.
    """

    group: str
    name: str
    a_values: Sequence[str]
    b_values: Sequence[str]
    num_pairs: int

    @property
    def within_a(self) -> bool:
        """True if the records of side A differ; variables do not count, because they depend on the trial."""
        return len(self.a_values) > 1 and self.group != "env"

    @property
    def within_b(self) -> bool:
        """True if the records of side B differ."""
        return len(self.b_values) > 1 and self.group != "env"


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedTrial:
    """One trial measured on both sides. `ratio` = time of B / time of A; the verdict is about B.

    Attributes:
        name: the parameters that distinguish it from other pairs.
        params_json: the parameters of side A.
        undecided: "same" only because the evidence is too weak.
        regression: slower by more than the threshold.
        p_value: corrected for optional stopping.
        adjusted_p_value: also corrected for the number of trials.
        effect_size: Cliff's delta.
        a_time_s: geometric mean of the compared processes with Welch's t, otherwise their median.
        a_num_processes: compared processes.
        a_num_disturbed: disturbed processes, whether they were compared or left out.
        in_doubt: the disturbed processes may explain the verdict.
    """

    name: str
    a_trial_id: str
    b_trial_id: str
    params_json: bytes
    verdict: Verdict
    undecided: bool
    regression: bool
    reason: str
    ratio: float | None
    low: float | None
    high: float | None
    p_value: float | None
    adjusted_p_value: float | None
    effect_size: float | None
    method: str
    interleaved: bool
    a_time_s: float | None
    b_time_s: float | None
    a_num_processes: int
    b_num_processes: int
    a_num_disturbed: int
    b_num_disturbed: int
    in_doubt: bool

    @property
    def params(self) -> dict[str, Any]:
        """The parameters of side A."""
        return load_json(self.params_json)


@dataclass(frozen=True, kw_only=True)
class OneSidedTrial:
    """A trial that only one side measured.

    Attributes:
        a_trial_id: empty if the side has no record.
        reason: why it failed or was skipped, or empty.
    """

    name: str
    a_trial_id: str
    b_trial_id: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class ComparisonSummary:
    """All pairs in a few numbers and one sentence.

    Attributes:
        disturbed: sentences about disturbed trials, to be shown first.
        num_same: without the undecided trials.
        num_regressions: trials that are slower beyond the threshold, and broken ones.
        num_disturbed_a: trials with disturbed processes on side A.
        num_in_doubt: differences that disturbed processes may explain.
        ratio: geometric mean over the pairs.
        notes: the limits of the data, and how to overcome them.
    """

    disturbed: Sequence[str]
    sentence: str
    num_trials: int
    num_faster: int
    num_slower: int
    num_same: int
    num_undecided: int
    num_broken: int
    num_fixed: int
    num_regressions: int
    num_disturbed_a: int
    num_disturbed_b: int
    num_in_doubt: int
    ratio: float | None
    low: float | None
    high: float | None
    notes: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class VerdictRule:
    """The rule behind the verdicts.

    Attributes:
        metric: step_s, or seconds per sample if the steps of the sides hold different numbers of samples.
        margin: the smallest relevant difference between measurements on different occasions.
        threshold: the smallest slowdown that counts as a regression.
        ignore_disturbed: leave disturbed processes out.
    """

    metric: str
    confidence: float
    margin: float
    threshold: float
    correction: str = "Benjamini-Hochberg"
    ignore_disturbed: bool = False


@dataclass(frozen=True, kw_only=True)
class StoreComparison:
    """Side B compared with side A.

    Attributes:
        common: notable parameters that all pairs share.
        trials: worst first.
        broken: ok in A, failed in B.
        fixed: failed in A, ok in B.
        only_a: measured in A; missing or skipped in B.
    """

    a: SideFacts
    b: SideFacts
    rule: VerdictRule
    differences: Sequence[Difference]
    common: Mapping[str, Any]
    trials: Sequence[ComparedTrial]
    broken: Sequence[OneSidedTrial]
    fixed: Sequence[OneSidedTrial]
    both_failed: Sequence[OneSidedTrial]
    only_a: Sequence[OneSidedTrial]
    only_b: Sequence[OneSidedTrial]
    summary: ComparisonSummary
