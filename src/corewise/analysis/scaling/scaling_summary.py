"""A scaling curve as plain values, for the tables of `corewise show` and its JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from corewise.analysis.groups import Group
from corewise.analysis.scaling.scaling_curves import PredictedRate, ScalingCurve, ScalingPoint, find_scaling_curves
from corewise.analysis.scaling.scaling_sentences import describe_curve
from corewise.stats.scaling_model import ScalingModel, Term
from corewise.text_format import round_significant


@dataclass(frozen=True)
class ScalingCount:
    """One count, measured, predicted or both; a value is None if it is unknown.

    Attributes:
        parts_s: seconds of a step for each part that was measured.
        hidden_share: the fraction of the communication that compute hides.
        slowest_rank: the rank that the others wait for, with its node and host.
    """

    count: int
    trial_id: str | None
    samples_per_s: float | None
    efficiency: float | None
    efficiency_low: float | None
    efficiency_high: float | None
    step_s: float | None
    parts_s: Mapping[str, float]
    is_estimated: bool
    hidden_share: float | None
    slowest_rank: int | None
    slowest_node: int | None
    slowest_host: str | None
    predicted_samples_per_s: float | None
    predicted_low: float | None
    predicted_high: float | None


@dataclass(frozen=True)
class ScalingSummary:
    """The scaling of trials that differ only in the number of nodes or processes.

    Attributes:
        cause: what the loss at the largest count is owed to; None if the loss is small or not significant.
        model_costs_s: the expected coefficient of each term of the fitted model; empty without a model.
        held_out_error: the relative error of predicting the largest count from the others.
    """

    unit: str
    scaling: str
    params: Mapping[str, Any]
    base: int
    counts: tuple[ScalingCount, ...]
    cause: str | None
    lost_share: float | None
    model_costs_s: Mapping[str, float]
    held_out_error: float | None
    held_out_is_covered: bool | None
    sentences: tuple[str, ...]


def summarize_scaling(group: Group) -> tuple[ScalingSummary, ...]:
    """Summarize the scaling curves of a group."""
    return tuple(_summarize(group, curve) for curve in find_scaling_curves(group))


def _summarize(group: Group, curve: ScalingCurve) -> ScalingSummary:
    measured = {point.count: point for point in curve.points}
    predicted = {each.count: each for each in curve.predictions}
    check = curve.held_out
    return ScalingSummary(
        unit=curve.unit,
        scaling=curve.scaling.value,
        params=dict(curve.point),
        base=curve.base.count,
        counts=tuple(_build_count(n, measured.get(n), predicted.get(n)) for n in sorted({*measured, *predicted})),
        cause=None if curve.loss is None else curve.loss.cause.value,
        lost_share=None if curve.loss is None else round_significant(curve.loss.lost_share),
        model_costs_s=_list_costs(curve.model),
        held_out_error=None if check is None else round_significant(check.error),
        held_out_is_covered=None if check is None else check.is_covered,
        sentences=tuple(describe_curve(group, curve)),
    )


def _list_costs(model: ScalingModel) -> dict[str, float]:
    return {} if model.reason else {term.value: float(f"{model.estimate_cost_s(term):.6g}") for term in Term}


def _build_count(count: int, point: ScalingPoint | None, model: PredictedRate | None) -> ScalingCount:
    split = None if point is None else point.split
    slowest = None if split is None else split.slowest
    rate, efficiency, low, high, step_s = _round_each(
        [None] * 5
        if point is None
        else [point.rate, point.efficiency, point.efficiency_low, point.efficiency_high, point.step_s]
    )
    predicted, predicted_low, predicted_high = _round_each(
        [None] * 3 if model is None else [model.rate, model.low, model.high]
    )
    return ScalingCount(
        count=count,
        trial_id=None if point is None else point.trial_id,
        samples_per_s=rate,
        efficiency=efficiency,
        efficiency_low=low,
        efficiency_high=high,
        step_s=step_s,
        parts_s={} if split is None else {part.value: float(f"{s:.6g}") for part, s in split.parts_s.items()},
        is_estimated=split is not None and split.is_estimated,
        hidden_share=None if split is None else round_significant(split.hidden_share),
        slowest_rank=None if slowest is None else slowest.rank,
        slowest_node=None if slowest is None else slowest.node,
        slowest_host=None if slowest is None else slowest.host,
        predicted_samples_per_s=predicted,
        predicted_low=predicted_low,
        predicted_high=predicted_high,
    )


def _round_each(values: Sequence[float | None]) -> list[float | None]:
    return [round_significant(value) for value in values]
