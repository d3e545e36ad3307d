"""Sentences about one scaling curve, for the report and the terminal."""

import math
from collections.abc import Iterator

from corewise.analysis.findings.scaling_findings import describe_slowest
from corewise.analysis.groups import Group
from corewise.analysis.phrases import describe_point, describe_task, describe_value, name_rate_unit
from corewise.analysis.scaling.scaling_curves import ScalingCurve
from corewise.analysis.scaling.scaling_loss import LossCause
from corewise.stats.scaling_model import MIN_COUNTS, Scaling
from corewise.text_format import format_figure, format_fraction


def describe_curve(group: Group, curve: ScalingCurve) -> list[str]:
    """Describe a curve: what remains of perfect scaling and why, the slowest rank, and the prediction."""
    sentences = [_describe_efficiency(group, curve)]
    split = curve.largest.split
    if split is not None and split.slowest is not None:
        where = describe_value(curve.unit, curve.largest.count)
        sentences.append(f"On {where}, {describe_slowest(split.slowest)}.")
    return [*sentences, *_describe_prediction(group, curve)]


def name_scaling(scaling: Scaling) -> str:
    """Name the type of scaling with its definition."""
    held = "constant work per rank" if scaling is Scaling.WEAK else "constant work in total"
    return f"{scaling.value} scaling, {held}"


def _describe_efficiency(group: Group, curve: ScalingCurve) -> str:
    last, base = curve.largest, curve.base
    point = describe_point(curve.point)
    efficiency = format_fraction(last.efficiency, last.efficiency_low, last.efficiency_high)
    sentence = (
        f"{describe_task(group)}{f', {point},' if point else ''} has an efficiency of {efficiency} on "
        f"{describe_value(curve.unit, last.count)} against {describe_value(curve.unit, base.count)} "
        f"({name_scaling(curve.scaling)})"
    )
    if curve.loss is None:
        small = "the loss is not significant" if not last.efficiency_high < 1 else "little is lost"
        return f"{sentence}: {small}."
    if curve.loss.cause is LossCause.UNKNOWN:
        return f"{sentence}: {100 * curve.loss.lost_share:.0f} % of each step is lost, the cause was not measured."
    return f"{sentence}: most of the loss is owed to {_add_article(curve.loss.cause)}."


def _add_article(cause: LossCause) -> str:
    return cause.value if cause in (LossCause.IMBALANCE, LossCause.COMPUTE) else f"the {cause.value}"


def _describe_prediction(group: Group, curve: ScalingCurve) -> Iterator[str]:
    if curve.model.reason:
        yield f"{curve.model.reason[:1].upper()}{curve.model.reason[1:]}."
        return
    unit = name_rate_unit(group)
    ahead = next((each for each in curve.predictions if each.count > curve.largest.count), None)
    if ahead is not None:
        rate = format_figure(ahead.rate, ahead.low, ahead.high, unit, curve.model.confidence)
        where = describe_value(curve.unit, ahead.count)
        yield f"The model predicts {rate} on {where}.{_describe_model(curve)}"
    check = curve.held_out
    if check is None:
        yield f"The model is not checked: holding out the largest count needs {MIN_COUNTS + 1} counts."
        return
    covered = "covers" if check.is_covered else "does not cover"
    yield (
        f"From the smaller counts, it predicts the step on {describe_value(curve.unit, check.prediction.count)} with "
        f"an error of {100 * check.error:+.1f} %; its interval (±{100 * check.prediction.relative_half_width:.0f} %) "
        f"{covered} the measured value."
    )


def _describe_model(curve: ScalingCurve) -> str:
    """Describe the bandwidth that the model's term stands for, where gradients are known."""
    bandwidth = curve.attained_bandwidth
    # A tiny term means that bandwidth does not matter, not that the link is infinitely fast.
    if math.isnan(bandwidth) or 2 * curve.gradient_bytes / bandwidth < 0.02 * curve.model.base_s:
        return ""
    return f" Its exposed exchange costs as much as a link of {format_figure(bandwidth / 1e6)} MB/s."
