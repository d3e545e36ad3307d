"""Scaling over nodes or processes: throughput, efficiency, the split of the step and a model for larger counts."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from corewise.analysis.columns import get_run_rates, split_by_number
from corewise.analysis.efficiency import compute_efficiencies, find_lone_ranks
from corewise.analysis.groups import Group
from corewise.analysis.scaling.scaling_loss import ExchangeFacts, ScalingLoss, find_scaling_loss
from corewise.analysis.scaling.step_split import StepSplit, split_step
from corewise.stats.scaling_model import (
    HeldOutCheck,
    Prediction,
    Scaling,
    ScalingModel,
    Term,
    check_largest_count,
    fit_scaling_model,
)

UNITS = ("nodes", "processes")
MAX_CURVES = 6
# Counts to predict, as multiples of the largest measured one.
_PREDICTED_MULTIPLES = (2, 4)
# Gradients are float32 whatever the number format of the computation.
_BYTES_PER_GRADIENT = 4


@dataclass(frozen=True)
class ScalingPoint:
    """One measured count; interval ends are NaN with too few runs.

    Attributes:
        efficiency: E = P_n / (n / b · P_b), b being the base count.
        split: None if the record holds no ranks.
    """

    count: int
    trial: int
    trial_id: str
    num_runs: int
    rate: float
    rate_low: float
    rate_high: float
    step_s: float
    efficiency: float
    efficiency_low: float
    efficiency_high: float
    split: StepSplit | None = None


@dataclass(frozen=True)
class PredictedRate:
    """The predicted throughput of one count with its interval."""

    count: int
    rate: float
    low: float
    high: float


@dataclass(frozen=True)
class ScalingCurve:
    """Trials that differ only in the number of nodes or processes.

    Attributes:
        unit: `nodes` or `processes` (on each node).
        point: the other parameters that vary in the group.
        gradient_bytes: what each rank exchanges per step; NaN if it is not known.
        held_out: the check of the model on the largest count; None with too few counts.
        loss: where the lost throughput goes at the largest count; None without a significant loss.
    """

    unit: str
    scaling: Scaling
    point: Mapping[str, Any]
    points: Sequence[ScalingPoint]
    gradient_bytes: float
    model: ScalingModel
    predictions: Sequence[PredictedRate]
    held_out: HeldOutCheck | None
    loss: ScalingLoss | None

    @property
    def base(self) -> ScalingPoint:
        """The point with the smallest count, which efficiency refers to."""
        return self.points[0]

    @property
    def largest(self) -> ScalingPoint:
        """The point with the largest count."""
        return self.points[-1]

    @property
    def attained_bandwidth(self) -> float:
        """Bytes per second that the bandwidth term of the model means for a ring; NaN if it has none."""
        cost_s = self.model.estimate_cost_s(Term.BANDWIDTH)
        return 2 * self.gradient_bytes / cost_s if cost_s > 0 else math.nan

    def predict_rate(self, prediction: Prediction) -> PredictedRate:
        """Convert a predicted step time to throughput."""
        base = self.base
        growth = prediction.count / base.count if self.scaling is Scaling.WEAK else 1.0
        samples = base.rate * base.step_s * growth
        times = (prediction.step_s, prediction.high_s, prediction.low_s)
        return PredictedRate(prediction.count, *(samples / seconds for seconds in times))


def find_scaling_curves(group: Group) -> list[ScalingCurve]:
    """Find the scaling curves of a group: over nodes first, then over processes, the fastest first."""
    curves: list[ScalingCurve] = []
    for unit in UNITS:
        if unit not in group.axes or not group.is_number(unit) or not _exchanges_messages(group):
            continue
        found = sorted(_find_lines(group, unit), key=lambda line: -max(group.rate[i] for i in line))
        curves += [_build_curve(group, unit, line) for line in found[: MAX_CURVES - len(curves)]]
    return curves


def _exchanges_messages(group: Group) -> bool:
    """Return True if ranks of a step depend on each other, unlike replicas for inference."""
    return group.mode == "train" or bool(np.isfinite(group.get_metric("communication_s")).any())


def _find_lines(group: Group, unit: str) -> Iterator[list[int]]:
    """Find the sets of trials that differ only in the unit, ordered by count."""
    counts, numbers = group.get_numbers(unit), group.index_without((unit,))
    known = np.flatnonzero(~np.isnan(group.rate) & (counts >= 1))
    lone = find_lone_ranks(group, (unit,))
    for places in split_by_number(numbers[known]):
        line = known[places].tolist()
        first = int(lone[line[-1]])
        if first >= 0 and first not in line:
            line.append(first)
        if len({counts[i] for i in line}) > 1:
            yield sorted(line, key=lambda i: float(counts[i]))


def _build_curve(group: Group, unit: str, line: Sequence[int]) -> ScalingCurve:
    counts = [int(group.get_numbers(unit)[i]) for i in line]
    samples = group.get_metric("samples_per_step")[list(line)].tolist()
    scaling = _find_scaling(counts, samples, group.records[line[0]].params)
    splits = [_read_split(group, i) for i in line]
    points = _build_points(group, unit, line, scaling, splits)
    # Samples per step of each count, in units of the base: they convert throughput to step time.
    growth = [count / counts[0] if scaling is Scaling.WEAK else 1.0 for count in counts]
    base_samples = points[0].rate * points[0].step_s
    steps_s = {
        count: [base_samples * factor / rate for rate in get_run_rates(group.records[i])]
        for count, factor, i in zip(counts, growth, line, strict=True)
    }
    model = fit_scaling_model(steps_s, scaling, group.confidence)
    gradient_bytes = _count_gradient_bytes(group, line[-1])
    bare = ScalingCurve(
        unit=unit,
        scaling=scaling,
        point={name: value for name, value in group.points[line[-1]].items() if name != unit},
        points=points,
        gradient_bytes=gradient_bytes,
        model=model,
        predictions=(),
        held_out=check_largest_count(steps_s, scaling, group.confidence),
        loss=_find_loss(group, unit, line, scaling, points, gradient_bytes),
    )
    if model.reason:
        return bare
    wanted = [*counts, *(counts[-1] * multiple for multiple in _PREDICTED_MULTIPLES)]
    predictions = [bare.predict_rate(model.predict(count)) for count in wanted]
    return ScalingCurve(**{**vars(bare), "predictions": predictions})


def _build_points(
    group: Group, unit: str, line: Sequence[int], scaling: Scaling, splits: Sequence[StepSplit | None]
) -> list[ScalingPoint]:
    counts, efficiencies = group.get_numbers(unit), compute_efficiencies(group, (unit,))
    base_count, base_s = float(counts[line[0]]), _find_step_s(group, line[0])
    points = []
    for i, split in zip(line, splits, strict=True):
        growth = float(counts[i]) / base_count if scaling is Scaling.WEAK else 1.0
        points.append(
            ScalingPoint(
                count=int(counts[i]),
                trial=i,
                trial_id=group.records[i].trial_id,
                num_runs=int(group.rates.num[i]),
                rate=float(group.rate[i]),
                rate_low=float(group.low[i]),
                rate_high=float(group.high[i]),
                step_s=base_s * growth * float(group.rate[line[0]] / group.rate[i]),
                efficiency=float(efficiencies.value[i]),
                efficiency_low=float(efficiencies.low[i]),
                efficiency_high=float(efficiencies.high[i]),
                split=split,
            )
        )
    return points


def _find_step_s(group: Group, i: int) -> float:
    """Return the seconds of a step that its throughput stands for."""
    samples, step_s = group.get_metric("samples_per_step")[i], group.get_metric("step_s")[i]
    return float(samples / group.rate[i]) if samples > 0 else float(step_s) if step_s > 0 else 1.0


def _find_scaling(counts: Sequence[int], samples: Sequence[float], params: Mapping[str, Any]) -> Scaling:
    """Find from the samples of a step whether the work of a rank or of all ranks is constant."""
    ratio = samples[-1] / samples[0]
    if not ratio > 0:
        return Scaling.STRONG if params.get("batch_scope") == "global" else Scaling.WEAK
    return Scaling.WEAK if 2 * math.log(ratio) > math.log(counts[-1] / counts[0]) else Scaling.STRONG


def _read_split(group: Group, i: int) -> StepSplit | None:
    """Read the full record of a trial and split its step."""
    record = group.records[i]
    full = group.sources[i].read_full_records([record.trial_id])
    return split_step(next(iter(full), record))


def _count_gradient_bytes(group: Group, i: int) -> float:
    num_parameters = group.records[i].work.get("num_parameters", 0.0)
    return _BYTES_PER_GRADIENT * num_parameters if group.mode == "train" and num_parameters else math.nan


def _find_loss(
    group: Group,
    unit: str,
    line: Sequence[int],
    scaling: Scaling,
    points: Sequence[ScalingPoint],
    gradient_bytes: float,
) -> ScalingLoss | None:
    base, last = points[0], points[-1]
    # Without an interval, the loss may be noise.
    if not last.efficiency_high < 1:
        return None
    others = [int(group.get_numbers(name)[line[-1]]) for name in UNITS]
    facts = ExchangeFacts(
        crosses_nodes=others[0] > 1,
        num_ranks=math.prod(others),
        gradient_bytes=gradient_bytes,
        collectives=_name_collectives(group.records[line[-1]].params),
    )
    share = base.count / last.count if scaling is Scaling.STRONG else 1.0
    ideal_s = base.step_s * share
    return find_scaling_loss(ideal_s, last.step_s, share, base.split, last.split, facts)


def _name_collectives(params: Mapping[str, Any]) -> str:
    """Return what carries the messages; the default is gloo on CPUs and NCCL on GPUs."""
    name = str(params.get("collectives") or "default")
    if name != "default":
        return name
    return "gloo" if params.get("device", "cpu") == "cpu" else "nccl"
