"""Findings about possible speed-ups: edges of the tried range, memory, page faults, hardware threads."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from corewise.analysis.columns import parse_number
from corewise.analysis.findings.finding import Finding
from corewise.analysis.findings.scaling_findings import find_lost_scaling
from corewise.analysis.findings.study_evidence import StudyEvidence
from corewise.analysis.groups import Group
from corewise.analysis.phrases import describe_task
from corewise.study.record import IN_CACHE_NOTE
from corewise.text_format import format_count, format_list, format_memory, shorten

# Fraction of the machine's memory from which a trial nearly fills it.
MEMORY_NEAR = 0.8
# The least cost of a minor page fault, in seconds.
FAULT_S = 0.25e-6
# Fraction of the step that page faults must take to be reported.
FAULTS_SHARE = 0.05
PAGE_BYTES = 4096
# Fractions of the ceiling: a finding is reported below the first and above the second.
FAR_BELOW, NEAR = 0.5, 0.9


def _find_range_edges(study: StudyEvidence) -> Iterator[Finding]:
    """Find best values at the end of the tried range, where the true best may lie beyond."""
    for group, ranking in study.groups:
        for name in ("batch", "threads", "processes", "interop_threads", "loader_workers"):
            if name not in group.axes or not group.is_number(name) or not ranking.best:
                continue
            best = max(ranking.best.values(), key=lambda i: group.rate[i])
            value, values = group.points[best][name], group.list_values(name)
            line = group.find_trials_along(best, name)
            if value != values[-1] or len(line) < 2 or _is_full(group, best, name):
                continue
            # Without a significant gain up to the edge, none is expected beyond it.
            if ranking.may_equal_best[line].any():
                continue
            more = f"{name}={value},{2 * value},{4 * value}" if name == "batch" else f"{name}={value},{2 * value}"
            yield Finding(
                level="info",
                title=f"{describe_task(group)}: the fastest has the largest {shorten(name)} tried, {value:,}",
                evidence=f"tried: {format_list([f'{each:,}' for each in values], 8)}",
                remedy=f"Try more: {study.build_run_command(f'workload={group.workload}', more)}.",
            )


def _is_full(group: Group, i: int, name: str) -> bool:
    """Return True if no more threads or processes fit into the allocation."""
    if name not in ("threads", "processes"):
        return False
    params, cores = group.records[i].params, group.records[i].machine.get("allocation_cores")
    width = parse_number(params.get("processes") or 1) * parse_number(params.get("threads") or 1)
    return math.isnan(parse_number(cores)) or 2 * width > parse_number(cores)


def _find_memory_pressure(study: StudyEvidence) -> Iterator[Finding]:
    limits = np.array([parse_number(record.machine.get("memory_bytes")) for record in study.records])
    shares = study.gather_metric("peak_memory_bytes") / np.where(limits > 0, limits, np.nan)
    num = int((shares > MEMORY_NEAR).sum())
    if num:
        worst = int(np.nanargmax(shares))
        yield Finding(
            level="warning",
            title=f"{study.name}: {format_count(num, 'trial')} nearly filled the memory",
            evidence=f"up to {100 * shares[worst]:.0f} % of {format_memory(limits[worst])}",
            remedy=(
                "Larger batches will run out of memory. Use fewer processes."
                if study.tuned_by
                else "Larger batches will run out of memory. Split the batch over the processes: "
                f"{study.build_run_command('batch_scope=global')}."
            ),
        )


def _find_page_faults(study: StudyEvidence) -> Iterator[Finding]:
    """Find trials that free and allocate memory in every step."""
    faults, step_s = study.gather_metric("minor_faults_per_step"), study.gather_metric("step_s")
    shares = faults * FAULT_S / np.where(step_s > 0, step_s, np.nan)
    allocators = [record.params.get("allocator", "default") for record in study.records]
    has_default = np.array([allocator == "default" for allocator in allocators], dtype=bool)
    many = np.flatnonzero(has_default & (shares > FAULTS_SHARE))
    if many.size == 0:
        return
    worst = int(many[np.argmax(shares[many])])
    yield Finding(
        level="info",
        title=f"{study.name}: {format_count(many.size, 'trial')} allocate much memory in every step",
        evidence=(
            f"up to {faults[worst]:,.0f} page faults ({format_memory(faults[worst] * PAGE_BYTES)}) per step "
            f"with {study.describe_trial(study.records[worst])}"
        ),
        remedy=f"Let the allocator keep freed memory: {study.build_run_command('allocator=default,retain')}.",
    )


def _find_unused_smt(study: StudyEvidence) -> Iterator[Finding]:
    """Find hardware threads that no trial used."""
    if any("smt" in group.varying for group, _ in study.groups):
        return
    for record in study.records[:1]:
        num_cpus = _count_cpus(record.machine.get("allocation_cpus"))
        cores = parse_number(record.machine.get("allocation_cores"))
        if num_cpus > cores and not record.params.get("smt"):
            yield Finding(
                level="info",
                title=f"{study.name}: the second hardware thread of each core was not tried",
                evidence=f"{num_cpus} CPUs on {cores:.0f} cores",
                remedy=f"Test whether it helps: {study.build_run_command('smt=false,true')}.",
            )


def _compare_with_ceiling(study: StudyEvidence) -> Iterator[Finding]:
    """Compare the fastest trial with the ceiling, if it is far below or close to it."""
    for group, ranking in study.groups:
        if not ranking.best:
            continue
        best = max(ranking.best.values(), key=lambda i: group.rate[i])
        # The figures of a disturbed trial are too uncertain.
        if group.is_disturbed[best]:
            continue
        metrics = group.records[best].metrics
        if IN_CACHE_NOTE in group.records[best].notes:
            continue
        reached = parse_number(metrics.get("fraction_of_ceiling"))
        # Written with `not` because NaN, an unknown fraction, must be skipped.
        if not reached > 0 or FAR_BELOW < reached < NEAR:
            continue
        limit = "memory" if metrics.get("memory_bound") else "compute"
        share = f"{100 * reached:.0f} %" if reached >= 0.01 else "less than 1 %"
        yield Finding(
            level="info",
            title=(
                f"{describe_task(group)}: the fastest reaches {share} of what this machine attains at this "
                f"intensity: {limit}-bound"
            ),
            evidence=_describe_ceiling(metrics),
            remedy=_suggest_next_step(study, group, best, reached, limit),
        )


def _describe_ceiling(metrics: Mapping[str, float]) -> str:
    """Describe the figures behind a fraction of the ceiling."""
    parts = []
    if "gflop_per_s" in metrics and "ceiling_gflop_per_s" in metrics:
        parts.append(f"{metrics['gflop_per_s']:,.4g} of {metrics['ceiling_gflop_per_s']:,.4g} Gflop/s")
    if "ceiling_gbyte_per_s" in metrics:
        parts.append(f"a bandwidth of {metrics['ceiling_gbyte_per_s']:,.4g} GB/s")
    if "flops_per_byte" in metrics:
        parts.append(f"{metrics['flops_per_byte']:,.3g} flops per byte of least traffic")
    return "; ".join(parts)


def _suggest_next_step(study: StudyEvidence, group: Group, best: int, reached: float, limit: str) -> str:
    """Suggest how to come closer to the ceiling."""
    record = group.records[best]
    if reached >= NEAR:
        fewer = "bytes" if limit == "memory" else "flops"
        return f"No setting can improve this. Only fewer {fewer} can, for example with a shorter number format."
    only = f"workload={group.workload}"
    if record.work.get("num_parameters") and group.mode in ("train", "infer"):
        if limit == "compute":
            mode = f" --mode {group.mode}"
            return f"See which of its primitives fall short: `corewise primitives {group.workload}{mode}`."
        if record.params.get("execution") == "eager" and not study.tuned_by:
            command = study.build_run_command(only, "execution=eager,compile")
            return f"Fuse operators to reduce memory traffic: {command}."
    if study.tuned_by:
        return "No tried setting comes closer. Other code or a shorter number format may."
    threads = parse_number(record.params.get("threads"))
    if threads > 1:
        widths = sorted({1, int(threads) // 2, int(threads)})
        narrower = study.build_run_command(only, f"threads={','.join(map(str, widths))}")
        return f"Find where more threads stop helping: {narrower}."
    return f"Test whether huge pages help: {study.build_run_command(only, 'huge_pages=default,transparent')}."


def _count_cpus(text: Any) -> int:
    """Count the CPUs in a list such as 0-7,16-23; 0 for anything else."""
    num = 0
    try:
        for part in str(text).split(","):
            first, _, last = part.partition("-")
            num += int(last or first) - int(first) + 1
    except ValueError:
        return 0
    return num


Check = Callable[[StudyEvidence], Iterator[Finding]]
SPEEDUP_CHECKS: Sequence[Check] = (
    _find_memory_pressure,
    _find_range_edges,
    _find_page_faults,
    _find_unused_smt,
    _compare_with_ceiling,
    find_lost_scaling,
)
# The other checks suggest settings that a tuning has tried already or was not allowed to try.
TUNING_SPEEDUP_CHECKS: Sequence[Check] = (_find_memory_pressure, _compare_with_ceiling)
