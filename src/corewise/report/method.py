"""How a study was measured: its protocol, how much noise there was, and what was done about it."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from corewise.report.columns import number_or_nan
from corewise.report.groups import Group
from corewise.report.words import counted, duration, listed, short, shown
from corewise.spec.record import Record
from corewise.stats.values import Values

_NOISE = {
    "between_process_cv": "noise between processes",
    "within_process_cv": "noise within a process",
}


def method_of(groups: Sequence[Group]) -> list[tuple[str, str]]:
    """Names and values, in the order a reader asks for them."""
    records = [record for group in groups for record in group.records]
    every = [*records, *(record for group in groups for record, _ in group.unmeasured)]
    if not every:
        return []
    return [*_extent(records, every), *_protocol(records or every), *_noise(groups, records)]


def _extent(records: Sequence[Record], every: Sequence[Record]) -> Iterator[tuple[str, str]]:
    counts = Counter(record.status for record in every)
    words = [f"{counts[status]:,} {status}" for status in ("ok", "failed", "skipped") if counts[status]]
    yield "trials", ", ".join(words)
    runs = sum(len(record.runs) for record in records)
    if runs:
        yield (
            "runs",
            f"{runs:,} that count, in fresh processes, trials taking turns so that drift falls on all alike",
        )
    began = min((record.started_at for record in every if record.started_at), default="")
    ended = max((record.finished_at for record in every if record.finished_at), default="")
    if began and ended:
        yield "measured", f"{short(began)} to {short(ended)} (UTC)"


def _protocol(records: Sequence[Record]) -> Iterator[tuple[str, str]]:
    told = _values(record.protocol for record in records)
    if not told:
        return

    def of(name: str) -> str:
        return listed([shown(value) for value in told.get(name, [])], 4, "or")

    if "min_runs" in told and "max_runs" in told:
        target = [f"±{100 * value:g} %" for value in told.get("target_interval", []) if _is_number(value)]
        until = f", until the interval is within {listed(target, 4, 'or')}" if target else ""
        yield "runs per trial", f"{of('min_runs')} to {of('max_runs')}{until}"
    confidence = [f"{100 * value:g} %" for value in told.get("confidence", []) if _is_number(value)]
    yield (
        "interval",
        f"{listed(confidence, 4, 'or') or '95 %'}: Student's t on the logarithms of the runs' values, at "
        "Pocock's level for having looked after each run",
    )
    if "max_warmup_s" in told:
        yield (
            "warm-up",
            f"until neighbouring windows agree within {of('steady_tolerance')}; steps at "
            f"least {of('min_warmup_steps')}, time at most {of('max_warmup_s')} s",
        )
    if "min_samples" in told:
        yield (
            "samples",
            f"at least {of('min_samples')} and {of('min_sample_s')} s in each process, "
            f"at most {of('max_samples')}",
        )
    if "max_repeats_disturbed" in told:
        yield "disturbed runs", f"set aside and repeated, {of('max_repeats_disturbed')} times a trial at most"


def _noise(groups: Sequence[Group], records: Sequence[Record]) -> Iterator[tuple[str, str]]:
    if not records:
        return
    yield from _correctness(groups, records)
    aside = sum(len(record.disturbed) for record in records)
    disturbed = sum(int(group.is_disturbed.sum()) for group in groups)
    yield "set aside", f"{counted(aside, 'run')}; {counted(disturbed, 'trial')} count disturbed runs"
    canary, ratios = _metric(groups, "canary_s"), canary_ratios(groups)
    if ratios.size > 1:
        low, high = np.quantile(ratios, [0.05, 0.95])
        yield (
            "canary",
            f"a fixed loop took {duration(float(np.median(canary)))}; in 9 of 10 trials between {low:.2f} "
            f"and {high:.2f} times what is usual on as many cores",
        )
    for name, title in _NOISE.items():
        values = _metric(groups, name)
        if values.size:
            middle, most = 100 * np.median(values), 100 * values.max()
            yield title, f"{middle:.1f} % of the step in the middle, at most {most:.1f} %"
    for name, title in (("steal_s", "stolen by the hypervisor"), ("throttled_s", "throttled by a quota")):
        values = _metric(groups, name)
        if values.size:
            num = int((values > 0).sum())
            yield (
                title,
                f"in {counted(num, 'trial')}, at most {duration(float(values.max()))}" if num else "never",
            )


def canary_ratios(groups: Sequence[Group]) -> Values:
    """The canary of each trial over its median on as many cores: the more work, the lower the clock."""
    found = []
    for group in groups:
        canary, widths = group.metric("canary_s"), group.numbers("processes") * group.numbers("threads")
        for width in np.unique(widths[~np.isnan(canary)]):
            same = canary[(widths == width) & ~np.isnan(canary)]
            found.append(same / np.median(same))
    return np.concatenate(found) if found else np.empty(0)


def _correctness(groups: Sequence[Group], records: Sequence[Record]) -> Iterator[tuple[str, str]]:
    errors = _metric(groups, "check_error")
    if errors.size:
        yield (
            "numerical check",
            f"before any timing, in {errors.size:,} of {counted(len(records), 'trial')}; largest error "
            f"{errors.max():.2g}",
        )
    data = [short(value) for value in dict.fromkeys(str(r.params.get("data")) for r in records)]
    if data != ["None"]:
        yield "input", listed(data)


def _metric(groups: Sequence[Group], name: str) -> Values:
    values = np.concatenate([group.metric(name) for group in groups]) if groups else np.empty(0)
    return np.asarray(values[~np.isnan(values)])


def _values(mappings: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Each name with the different values it has, in the order they occur."""
    seen: dict[int, None] = {}
    found: dict[str, dict[str, Any]] = {}
    for mapping in mappings:
        if id(mapping) in seen:
            continue
        seen[id(mapping)] = None
        for name, value in mapping.items():
            found.setdefault(name, {})[shown(value)] = value
    return {name: list(values.values()) for name, values in found.items()}


def _is_number(value: Any) -> bool:
    return not np.isnan(number_or_nan(value))
