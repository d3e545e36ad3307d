"""Compares a breakdown with the machine's ceilings: the minimum time of each primitive and category."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from corewise.machine.ceilings.rate_format import find_compute_format
from corewise.machine.ceilings.table import Ceilings, Roof
from corewise.measured.parameters import TrialParameters
from corewise.measured.workloads.model_breakdown import BETWEEN, Breakdown, Primitive, Share, compute_shares

# Expected range of the sum of the primitives over the step.
WITHIN = (0.9, 1.1)
# A category gets a ceiling if at least this share of its time has one.
MIN_JUDGED = 0.9
FLOATS = ("float64", "float32", "tf32", "bfloat16", "float16")


@dataclass(frozen=True)
class JudgedPrimitive:
    """A primitive, and the minimum time of all its calls on this machine.

    Attributes:
        share: Share of the step, by the time in the model.
        ceiling_s: None if unknown: the work is not counted, or the primitive moves no data.
        limit: "memory" or "compute".
    """

    primitive: Primitive
    share: float
    ceiling_s: float | None = None
    limit: str = ""

    @property
    def fraction(self) -> float | None:
        """The share of the attainable rate; above 1 if data came from a cache or the ceiling is too low."""
        known = self.ceiling_s is not None and self.primitive.in_model_s > 0
        return self.ceiling_s / self.primitive.in_model_s if known and self.ceiling_s is not None else None

    def to_json(self) -> dict[str, Any]:
        """Convert to plain JSON values."""
        own = self.primitive
        return {
            **asdict(own),
            "share": self.share,
            "model_over_alone": own.model_over_alone,
            "gflop_per_s": own.gflop_per_s,
            "gbyte_per_s": own.gbyte_per_s,
            "ceiling_s": self.ceiling_s,
            "limit": self.limit,
            "fraction_of_ceiling": self.fraction,
        }


@dataclass(frozen=True)
class JudgedShare:
    """A category of work, and the minimum time of its primitives with a known ceiling.

    `ceiling_s` is None if too little of the category is known; `judged_s` is the time in the model of the
    primitives with a known ceiling.
    """

    share: Share
    ceiling_s: float | None = None
    judged_s: float = 0.0

    @property
    def fraction(self) -> float | None:
        """The share of the attainable rate over the primitives with a known ceiling."""
        if self.ceiling_s is None or self.judged_s <= 0:
            return None
        return self.ceiling_s / self.judged_s

    def to_json(self) -> dict[str, Any]:
        """Convert to plain JSON values."""
        own = {"ceiling_s": self.ceiling_s, "judged_s": self.judged_s, "fraction_of_ceiling": self.fraction}
        return {**asdict(self.share), **own}


@dataclass(frozen=True, kw_only=True)
class PrimitivesAnswer:
    """The full result on a model's primitives.

    Attributes:
        subject: The model as the user named it.
        asked: For example "batch 16", "2 threads".
        options: Arguments of the command that repeats the measurement.
        ceilings_of: When and where the ceilings were measured; empty without ceilings.
        ceilings_are_busy: The ceilings were measured on a busy machine and are too low.
    """

    subject: str
    asked: Sequence[str]
    options: Sequence[str]
    machine: str
    versions: Mapping[str, str]
    params: TrialParameters
    breakdown: Breakdown
    primitives: Sequence[JudgedPrimitive]
    shares: Sequence[JudgedShare]
    ceilings_of: str
    ceilings_are_busy: bool = False

    @property
    def is_within(self) -> bool | None:
        """True if the primitives alone add up to the step; None if the breakdown is doubtful."""
        if self.breakdown.is_doubtful:
            return None
        return WITHIN[0] <= self.breakdown.sum_over_step <= WITHIN[1]

    def to_json(self) -> dict[str, Any]:
        """Convert to plain JSON values."""
        breakdown = self.breakdown
        return {
            "subject": self.subject,
            "params": replace(self.params, breakdown=None).to_mapping(),
            "machine": self.machine,
            "versions": dict(self.versions),
            "step_s": breakdown.step_s,
            "in_model_s": breakdown.in_model_s,
            "alone_s": breakdown.alone_s,
            "sum_over_step": breakdown.sum_over_step,
            "sum_over_step_by_round": list(breakdown.sums_over_steps),
            "within": self.is_within,
            "disturbed": breakdown.is_disturbed,
            "doubtful": breakdown.is_doubtful,
            "num_repeated": breakdown.num_repeated,
            "between_operators_s": breakdown.between_s,
            "watched_step_s": breakdown.watched_step_s,
            "call_cost_s": breakdown.call_cost_s,
            "num_checked": breakdown.num_checked,
            "check_error": breakdown.check_error,
            "cache_bytes": breakdown.cache_bytes,
            "minor_faults_per_step": breakdown.minor_faults_per_step,
            "new_pages_s": breakdown.new_pages_s,
            "num_threads": breakdown.num_threads,
            "ceilings_of": self.ceilings_of,
            "ceilings_are_busy": self.ceilings_are_busy,
            "shares": [each.to_json() for each in self.shares],
            "primitives": [each.to_json() for each in self.primitives],
            "notes": list(breakdown.notes),
        }


def judge_primitives(breakdown: Breakdown, params: TrialParameters, ceilings: Ceilings | None) -> list[JudgedPrimitive]:
    """Compare each primitive with its ceiling, in the order of the breakdown."""
    roofs: dict[str, Roof] = {}
    judged = []
    for each in breakdown.primitives:
        share = each.in_model_s / breakdown.step_s
        attainable = None
        if ceilings is not None and each.flops is not None and each.traffic_bytes > 0:
            dtype = _find_rate_format(each, params)
            if dtype not in roofs:
                roofs[dtype] = ceilings.find_roof(
                    dtype, params.device.value, threads=breakdown.num_threads, placement=params.placement.value
                )
            attainable = roofs[dtype].compute_attainable(each.flops, each.traffic_bytes)
        if attainable is None:
            judged.append(JudgedPrimitive(each, share))
        else:
            judged.append(JudgedPrimitive(each, share, attainable.seconds * each.num_calls, attainable.limit))
    return judged


def judge_shares(breakdown: Breakdown, primitives: Sequence[JudgedPrimitive]) -> list[JudgedShare]:
    """Compare each category of work with the sum of its ceilings."""
    judged = []
    for share in compute_shares(breakdown):
        own = [each for each in primitives if each.primitive.category == share.category]
        known = [(each.ceiling_s, each.primitive.in_model_s) for each in own if each.ceiling_s is not None]
        judged_s = sum(in_model_s for _, in_model_s in known)
        is_known = known and share.category != BETWEEN and judged_s >= MIN_JUDGED * share.in_model_s
        judged.append(JudgedShare(share, sum(least_s for least_s, _ in known) if is_known else None, judged_s))
    return judged


def _find_rate_format(primitive: Primitive, params: TrialParameters) -> str:
    """Return the number format whose ceiling applies; float32 may be computed in another."""
    if primitive.dtype not in FLOATS:
        # Integers are only moved.
        return "float32"
    return find_compute_format(primitive.dtype, params.to_mapping(), convolves=primitive.category == "convolution")
