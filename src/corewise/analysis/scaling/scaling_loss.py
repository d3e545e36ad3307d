"""Why throughput is lost when a run uses more nodes or processes: the part of the step that grew most."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from corewise.analysis.scaling.step_split import StepPart, StepSplit

# A loss below this fraction of the step is not worth a finding.
MIN_LOSS = 0.10
# A cause explains at least this fraction of the lost time that has a cause, and of all lost time.
MIN_SHARE, MIN_SHARE_OF_ALL = 0.5, 0.25
# Torch sends gradients in buckets of this size, after a first one of 1 MiB (DistributedDataParallel).
BUCKET_BYTES, FIRST_BUCKET_BYTES = 25 * 2**20, 2**20
# A generous time for one small message over TCP and Ethernet, in seconds.
MESSAGE_S = 200e-6
# Gloo reduces and copies on one thread. That limits a rank to about this rate over any link, in bytes per second.
# It decides only where the idle time of the CPU is unknown.
GLOO_BYTES_PER_S = 0.5e9


class LossCause(Enum):
    """What lost throughput is owed to."""

    NETWORK_BANDWIDTH = "bandwidth of the network between nodes"
    NETWORK_LATENCY = "latency of the network between nodes"
    NETWORK = "network between nodes"
    EXCHANGE = "exchange between ranks"
    IMBALANCE = "imbalance between ranks"
    INPUT = "loading of input"
    COMPUTE = "slower compute"
    UNKNOWN = "a cause that was not measured"


@dataclass(frozen=True)
class ExchangeFacts:
    """How ranks exchange gradients.

    Attributes:
        gradient_bytes: bytes that each rank contributes per step; NaN if unknown.
    """

    crosses_nodes: bool
    num_ranks: int
    gradient_bytes: float
    collectives: str = "gloo"

    @property
    def sent_bytes(self) -> float:
        """Bytes that each rank sends per step in a ring allreduce: 2 (n - 1) / n of its gradients."""
        return 2 * (self.num_ranks - 1) / self.num_ranks * self.gradient_bytes

    @property
    def num_messages(self) -> float:
        """Messages that a rank sends one after the other: 2 (n - 1) for each bucket."""
        if math.isnan(self.gradient_bytes):
            return math.nan
        num_buckets = 1 + math.ceil(max(0.0, self.gradient_bytes - FIRST_BUCKET_BYTES) / BUCKET_BYTES)
        return 2 * (self.num_ranks - 1) * num_buckets


@dataclass(frozen=True)
class ScalingLoss:
    """The time of a step above the ideal one, and its cause.

    Attributes:
        lost_s: seconds of a step above the ideal.
        lost_share: the same as a fraction of the step.
        grown_s: by how much each part exceeds its ideal; empty if the split was not measured.
        attained_bytes_per_s: what each rank sends over its communication time; NaN if unknown.
        base, split: the steps of the base and of the largest count.
    """

    cause: LossCause
    lost_s: float
    lost_share: float
    grown_s: Mapping[StepPart, float]
    facts: ExchangeFacts
    attained_bytes_per_s: float = math.nan
    base: StepSplit | None = None
    split: StepSplit | None = None


def find_scaling_loss(
    ideal_s: float,
    step_s: float,
    work_share: float,
    base: StepSplit | None,
    split: StepSplit | None,
    facts: ExchangeFacts,
) -> ScalingLoss | None:
    """Find the cause of a loss; None if it is small.

    Args:
        ideal_s: the step with perfect scaling.
        work_share: the work of a rank relative to the base.
        base: the step of the base count.
        split: the step of the largest count.
    """
    lost_s = step_s - ideal_s
    lost_share = lost_s / step_s
    if not lost_share >= MIN_LOSS:
        return None
    if base is None or split is None:
        return ScalingLoss(LossCause.UNKNOWN, lost_s, lost_share, {}, facts)
    grown_s = {part: seconds - work_share * base.parts_s.get(part, 0.0) for part, seconds in split.parts_s.items()}
    communication_s = split.communication_s
    if math.isnan(communication_s):
        communication_s = split.parts_s.get(StepPart.COMMUNICATION, math.nan)
    attained = facts.sent_bytes / communication_s if communication_s > 0 else math.nan
    is_cpu_bound = _is_limited_by_cpu(base, split, work_share, grown_s, attained, facts)
    cause = _name_cause(grown_s, lost_s, communication_s, is_cpu_bound, facts)
    return ScalingLoss(cause, lost_s, lost_share, grown_s, facts, attained, base, split)


def _is_limited_by_cpu(
    base: StepSplit,
    split: StepSplit,
    work_share: float,
    grown_s: Mapping[StepPart, float],
    attained: float,
    facts: ExchangeFacts,
) -> bool:
    """Return True if gloo's work on the CPU limits the exchange: over a slow link, the CPU idles instead."""
    if facts.collectives != "gloo":
        return False
    idle_s = split.idle_s - work_share * base.idle_s
    if not math.isnan(idle_s):
        return idle_s < grown_s.get(StepPart.COMMUNICATION, 0.0) / 2
    return attained >= GLOO_BYTES_PER_S


def _name_cause(
    grown_s: Mapping[StepPart, float], lost_s: float, communication_s: float, is_cpu_bound: bool, facts: ExchangeFacts
) -> LossCause:
    causes_s = {part: seconds for part, seconds in grown_s.items() if part is not StepPart.OTHER and seconds > 0}
    part = max(causes_s, key=lambda each: causes_s[each], default=StepPart.OTHER)
    if part is StepPart.OTHER or causes_s[part] < max(MIN_SHARE * sum(causes_s.values()), MIN_SHARE_OF_ALL * lost_s):
        return LossCause.UNKNOWN
    if part is StepPart.COMMUNICATION:
        return _name_exchange(communication_s, is_cpu_bound, facts)
    return {
        StepPart.IMBALANCE: LossCause.IMBALANCE,
        StepPart.INPUT: LossCause.INPUT,
        StepPart.COMPUTE: LossCause.COMPUTE,
    }[part]


def _name_exchange(communication_s: float, is_cpu_bound: bool, facts: ExchangeFacts) -> LossCause:
    """Name the limit of the exchange: the link, its latency, or the processors that reduce and copy."""
    if not facts.crosses_nodes:
        return LossCause.EXCHANGE
    # False where the number of messages is unknown.
    if facts.num_messages * MESSAGE_S >= communication_s / 2:
        return LossCause.NETWORK_LATENCY
    if is_cpu_bound:
        return LossCause.EXCHANGE
    if math.isnan(facts.gradient_bytes):
        return LossCause.NETWORK
    return LossCause.NETWORK_BANDWIDTH
