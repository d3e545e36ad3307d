"""Findings about scaling: where throughput is lost on more nodes or processes, and why."""

import math
from collections.abc import Iterator

from corewise.analysis.findings.finding import Finding
from corewise.analysis.findings.study_evidence import StudyEvidence
from corewise.analysis.groups import Group
from corewise.analysis.phrases import describe_point, describe_task, describe_value
from corewise.analysis.scaling.scaling_curves import ScalingCurve
from corewise.analysis.scaling.scaling_loss import LossCause, ScalingLoss
from corewise.analysis.scaling.step_split import SlowestRank, StepPart, StepSplit
from corewise.text_format import format_duration, format_figure, format_fraction, format_list, shorten


def find_lost_scaling(study: StudyEvidence) -> Iterator[Finding]:
    """Name for each scaling curve why the largest count loses throughput."""
    for group, _ in study.groups:
        for curve in study.get_curves(group):
            if curve.loss is not None:
                yield _build_finding(study, group, curve, curve.loss)


def _build_finding(study: StudyEvidence, group: Group, curve: ScalingCurve, loss: ScalingLoss) -> Finding:
    where = describe_value(curve.unit, curve.largest.count)
    point = describe_point(curve.point)
    share = f"{100 * loss.lost_share:.0f} %"
    return Finding(
        level="info" if loss.cause is LossCause.UNKNOWN else "warning",
        title=f"{describe_task(group)}: {share} of each step on {where} is lost: {loss.cause.value}",
        evidence="; ".join([*([point] if point else []), *_describe_evidence(curve, loss)]),
        remedy=_suggest_remedy(study, group, curve, loss),
    )


def _describe_evidence(curve: ScalingCurve, loss: ScalingLoss) -> Iterator[str]:
    last = curve.largest
    efficiency = format_fraction(last.efficiency, last.efficiency_low, last.efficiency_high)
    base = describe_value(curve.unit, curve.base.count)
    yield f"efficiency {efficiency} against {base}"
    yield f"a step takes {format_duration(last.step_s)} instead of {format_duration(last.step_s - loss.lost_s)}"
    grown = sorted(loss.grown_s.items(), key=lambda each: -each[1])
    parts = [f"{part.value} {format_duration(s)}" for part, s in grown if s >= 0.05 * loss.lost_s]
    if parts:
        yield f"of that, {format_list(parts, 5)}" + (", estimated from CPU time" if _is_estimated(loss) else "")
    if loss.attained_bytes_per_s > 0 and loss.cause in (LossCause.NETWORK_BANDWIDTH, LossCause.EXCHANGE):
        sent = format_figure(loss.facts.sent_bytes / 1e6, unit="MB")
        rate = format_figure(loss.attained_bytes_per_s / 1e6, unit="MB/s")
        yield f"each rank sends {sent} per step at {rate} ({8 * loss.attained_bytes_per_s / 1e9:.3g} Gbit/s)"
    if loss.cause is LossCause.NETWORK_LATENCY:
        yield f"each rank sends {loss.facts.num_messages:.0f} messages one after the other in each step"
    if loss.split is not None and loss.split.slowest is not None:
        yield describe_slowest(loss.split.slowest)
    if loss.split is not None and not math.isnan(loss.split.hidden_share):
        yield f"{100 * loss.split.hidden_share:.0f} % of the communication is hidden behind compute"


def describe_slowest(slowest: SlowestRank) -> str:
    """Describe the slowest rank with its node and host."""
    host = f" ({shorten(slowest.host, 60)})" if slowest.host else ""
    excess = f"{100 * slowest.excess:.0f} % slower than the median rank"
    return f"the slowest rank is {slowest.rank} on node {slowest.node}{host}, {excess}"


def describe_missing_parts(split: StepSplit) -> str:
    """Describe which parts of a step were not measured; empty if all were."""
    if not split.missing:
        return ""
    return f"not measured: {format_list([part.value for part in split.missing], 4)}"


def _is_estimated(loss: ScalingLoss) -> bool:
    return any(split is not None and split.is_estimated for split in (loss.base, loss.split))


def _suggest_remedy(study: StudyEvidence, group: Group, curve: ScalingCurve, loss: ScalingLoss) -> str:
    only = f"{curve.unit}={curve.base.count},{curve.largest.count}"
    batch = group.records[curve.largest.trial].params.get("batch")
    batches = f"batch={2 * batch},{4 * batch}" if isinstance(batch, int) else "batch=64,128"
    if loss.cause is LossCause.NETWORK_BANDWIDTH:
        larger = study.build_run_command(only, batches)
        return (
            "Check that the ranks use the fast network (GLOO_SOCKET_IFNAME, or `--set collectives=mpi`). Otherwise "
            f"exchange less often: a larger batch per process has the same gradients, as in {larger}."
        )
    if loss.cause is LossCause.NETWORK_LATENCY:
        larger = study.build_run_command(only, batches)
        return f"Give each step more work between two exchanges, for example a larger batch: {larger}."
    if loss.cause is LossCause.NETWORK:
        larger = study.build_run_command("args.size=16384,32768") if group.mode == "infer" else ""
        return "Check that the ranks use the fast network (GLOO_SOCKET_IFNAME, or `--set collectives=mpi`)." + (
            f" Otherwise give each rank more work: {larger}." if larger else ""
        )
    if loss.cause is LossCause.EXCHANGE:
        other = study.build_run_command(only, "collectives=gloo,shared,mpi")
        return f"Compare what carries the messages, or use fewer processes with more threads: {other}."
    if loss.cause is LossCause.IMBALANCE:
        slowest = loss.split.slowest if loss.split is not None else None
        who = f"rank {slowest.rank} on node {slowest.node}" if slowest is not None else "the slowest rank"
        return f"Look at what runs next to {who}, and at its clock and memory: run `corewise doctor` on that node."
    if loss.cause is LossCause.INPUT:
        more = study.build_run_command(only, "loader_workers=1,2,4")
        return f"Load images with more processes, or from a local disk: {more}."
    if loss.cause is LossCause.COMPUTE:
        return _suggest_against_slow_compute(study, curve)
    if loss.grown_s.get(StepPart.OTHER, 0.0) >= loss.lost_s / 2:
        quiet = study.build_run_command(only, store="quiet-store")
        return f"Other programs or unmeasured parts take the time. Measure again on quiet nodes: {quiet}."
    return "Record the parts of a step in the ranks (see docs/scaling.md), then look at this page again."


def _suggest_against_slow_compute(study: StudyEvidence, curve: ScalingCurve) -> str:
    """Suggest what to do if each rank computes more slowly than alone."""
    if curve.unit == "processes":
        spread = study.build_run_command(f"processes={curve.base.count},{curve.largest.count}", "placement=spread,numa")
        return f"Ranks of a node share memory bandwidth and clock. Try to spread them over sockets: {spread}."
    return "Nodes differ or are throttled: compare `corewise doctor --ceilings` on each of them."
