"""Findings about reliability: failures, disturbances, noise and too few runs."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from corewise.analysis.canary import compute_canary_ratios, describe_canary
from corewise.analysis.columns import parse_number
from corewise.analysis.findings.finding import Finding
from corewise.analysis.findings.study_evidence import StudyEvidence
from corewise.analysis.groups import WIDTHS
from corewise.analysis.phrases import describe_task, describe_value
from corewise.analysis.ratios import compute_look_level, get_looks
from corewise.stats.quantiles import compute_t_quantile
from corewise.stats.sequential_stopping import compute_level_per_look
from corewise.store.compact_values import STEADY, PackedRuns, get_warm_up_end
from corewise.study.record import Record
from corewise.text_format import format_count, format_list, shorten

# Largest tolerated difference between the 5th and the 95th percentile of the canary.
CANARY_SPREAD = 0.10
# A remedy never asks for more runs than this.
MAX_SUGGESTED_RUNS = 60


def _find_failures(study: StudyEvidence) -> Iterator[Finding]:
    failed = [r for group, _ in study.groups for r, _ in group.unmeasured if r.status == "failed"]
    if not failed:
        return
    categories = Counter(record.kind or "error" for record in failed)
    counts = ", ".join(f"{shorten(category)} {num:,}" for category, num in categories.most_common())
    [(reason, num)] = Counter(record.reason or "no reason was recorded" for record in failed).most_common(1)
    remedy = f"Fix the cause and run them again: {study.build_run_command(also='--retry-failed')}."
    if categories.most_common(1)[0][0] == "memory":
        remedy = f"Use a smaller batch or fewer processes, as in {study.build_run_command('batch=1,2,4')}."
    yield Finding(
        level="problem",
        title=f"{study.name}: {format_count(len(failed), 'trial')} failed",
        evidence=f"{counts}; {num:,} with: {shorten(reason, 200)}",
        remedy=remedy,
    )


def _find_disturbed_trials(study: StudyEvidence) -> Iterator[Finding]:
    records = study.records
    disturbed = [g.records[i] for g, _ in study.groups for i in np.flatnonzero(g.is_disturbed).tolist()]
    if not disturbed:
        return
    num_runs = Counter(
        cause
        for record in disturbed
        for run in record.runs
        for cause in {_identify_cause(str(text)) for text in run.get("disturbances") or ()}
    )
    causes = ", ".join(f"{cause} in {format_count(num, 'run')}" for cause, num in num_runs.most_common(4))
    of_host = bool(num_runs) and num_runs.most_common(1)[0][0] == _CAUSES["hypervisor"]
    best = any(group.is_disturbed[i] for group, s in study.groups for i in s.best.values())
    yield Finding(
        level="warning",
        title=f"{study.name}: {len(disturbed):,} of {format_count(len(records), 'trial')} with disturbed runs"
        + (", a fastest one among them" if best and len(records) > 1 else ""),
        evidence=causes,
        remedy=(
            f"Ask for a host of your own, and measure there: {study.build_run_command(store='quiet-store')}."
            if of_host
            else "Stop other programs on the machine and measure into a new store: "
            f"{study.build_run_command(store='quiet-store')}.{_suggest_spare_core(study, disturbed)}"
        ),
    )


def _suggest_spare_core(study: StudyEvidence, disturbed: Sequence[Record]) -> str:
    """Suggest to reserve a core, if all disturbed trials would still fit."""
    for record in disturbed:
        width = math.prod(parse_number(record.params.get(name) or 1) for name in WIDTHS)
        if not width < parse_number(record.machine.get("allocation_cores")):
            return ""
    command = study.build_run_command("reserved_cores=1", store="quiet-store")
    return f" Or reserve a core for other programs: {command}."


# Part of a disturbance as the probes describe it -> its cause as shown here.
_CAUSES = {
    "fixed loop": "a slow CPU",
    "hypervisor": "time taken by the hypervisor",
    "quota": "a CPU quota",
    "idle CPUs": "work on idle CPUs of the allocation",
    "other processes": "other processes on the ranks' CPUs",
}


def _identify_cause(text: str) -> str:
    """Return the cause of a disturbance without its figures."""
    return next((cause for word, cause in _CAUSES.items() if word in text), shorten(text, 60))


def _find_throttled_trials(study: StudyEvidence) -> Iterator[Finding]:
    throttled_s = study.gather_metric("throttled_s")
    num = int((throttled_s > 0).sum())
    if num:
        yield Finding(
            level="warning",
            title=f"{study.name}: a CPU quota throttled {format_count(num, 'trial')}",
            evidence=f"up to {np.nanmax(throttled_s):.3g} s of a run's sampling",
            remedy="Raise the quota to a whole number of CPUs, or use fewer: `corewise doctor` shows it.",
        )


def _find_unsteady_trials(study: StudyEvidence) -> Iterator[Finding]:
    unsteady = [record for record in study.records if _is_unsteady(record)]
    if unsteady:
        limit = max((parse_number(r.protocol.get("max_warmup_s")) for r in unsteady), default=math.nan)
        longer = 30.0 if math.isnan(limit) else max(30.0, 3 * limit)
        yield Finding(
            level="warning",
            title=f"{study.name}: {format_count(len(unsteady), 'trial')} not steady after warm-up",
            evidence=study.describe_trials(unsteady),
            remedy=f"Allow a longer warm-up: {study.build_run_command(f'protocol.max_warmup_s={longer:g}')}.",
        )


def _is_unsteady(record: Record) -> bool:
    """Return True if the warm-up of a run ended before its steps were steady."""
    runs = record.runs
    ends = runs.warm_up_ends if isinstance(runs, PackedRuns) else map(get_warm_up_end, runs)
    reasons = {end for end in ends if end}
    if reasons:
        return reasons != {STEADY}
    # Older records have no such fact, only a note.
    return any("not steady" in str(note) for note in record.notes)


def _find_wide_intervals(study: StudyEvidence) -> Iterator[Finding]:
    """Find trials that reached the most runs before their interval was narrow enough."""
    wide: list[tuple[float, int, Record]] = []
    total = len(study.records)
    for group, _ in study.groups:
        targets = np.array([parse_number(r.protocol.get("target_interval")) for r in group.records])
        spread = (group.high - group.low) / 2 / group.rate
        places = np.flatnonzero((spread > targets) & (targets > 0) & (group.rates.num > 1)).tolist()
        wide += [(float(spread[i] / targets[i]), int(group.rates.num[i]), group.records[i]) for i in places]
    if not wide:
        return
    factor, num, record = sorted(wide, key=lambda each: each[:2])[len(wide) // 2]
    needed = _estimate_runs_needed(factor, num, record)
    remedy = (
        f"About {needed} runs would suffice: {study.build_run_command(f'protocol.max_runs={needed}')}."
        if needed is not None
        else f"More than {MAX_SUGGESTED_RUNS} runs are needed. Reduce noise instead (`corewise doctor`). "
        f"Longer sampling helps if steps vary: {study.build_run_command('protocol.min_sample_s=5')}."
    )
    yield Finding(
        level="warning" if len(wide) > total / 2 else "info",
        title=f"{study.name}: {len(wide):,} of {format_count(total, 'trial')} missed the requested interval",
        evidence=f"median interval: {factor:.1f} times as wide as requested after {format_count(num, 'run')}",
        remedy=remedy,
    )


def _estimate_runs_needed(factor: float, num: int, record: Record) -> int | None:
    """Estimate how many runs narrow the interval by this factor; None for more than MAX_SUGGESTED_RUNS.

    The half width is t s / sqrt(n), with Pocock's level for looks up to MAX_SUGGESTED_RUNS runs.
    """
    looks = get_looks(record.protocol)
    least = looks[0] if looks else num
    wanted = _compute_half_width(num, compute_look_level(record)) / factor
    if _compute_half_width(MAX_SUGGESTED_RUNS, compute_look_level(record)) > wanted:
        return None
    level = compute_level_per_look(min(least, MAX_SUGGESTED_RUNS), MAX_SUGGESTED_RUNS, 0.95)
    enough = (n for n in range(num + 1, MAX_SUGGESTED_RUNS + 1) if _compute_half_width(n, level) <= wanted)
    return next(enough, None)


def _compute_half_width(num: int, level: float) -> float:
    """Compute the half width of an interval over `num` runs, in standard deviations of a run."""
    return float(compute_t_quantile(num - 1, 1 - level / 2)) / math.sqrt(num)


def _find_single_runs(study: StudyEvidence) -> Iterator[Finding]:
    num = sum(int((group.rates.num < 2).sum()) for group, _ in study.groups)
    total = len(study.records)
    if num:
        yield Finding(
            level="warning",
            title=f"{study.name}: {num:,} of {format_count(total, 'trial')} had a single run",
            evidence="a single run shows no variation between runs: no interval and no comparison",
            remedy=f"Run more: {study.build_run_command('protocol.min_runs=5', 'protocol.max_runs=10')}.",
        )


def _find_speed_changes(study: StudyEvidence) -> Iterator[Finding]:
    values = compute_canary_ratios([group for group, _ in study.groups])
    if values.size < 5:
        return
    low, high = np.quantile(values, [0.05, 0.95])
    if high - low > CANARY_SPREAD:
        yield Finding(
            level="warning",
            title=f"{study.name}: the speed of the CPU itself changed between trials",
            evidence=f"a fixed loop took {describe_canary(values)}",
            remedy="Check frequency scaling and other users of a shared host: `corewise doctor`.",
        )


def _find_noise_between_runs(study: StudyEvidence) -> Iterator[Finding]:
    """Find noise between runs, which more samples per run do not reduce."""
    between_all, within_all = (study.gather_metric("between_process_cv"), study.gather_metric("within_process_cv"))
    both = ~(np.isnan(between_all) | np.isnan(within_all))
    if both.sum() < 5:
        return
    between, within = float(np.median(between_all[both])), float(np.median(within_all[both]))
    if between > 2 * within and between > 0.01:
        yield Finding(
            level="info",
            title=f"{study.name}: runs differ more from each other than their steps do",
            evidence=f"median variation: {100 * between:.1f} % between runs, {100 * within:.1f} % within",
            remedy=f"More runs help, more samples do not: {study.build_run_command('protocol.max_runs=20')}.",
        )


def _find_mixed_conditions(study: StudyEvidence) -> Iterator[Finding]:
    for group, _ in study.groups:
        for name, what in (("version", "framework versions"), ("protocol", "protocols"), ("allocation", "allocations")):
            if name in group.varying:
                values = [describe_value(name, value) for value in group.list_values(name)]
                yield Finding(
                    level="info",
                    title=f"{describe_task(group)}: one table holds trials with different {what}",
                    evidence=format_list([shorten(value, 120) for value in values], 4),
                    remedy="They are ranked separately. To compare them, use `corewise compare`.",
                )


def _read_machine_findings(study: StudyEvidence) -> Iterator[Finding]:
    """Return the findings about the machine that records carry."""
    by_title: dict[str, Mapping[str, Any]] = {}
    for machine in {id(record.machine): record.machine for record in study.records}.values():
        findings = machine.get("findings")
        for each in findings if isinstance(findings, (list, tuple)) else ():
            if isinstance(each, Mapping) and each.get("claim" if "claim" in each else "title"):
                by_title.setdefault(str(each.get("title") or each.get("claim")), each)
    for title, each in by_title.items():
        level = str(each.get("severity") or each.get("level"))
        yield Finding(
            level="problem" if level in ("error", "problem") else "warning" if level == "warning" else "info",
            title=shorten(title, 300),
            evidence=shorten(str(each.get("evidence") or ""), 300),
            remedy=shorten(str(each.get("remedy") or ""), 300),
        )


RELIABILITY_CHECKS: Sequence[Callable[[StudyEvidence], Iterator[Finding]]] = (
    _find_failures,
    _find_disturbed_trials,
    _find_throttled_trials,
    _find_unsteady_trials,
    _find_single_runs,
    _find_wide_intervals,
    _find_speed_changes,
    _find_noise_between_runs,
    _find_mixed_conditions,
    _read_machine_findings,
)
