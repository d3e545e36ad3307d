"""The time of a step, split into compute, exposed communication, imbalance and input, and the slowest rank."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from corewise.analysis.columns import parse_number
from corewise.study.record import Record

# A rank is named as the slowest only if it needs this much more time than the median rank.
MIN_EXCESS = 0.05
# The scheduler is fair: a rank waits for other programs at most this many times as long as it runs. What they run
# beyond that, they run while the rank sleeps.
MAX_COMPETITION = 10.0
# Below this fraction of a step, a difference of times is rounding.
_NOTHING = 1e-6


class StepPart(Enum):
    """A part of the time of a step; the value is its name in sentences."""

    COMPUTE = "compute"
    COMMUNICATION = "exposed communication"
    IMBALANCE = "imbalance"
    INPUT = "input"
    OTHER = "other"


# The metric of each part in the results of a rank, in seconds per step.
METRIC_OF_PART: Mapping[StepPart, str] = {
    StepPart.COMPUTE: "compute_s",
    StepPart.COMMUNICATION: "exposed_communication_s",
    StepPart.IMBALANCE: "imbalance_s",
    StepPart.INPUT: "input_s",
}
# Kernels do not overlap communication with compute: all of it is exposed.
_ALL_COMMUNICATION = "communication_s"


@dataclass(frozen=True)
class SlowestRank:
    """The rank that the others wait for.

    Attributes:
        host: empty if the record does not name it.
        excess: its own time per step over that of the median rank, less 1.
    """

    rank: int
    node: int
    host: str
    excess: float


@dataclass(frozen=True)
class StepSplit:
    """The parts of a step in seconds: means over ranks, medians over runs.

    Attributes:
        missing: the parts that no rank measured.
        communication_s: all communication, hidden or exposed; NaN if not measured.
        idle_s: how long the CPU of a rank idles; NaN unless each rank has one CPU.
        is_estimated: estimated from CPU time, because the ranks did not time their parts.
        slowest: None if all ranks are about equally fast.
    """

    step_s: float
    parts_s: Mapping[StepPart, float]
    missing: tuple[StepPart, ...]
    communication_s: float = math.nan
    idle_s: float = math.nan
    is_estimated: bool = False
    slowest: SlowestRank | None = None

    @property
    def hidden_share(self) -> float:
        """The fraction of the communication that compute hides; NaN if unknown."""
        exposed_s = self.parts_s.get(StepPart.COMMUNICATION, math.nan)
        if not self.communication_s > 0:
            return math.nan
        return min(1.0, max(0.0, 1 - exposed_s / self.communication_s))


@dataclass(frozen=True)
class _RankStep:
    """The figures of one rank in one run."""

    rank: int
    node: int
    host: str
    num_cpus: int
    metrics: Mapping[str, Any]

    def get(self, name: str) -> float:
        return parse_number(self.metrics.get(name))

    @property
    def own_s(self) -> float:
        """The seconds of a step in which this rank works and does not wait; NaN if unknown."""
        input_s = self.get("input_s")
        return self.get("compute_s") + (0.0 if math.isnan(input_s) else input_s)


def split_step(record: Record) -> StepSplit | None:
    """Split the step of a full record; None for a record without ranks, as brief records are."""
    runs = [(run, _read_ranks(run)) for run in record.runs if run.get("status") == "ok"]
    runs = [(run, ranks) for run, ranks in runs if ranks]
    if not runs:
        return None
    step_s = statistics.median(parse_number(run["metrics"].get("step_s")) for run, _ in runs)
    every = [ranks for _, ranks in runs]
    if all(math.isnan(rank.get("compute_s")) for ranks in every for rank in ranks):
        return _estimate_from_cpu_time(record, every, step_s)
    parts_s = {part: _combine(every, name) for part, name in METRIC_OF_PART.items()}
    communication_s = _combine(every, _ALL_COMMUNICATION)
    if math.isnan(parts_s[StepPart.COMMUNICATION]):
        parts_s[StepPart.COMMUNICATION] = communication_s
    if len(every[0]) == 1:
        for part in (StepPart.COMMUNICATION, StepPart.IMBALANCE):
            parts_s[part] = 0.0 if math.isnan(parts_s[part]) else parts_s[part]
    missing = tuple(part for part, seconds in parts_s.items() if math.isnan(seconds))
    known_s = {part: seconds for part, seconds in parts_s.items() if part not in missing}
    other_s = step_s - sum(known_s.values())
    known_s[StepPart.OTHER] = other_s if other_s > _NOTHING * step_s else 0.0
    slowest = find_slowest_rank([{r.rank: (r.own_s, r.node, r.host) for r in ranks} for ranks in every])
    return StepSplit(step_s, known_s, missing, communication_s, _measure_idle_s(every, step_s), slowest=slowest)


def find_slowest_rank(runs: Sequence[Mapping[int, tuple[float, int, str]]]) -> SlowestRank | None:
    """Find the rank that is the slowest in most runs and clearly slower than the median rank.

    Args:
        runs: for each run and rank its own seconds per step, its node and its host.
    """
    times: dict[int, list[float]] = {}
    for run in runs:
        for rank, (seconds, _, _) in run.items():
            if not math.isnan(seconds):
                times.setdefault(rank, []).append(seconds)
    if len(times) < 2:
        return None
    medians = {rank: statistics.median(values) for rank, values in times.items()}
    slowest = max(medians, key=lambda rank: medians[rank])
    others = [seconds for rank, seconds in medians.items() if rank != slowest]
    excess = medians[slowest] / statistics.median(others) - 1 if statistics.median(others) > 0 else 0.0
    num_slowest = sum(run[slowest][0] >= max(s for s, _, _ in run.values()) for run in runs if slowest in run)
    if excess < MIN_EXCESS or 2 * num_slowest <= len(runs):
        return None
    _, node, host = next(run[slowest] for run in runs if slowest in run)
    return SlowestRank(slowest, node, host, excess)


def _read_ranks(run: Mapping[str, Any]) -> list[_RankStep]:
    """Read the ranks of a run; a single rank has its metrics in the run."""
    ranks = [rank for rank in run.get("ranks") or () if isinstance(rank, Mapping)]
    read = []
    for place, rank in enumerate(ranks):
        metrics = rank.get("metrics") if len(ranks) > 1 else run.get("metrics")
        if not isinstance(metrics, Mapping):
            return []
        cpus = rank.get("cpus")
        number, node = parse_number(rank.get("rank", place)), parse_number(rank.get("node", 0))
        if math.isnan(number) or math.isnan(node):
            return []
        num_cpus = len(cpus) if isinstance(cpus, Sequence) else 0
        read.append(_RankStep(int(number), int(node), str(rank.get("host") or ""), num_cpus, metrics))
    return read


def _combine(runs: Sequence[Sequence[_RankStep]], name: str) -> float:
    """Return the median over runs of the mean over ranks of a metric; NaN unless every rank has it."""
    means = [statistics.fmean(rank.get(name) for rank in ranks) for ranks in runs]
    return math.nan if any(map(math.isnan, means)) else statistics.median(means)


@dataclass(frozen=True)
class _CpuShares:
    """The fractions of a window in which a rank ran, and in which it waited for other programs on its CPUs."""

    own: float
    taken: float


def _read_cpu_shares(rank: _RankStep) -> _CpuShares | None:
    available_s = rank.get("wall_s") * rank.num_cpus
    own_s, taken_s = rank.get("own_cpu_s"), rank.get("other_cpu_s") + rank.get("steal_s")
    if not available_s > 0 or math.isnan(own_s) or math.isnan(taken_s):
        return None
    own = min(1.0, own_s / available_s)
    return _CpuShares(own, min(1.0 - own, MAX_COMPETITION * own, taken_s / available_s))


def _measure_idle_s(runs: Sequence[Sequence[_RankStep]], step_s: float) -> float:
    """Measure how long the one CPU of a rank idles in a step; NaN for ranks with several or unknown CPUs."""
    idle = []
    for ranks in runs:
        shares = [_read_cpu_shares(rank) if rank.num_cpus == 1 else None for rank in ranks]
        known = [each for each in shares if each is not None]
        if len(known) < len(ranks):
            return math.nan
        idle.append(step_s * statistics.fmean(max(0.0, 1 - each.own - each.taken) for each in known))
    return statistics.median(idle)


def _estimate_from_cpu_time(record: Record, runs: Sequence[Sequence[_RankStep]], step_s: float) -> StepSplit | None:
    """Estimate compute as the CPU time of the ranks per core, and waiting as the time in which their CPUs are idle."""
    if record.params.get("device", "cpu") != "cpu":
        return None
    busy: list[dict[int, tuple[float, int, str]]] = []
    others_s: list[float] = []
    for ranks in runs:
        shares = [(rank, _read_cpu_shares(rank)) for rank in ranks]
        known = [(rank, each) for rank, each in shares if each is not None]
        if len(known) < len(shares):
            return None
        busy.append({rank.rank: (step_s * each.own, rank.node, rank.host) for rank, each in known})
        others_s.append(step_s * statistics.fmean(each.taken for _, each in known))
    compute_s = statistics.median(statistics.fmean(s for s, _, _ in run.values()) for run in busy)
    slowest_s = statistics.median(max(s for s, _, _ in run.values()) for run in busy)
    rest_s = max(0.0, step_s - compute_s)
    # Other programs on the CPUs of the ranks are no part of the step.
    other_s = rest_s if len(runs[0]) == 1 else min(rest_s, statistics.median(others_s))
    imbalance_s = min(slowest_s - compute_s, rest_s - other_s)
    parts_s = {
        StepPart.COMPUTE: compute_s,
        StepPart.COMMUNICATION: max(0.0, rest_s - other_s - imbalance_s),
        StepPart.IMBALANCE: imbalance_s,
        StepPart.OTHER: other_s,
    }
    slowest = find_slowest_rank(busy)
    idle_s = _measure_idle_s(runs, step_s)
    return StepSplit(step_s, parts_s, (StepPart.INPUT,), idle_s=idle_s, is_estimated=True, slowest=slowest)
