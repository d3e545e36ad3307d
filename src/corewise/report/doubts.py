"""Findings that ask whether figures can be trusted: failures, disturbances, noise, and too few runs."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from corewise.report.columns import number_or_nan
from corewise.report.groups import WIDTHS
from corewise.report.method import canary_ratios, canary_words
from corewise.report.model import Finding
from corewise.report.phrases import task_words, value_words
from corewise.report.standing import look_level, looks_of
from corewise.report.studied import Studied
from corewise.report.words import counted, listed, short
from corewise.spec.record import Record
from corewise.stats.quantiles import t_quantile
from corewise.stats.sequential import level_per_look

CANARY_SPREAD = 0.10  # between the 5th and the 95th percentile of trials
MANY_RUNS = 60  # more runs than this are no remedy
_MIXED = {"version": "framework versions", "protocol": "protocols", "allocation": "allocations"}


def _failures(studied: Studied) -> Iterator[Finding]:
    failed = [r for group, _ in studied.groups for r, _ in group.unmeasured if r.status == "failed"]
    if not failed:
        return
    kinds = Counter(record.kind or "error" for record in failed)
    told = ", ".join(f"{short(kind)} {num:,}" for kind, num in kinds.most_common())
    [(reason, num)] = Counter(record.reason or "no reason was recorded" for record in failed).most_common(1)
    remedy = f"Mend the cause and run them again: {studied.again(also='--retry-failed')}."
    if kinds.most_common(1)[0][0] == "memory":
        remedy = f"Use a smaller batch or fewer processes, as in {studied.again('batch=1,2,4')}."
    yield Finding(
        level="problem",
        title=f"{studied.name}: {counted(len(failed), 'trial')} failed",
        evidence=f"{told}; {num:,} with: {short(reason, 200)}",
        remedy=remedy,
    )


def _disturbed(studied: Studied) -> Iterator[Finding]:
    records = studied.records
    disturbed = [g.records[i] for g, _ in studied.groups for i in np.flatnonzero(g.is_disturbed).tolist()]
    if not disturbed:
        return
    words = Counter(
        kind
        for record in disturbed
        for run in record.runs
        for kind in {_kind_of(str(text)) for text in run.get("disturbances") or ()}
    )
    causes = ", ".join(f"{cause} in {counted(num, 'run')}" for cause, num in words.most_common(4))
    of_host = bool(words) and words.most_common(1)[0][0] == _CAUSES["hypervisor"]
    best = any(group.is_disturbed[i] for group, s in studied.groups for i in s.best.values())
    yield Finding(
        level="warning",
        title=f"{studied.name}: {len(disturbed):,} of {counted(len(records), 'trial')} with disturbed runs"
        + (", a fastest one among them" if best and len(records) > 1 else ""),
        evidence=causes,
        remedy=(
            f"Ask for a host of your own, and measure there: {studied.again(store='quiet-store')}."
            if of_host
            else "Stop what else runs on the machine, and measure into a new store: "
            f"{studied.again(store='quiet-store')}.{_leave_a_core(studied, disturbed)}"
        ),
    )


def _leave_a_core(studied: Studied, disturbed: Sequence[Record]) -> str:
    """The advice to keep a core free, where the trials in question would still fit."""
    for record in disturbed:
        width = math.prod(number_or_nan(record.params.get(name) or 1) for name in WIDTHS)
        if not width < number_or_nan(record.machine.get("allocation_cores")):
            return ""
    command = studied.again("reserved_cores=1", store="quiet-store")
    return f" Or leave a core to it: {command}."


_CAUSES = {  # a word of what the probes tell -> what it is told as here
    "fixed loop": "a slow CPU",
    "hypervisor": "time taken by the hypervisor",
    "quota": "a CPU quota",
    "idle CPUs": "work on idle CPUs of the allocation",
    "other processes": "other processes on the ranks' CPUs",
}


def _kind_of(text: str) -> str:
    """The kind of a disturbance that was told with its figures."""
    return next((cause for word, cause in _CAUSES.items() if word in text), short(text, 60))


def _throttled(studied: Studied) -> Iterator[Finding]:
    throttled_s = studied.metric("throttled_s")
    num = int((throttled_s > 0).sum())
    if num:
        yield Finding(
            level="warning",
            title=f"{studied.name}: a CPU quota stopped {counted(num, 'trial')}",
            evidence=f"up to {np.nanmax(throttled_s):.3g} s of a run's sampling",
            remedy="Raise the quota to a whole number of CPUs, or use fewer: `corewise doctor` shows it.",
        )


def _unsteady(studied: Studied) -> Iterator[Finding]:
    noted = [record for record in studied.records if record.notes]
    unsteady = [record for record in noted if any("steady" in str(note) for note in record.notes)]
    if unsteady:
        limit = max((number_or_nan(r.protocol.get("max_warmup_s")) for r in unsteady), default=math.nan)
        longer = 30.0 if math.isnan(limit) else max(30.0, 3 * limit)
        yield Finding(
            level="warning",
            title=f"{studied.name}: {counted(len(unsteady), 'trial')} not steady after warm-up",
            evidence=studied.named(unsteady),
            remedy=f"Allow a longer warm-up: {studied.again(f'protocol.max_warmup_s={longer:g}')}.",
        )


def _wide(studied: Studied) -> Iterator[Finding]:
    """Trials that stopped for want of runs, not because their interval was narrow enough."""
    wide: list[tuple[float, int, Record]] = []
    total = len(studied.records)
    for group, _ in studied.groups:
        targets = np.array([number_or_nan(r.protocol.get("target_interval")) for r in group.records])
        spread = (group.high - group.low) / 2 / group.rate
        found = np.flatnonzero((spread > targets) & (targets > 0) & (group.rates.num > 1)).tolist()
        wide += [(float(spread[i] / targets[i]), int(group.rates.num[i]), group.records[i]) for i in found]
    if not wide:
        return
    factor, num, record = sorted(wide, key=lambda each: each[:2])[len(wide) // 2]
    needed = _runs_needed(factor, num, record)
    remedy = (
        f"About {needed} runs would do: {studied.again(f'protocol.max_runs={needed}')}."
        if needed is not None
        else f"More than {MANY_RUNS} runs would be needed: quiet the machine rather (`corewise doctor`). "
        f"Longer sampling helps where steps vary: {studied.again('protocol.min_sample_s=5')}."
    )
    yield Finding(
        level="warning" if len(wide) > total / 2 else "info",
        title=f"{studied.name}: {len(wide):,} of {counted(total, 'trial')} missed the interval asked for",
        evidence=f"in the middle {factor:.1f} times as wide as asked for, after {counted(num, 'run')}",
        remedy=remedy,
    )


def _runs_needed(factor: float, num: int, record: Record) -> int | None:
    """How many runs narrow an interval of so many by this factor; None for more than are worth while.

    The half width is t s / sqrt(n), with Pocock's level for looks up to the most runs considered.
    """
    looks = looks_of(record)
    least = looks[0] if looks else num
    wanted = _half_width(num, look_level(record)) / factor
    if _half_width(MANY_RUNS, look_level(record)) > wanted:
        return None
    level = level_per_look(min(least, MANY_RUNS), MANY_RUNS, 0.95)
    enough = (n for n in range(num + 1, MANY_RUNS + 1) if _half_width(n, level) <= wanted)
    return next(enough, None)


def _half_width(num: int, level: float) -> float:
    """Of an interval over so many runs, in standard deviations of a run."""
    return float(t_quantile(num - 1, 1 - level / 2)) / math.sqrt(num)


def _single(studied: Studied) -> Iterator[Finding]:
    num = sum(int((group.rates.num < 2).sum()) for group, _ in studied.groups)
    total = len(studied.records)
    if num:
        yield Finding(
            level="warning",
            title=f"{studied.name}: {num:,} of {counted(total, 'trial')} had a single run",
            evidence="one run shows no variation between runs: no interval and no comparison",
            remedy=f"Ask for more: {studied.again('protocol.min_runs=5', 'protocol.max_runs=10')}.",
        )


def _canary(studied: Studied) -> Iterator[Finding]:
    values = canary_ratios([group for group, _ in studied.groups])
    if values.size < 5:
        return
    low, high = np.quantile(values, [0.05, 0.95])
    if high - low > CANARY_SPREAD:
        yield Finding(
            level="warning",
            title=f"{studied.name}: the speed of the CPU itself changed between trials",
            evidence=f"a fixed loop took {canary_words(values)}",
            remedy="Look at frequency scaling and at neighbours on a shared host: `corewise doctor`.",
        )


def _between(studied: Studied) -> Iterator[Finding]:
    """Where noise lies between runs, more samples in each do not help."""
    between_all, within_all = studied.metric("between_process_cv"), studied.metric("within_process_cv")
    both = ~(np.isnan(between_all) | np.isnan(within_all))
    if both.sum() < 5:
        return
    between, within = float(np.median(between_all[both])), float(np.median(within_all[both]))
    if between > 2 * within and between > 0.01:
        yield Finding(
            level="info",
            title=f"{studied.name}: runs differ more from each other than their steps do",
            evidence=f"in the middle {100 * between:.1f} % between runs, {100 * within:.1f} % within",
            remedy=f"More runs help, more samples do not: {studied.again('protocol.max_runs=20')}.",
        )


def _mixture(studied: Studied) -> Iterator[Finding]:
    for group, _ in studied.groups:
        for name, what in (
            ("version", "framework versions"),
            ("protocol", "protocols"),
            ("allocation", "allocations"),
        ):
            if name in group.varying:
                values = [value_words(name, value) for value in group.values(name)]
                yield Finding(
                    level="info",
                    title=f"{task_words(group)}: trials of different {what} stand side by side",
                    evidence=listed([short(value, 120) for value in values], 4),
                    remedy="They are ranked apart; `corewise compare` compares stores of their own.",
                )


def _from_machine(studied: Studied) -> Iterator[Finding]:
    """What was found of the machine when it was measured, where records carry it."""
    told: dict[str, Mapping[str, Any]] = {}
    for machine in {id(record.machine): record.machine for record in studied.records}.values():
        findings = machine.get("findings")
        for each in findings if isinstance(findings, (list, tuple)) else ():
            if isinstance(each, Mapping) and each.get("claim" if "claim" in each else "title"):
                told.setdefault(str(each.get("title") or each.get("claim")), each)
    for title, each in told.items():
        level = str(each.get("severity") or each.get("level"))
        yield Finding(
            level="problem" if level in ("error", "problem") else "warning" if level == "warning" else "info",
            title=short(title, 300),
            evidence=short(str(each.get("evidence") or ""), 300),
            remedy=short(str(each.get("remedy") or ""), 300),
        )


DOUBTS: Sequence[Callable[[Studied], Iterator[Finding]]] = (
    _failures, _disturbed, _throttled, _unsteady, _single, _wide, _canary, _between, _mixture, _from_machine,
)  # fmt: skip
