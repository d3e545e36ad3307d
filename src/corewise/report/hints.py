"""Findings that say what may be faster: edges of what was tried, memory, page faults, hardware threads."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from corewise.report.columns import number_or_nan
from corewise.report.groups import Group
from corewise.report.model import Finding
from corewise.report.phrases import task_words
from corewise.report.studied import Studied
from corewise.report.words import counted, listed, memory, short
from corewise.spec.record import IN_CACHE_NOTE

MEMORY_NEAR = 0.8  # of the machine's
FAULT_S = 0.25e-6  # what a minor page fault costs at least
FAULTS_SHARE = 0.05  # of the step
PAGE_BYTES = 4096
FAR_BELOW, NEAR = 0.5, 0.9  # of the attainable: worth a word below the one and above the other


def _edges(studied: Studied) -> Iterator[Finding]:
    """A best value at the end of what was tried: the true best may lie beyond."""
    for group, standing in studied.groups:
        for name in ("batch", "threads", "processes", "interop_threads", "loader_workers"):
            if name not in group.axes or not group.is_number(name) or not standing.best:
                continue
            best = max(standing.best.values(), key=lambda i: group.rate[i])
            value, values = group.points[best][name], group.values(name)
            line = group.along(best, name)
            if value != values[-1] or len(line) < 2 or _is_full(group, best, name):
                continue
            if standing.may_equal_best[line].any():  # no gain is shown that could go on
                continue
            more = (
                f"{name}={value},{2 * value},{4 * value}"
                if name == "batch"
                else f"{name}={value},{2 * value}"
            )
            yield Finding(
                level="info",
                title=f"{task_words(group)}: the fastest has the largest {short(name)} tried, {value:,}",
                evidence=f"tried: {listed([f'{each:,}' for each in values], 8)}",
                remedy=f"Try more: {studied.again(f'workload={group.workload}', more)}.",
            )


def _is_full(group: Group, i: int, name: str) -> bool:
    """True when no more threads or processes fit into the allocation."""
    if name not in ("threads", "processes"):
        return False
    params, cores = group.records[i].params, group.records[i].machine.get("allocation_cores")
    width = number_or_nan(params.get("processes") or 1) * number_or_nan(params.get("threads") or 1)
    return math.isnan(number_or_nan(cores)) or 2 * width > number_or_nan(cores)


def _memory(studied: Studied) -> Iterator[Finding]:
    limits = np.array([number_or_nan(record.machine.get("memory_bytes")) for record in studied.records])
    shares = studied.metric("peak_memory_bytes") / np.where(limits > 0, limits, np.nan)
    num = int((shares > MEMORY_NEAR).sum())
    if num:
        worst = int(np.nanargmax(shares))
        yield Finding(
            level="warning",
            title=f"{studied.name}: {counted(num, 'trial')} nearly filled the memory",
            evidence=f"up to {100 * shares[worst]:.0f} % of {memory(limits[worst])}",
            remedy=(
                "Larger batches will fail; fewer processes share more of it."
                if studied.tuned_by
                else f"Larger batches will fail; share them out: {studied.again('batch_scope=global')}."
            ),
        )


def _faults(studied: Studied) -> Iterator[Finding]:
    """Memory that is given back and taken anew in every step."""
    faults, step_s = studied.metric("minor_faults_per_step"), studied.metric("step_s")
    shares = faults * FAULT_S / np.where(step_s > 0, step_s, np.nan)
    allocators = [record.params.get("allocator", "default") for record in studied.records]
    usual = np.array([allocator == "default" for allocator in allocators], dtype=bool)
    many = np.flatnonzero(usual & (shares > FAULTS_SHARE))
    if many.size == 0:
        return
    worst = int(many[np.argmax(shares[many])])
    yield Finding(
        level="info",
        title=f"{studied.name}: {counted(many.size, 'trial')} take much memory anew in every step",
        evidence=(
            f"up to {faults[worst]:,.0f} page faults a step, that is {memory(faults[worst] * PAGE_BYTES)}, "
            f"with {studied.point(studied.records[worst])}"
        ),
        remedy=f"Let the allocator keep what is freed: {studied.again('allocator=default,retain')}.",
    )


def _smt(studied: Studied) -> Iterator[Finding]:
    """Hardware threads that no trial used."""
    if any("smt" in group.varying for group, _ in studied.groups):
        return
    for record in studied.records[:1]:
        num_cpus = _num_cpus(record.machine.get("allocation_cpus"))
        cores = number_or_nan(record.machine.get("allocation_cores"))
        if num_cpus > cores and not record.params.get("smt"):
            yield Finding(
                level="info",
                title=f"{studied.name}: the second hardware thread of each core was not tried",
                evidence=f"{num_cpus} CPUs on {cores:.0f} cores",
                remedy=f"See whether it pays: {studied.again('smt=false,true')}.",
            )


def _ceiling(studied: Studied) -> Iterator[Finding]:
    """How near the fastest trial comes to what its machine attains, where that is far off or all there is."""
    for group, standing in studied.groups:
        if not standing.best:
            continue
        best = max(standing.best.values(), key=lambda i: group.rate[i])
        if group.is_disturbed[best]:  # not sure enough to be told
            continue
        metrics = group.records[best].metrics
        if IN_CACHE_NOTE in group.records[best].notes:
            continue
        reached = number_or_nan(metrics.get("fraction_of_ceiling"))
        if not reached > 0 or FAR_BELOW < reached < NEAR:  # NaN too
            continue
        limit = "memory" if metrics.get("memory_bound") else "compute"
        share = f"{100 * reached:.0f} %" if reached >= 0.01 else "less than 1 %"
        yield Finding(
            level="info",
            title=(
                f"{task_words(group)}: the fastest reaches {share} of what this machine attains at this "
                f"intensity: {limit}-bound"
            ),
            evidence=_roof_words(metrics),
            remedy=_towards_roof(studied, group, best, reached, limit),
        )


def _roof_words(metrics: Mapping[str, float]) -> str:
    """The figures that a fraction of the ceiling rests on."""
    words = []
    if "gflop_per_s" in metrics and "ceiling_gflop_per_s" in metrics:
        words.append(f"{metrics['gflop_per_s']:,.4g} of {metrics['ceiling_gflop_per_s']:,.4g} Gflop/s")
    if "ceiling_gbyte_per_s" in metrics:
        words.append(f"a bandwidth of {metrics['ceiling_gbyte_per_s']:,.4g} GB/s")
    if "flops_per_byte" in metrics:
        words.append(f"{metrics['flops_per_byte']:,.3g} flops per byte of least traffic")
    return "; ".join(words)


def _towards_roof(studied: Studied, group: Group, best: int, reached: float, limit: str) -> str:
    """What to do next: move fewer bytes, look where the time goes, or use the cores another way."""
    record = group.records[best]
    if reached >= NEAR:
        fewer = "bytes" if limit == "memory" else "flops"
        return f"No setting has more to give here: only fewer {fewer} would, such as a shorter number format."
    only = f"workload={group.workload}"
    if record.work.get("num_parameters") and group.mode in ("train", "infer"):  # a model
        if limit == "compute":
            mode = f" --mode {group.mode}"
            return f"See which of its primitives fall short: `corewise primitives {group.workload}{mode}`."
        if record.params.get("execution") == "eager" and not studied.tuned_by:
            joined = studied.again(only, "execution=eager,compile")
            return f"Join operators, so that less is written and read again: {joined}."
    if studied.tuned_by:
        return "No setting that was tried comes nearer: other code may, or a shorter number format."
    threads = number_or_nan(record.params.get("threads"))
    if threads > 1:
        widths = sorted({1, int(threads) // 2, int(threads)})
        narrower = studied.again(only, f"threads={','.join(map(str, widths))}")
        return f"See where more threads stop to help: {narrower}."
    return f"See whether another memory helps: {studied.again(only, 'huge_pages=default,transparent')}."


def _num_cpus(text: Any) -> int:
    """The number of CPUs in a list such as 0-7,16-23; 0 for anything else."""
    num = 0
    try:
        for part in str(text).split(","):
            first, _, last = part.partition("-")
            num += int(last or first) - int(first) + 1
    except ValueError:
        return 0
    return num


HINTS: Sequence[Callable[[Studied], Iterator[Finding]]] = (_memory, _edges, _faults, _smt, _ceiling)
# A tuning has tried what the others speak of, or was not allowed to.
HINTS_OF_TUNINGS: Sequence[Callable[[Studied], Iterator[Finding]]] = (_memory, _ceiling)
