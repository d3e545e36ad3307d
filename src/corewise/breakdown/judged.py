"""A breakdown beside the machine's ceilings: the least time of each primitive and each kind of work."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from corewise.machine.ceilings import Ceilings, Roof
from corewise.spec.rate_format import computed_in
from corewise.workloads.breakdown import BETWEEN, Breakdown, Primitive, Share, shares

WITHIN = (0.9, 1.1)  # where the sum of the primitives should lie, over the step
MIN_JUDGED = 0.9  # of a kind of work, by time, from which on a ceiling tells of it
FLOATS = ("float64", "float32", "tf32", "bfloat16", "float16")


@dataclass(frozen=True)
class JudgedPrimitive:
    """A primitive, and the least time that all its calls could take on this machine."""

    primitive: Primitive
    share: float  # of the step, by the time in the model
    ceiling_s: float | None = None  # None: not known, its work is not counted, or it moves nothing
    limit: str = ""  # memory | compute

    @property
    def fraction(self) -> float | None:
        """Of what the machine attains; above 1 where data came from a cache or the ceiling is too low."""
        known = self.ceiling_s is not None and self.primitive.in_model_s > 0
        return self.ceiling_s / self.primitive.in_model_s if known and self.ceiling_s is not None else None

    def to_json(self) -> dict[str, Any]:
        """All of it as plain values."""
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
    """A kind of work, and the least time that those of its primitives could take of which it is known."""

    share: Share
    ceiling_s: float | None = None  # None: known of too little of it
    judged_s: float = 0.0  # time in the model of those

    @property
    def fraction(self) -> float | None:
        """Of what the machine attains, by the primitives that are judged."""
        if self.ceiling_s is None or self.judged_s <= 0:
            return None
        return self.ceiling_s / self.judged_s

    def to_json(self) -> dict[str, Any]:
        """All of it as plain values."""
        own = {"ceiling_s": self.ceiling_s, "judged_s": self.judged_s, "fraction_of_ceiling": self.fraction}
        return {**asdict(self.share), **own}


@dataclass(frozen=True, kw_only=True)
class Answer:
    """All that is told of a model's primitives."""

    subject: str  # as the user named it
    asked: Sequence[str]  # "batch 16", "2 threads"
    options: Sequence[str]  # words of the command that repeats it
    machine: str
    versions: Mapping[str, str]
    params: Mapping[str, Any]
    breakdown: Breakdown
    primitives: Sequence[JudgedPrimitive]
    shares: Sequence[JudgedShare]
    ceilings_of: str  # when and where they were measured; "" without
    ceilings_are_busy: bool = False  # measured on a busy machine, so too low

    @property
    def is_within(self) -> bool | None:
        """True when the primitives alone add up to the step; None where the breakdown is doubtful."""
        if self.breakdown.is_doubtful:
            return None
        return WITHIN[0] <= self.breakdown.sum_over_step <= WITHIN[1]

    def to_json(self) -> dict[str, Any]:
        """All of it as plain values."""
        found = self.breakdown
        return {
            "subject": self.subject,
            "params": {name: value for name, value in self.params.items() if name != "breakdown"},
            "machine": self.machine,
            "versions": dict(self.versions),
            "step_s": found.step_s,
            "in_model_s": found.in_model_s,
            "alone_s": found.alone_s,
            "sum_over_step": found.sum_over_step,
            "sum_over_step_by_round": list(found.sums_over_steps),
            "within": self.is_within,
            "disturbed": found.is_disturbed,
            "doubtful": found.is_doubtful,
            "num_repeated": found.num_repeated,
            "between_operators_s": found.between_s,
            "watched_step_s": found.watched_step_s,
            "call_cost_s": found.call_cost_s,
            "num_checked": found.num_checked,
            "check_error": found.check_error,
            "cache_bytes": found.cache_bytes,
            "minor_faults_per_step": found.minor_faults_per_step,
            "new_pages_s": found.new_pages_s,
            "num_threads": found.num_threads,
            "ceilings_of": self.ceilings_of,
            "ceilings_are_busy": self.ceilings_are_busy,
            "shares": [each.to_json() for each in self.shares],
            "primitives": [each.to_json() for each in self.primitives],
            "notes": list(found.notes),
        }


def judged_primitives(
    found: Breakdown, params: Mapping[str, Any], ceilings: Ceilings | None
) -> list[JudgedPrimitive]:
    """Each primitive beside its ceiling, in the order of the breakdown."""
    roofs: dict[str, Roof] = {}
    judged = []
    for each in found.primitives:
        share = each.in_model_s / found.step_s
        least = None
        if ceilings is not None and each.flops is not None and each.traffic_bytes > 0:
            dtype = _computed_in(each, params)
            if dtype not in roofs:
                roofs[dtype] = ceilings.roof(
                    dtype,
                    str(params["device"]),
                    threads=found.num_threads,
                    placement=str(params["placement"]),
                )
            least = roofs[dtype].attainable(each.flops, each.traffic_bytes)
        if least is None:
            judged.append(JudgedPrimitive(each, share))
        else:
            judged.append(JudgedPrimitive(each, share, least.seconds * each.num_calls, least.limit))
    return judged


def judged_shares(found: Breakdown, primitives: Sequence[JudgedPrimitive]) -> list[JudgedShare]:
    """Each kind of work beside the sum of its ceilings."""
    judged = []
    for share in shares(found):
        own = [each for each in primitives if each.primitive.category == share.category]
        known = [(each.ceiling_s, each.primitive.in_model_s) for each in own if each.ceiling_s is not None]
        judged_s = sum(in_model_s for _, in_model_s in known)
        tells = known and share.category != BETWEEN and judged_s >= MIN_JUDGED * share.in_model_s
        judged.append(JudgedShare(share, sum(least_s for least_s, _ in known) if tells else None, judged_s))
    return judged


def _computed_in(primitive: Primitive, params: Mapping[str, Any]) -> str:
    """The number format whose ceiling holds: float32 may be computed in another."""
    if primitive.dtype not in FLOATS:
        return "float32"  # whole numbers are only moved
    return computed_in(primitive.dtype, params, convolves=primitive.category == "convolution")
