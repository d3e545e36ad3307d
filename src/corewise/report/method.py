"""How a study was measured: its protocol, how much noise there was, and what was done about it."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

from corewise.report.columns import number_or_nan
from corewise.report.groups import Group
from corewise.report.machines import machine_key
from corewise.report.standing import looks_of
from corewise.report.words import counted, duration, listed, short, shown
from corewise.spec.record import Record
from corewise.stats.values import Values

_LAST_SECOND = 253_402_300_800.0  # the year 10000, which dates do not reach
MIN_OTHERS = 3  # trials whose canary makes a median worth comparing with
_NOISE = {
    "between_process_cv": "noise between runs",
    "within_process_cv": "noise within a run",
}


def method_of(groups: Sequence[Group]) -> list[tuple[str, str]]:
    """Names and values, in the order a reader asks for them."""
    records = [record for group in groups for record in group.records]
    every = [*records, *(record for group in groups for record, _ in group.unmeasured)]
    if not every:
        return []
    told = [*_extent(groups, every), *_protocol(records or every), *_noise(groups, records)]
    return [*told, *_ceilings(records)]


def _ceilings(records: Sequence[Record]) -> Iterator[tuple[str, str]]:
    """Whether trials were set against what their machine attains, and how to have it so."""
    judged = [record for record in records if "fraction_of_ceiling" in record.metrics]
    if judged:
        days = sorted({day for record in judged if (day := _measured_on(record))})
        when = f" on {listed(days)}" if days else ""
        yield (
            "ceilings",
            f"of {counted(len(judged), 'trial')}, as `corewise doctor --ceilings` had measured them{when}"
            + (f". {warning.removesuffix('.')}" if (warning := busy_words(judged)) else ""),
        )
    elif any(name in record.metrics for record in records for name in ("gflop_per_s", "gbyte_per_s")):
        yield "ceilings", "not measured: run `corewise doctor --ceilings` before the study"


def busy_words(records: Sequence[Record]) -> str:
    """A warning where ceilings are known only from a busy machine; else nothing."""
    busy = [number_or_nan(record.metrics.get("ceilings_busy")) > 0 for record in records]
    if not any(busy):
        return ""
    whose = "The ceilings" if all(busy) else f"The ceilings of {counted(sum(busy), 'trial')}"
    return f"{whose} were measured on a busy machine: too low."


def _measured_on(record: Record) -> str:
    """The day of the ceilings, in UTC; nothing where it is not told."""
    seconds = number_or_nan(record.metrics.get("ceilings_measured_at"))
    if not 0 < seconds < _LAST_SECOND:
        return ""
    return datetime.fromtimestamp(seconds, UTC).date().isoformat()


def _extent(groups: Sequence[Group], every: Sequence[Record]) -> Iterator[tuple[str, str]]:
    counts = Counter(record.status for record in every)
    words = [f"{counts[status]:,} {status}" for status in ("ok", "failed", "skipped") if counts[status]]
    yield "trials", ", ".join(words)
    runs = sum(len(record.runs) for group in groups for record in group.records)
    if runs:
        yield "runs", f"{runs:,} that count, each in fresh processes{_turns(groups)}"
    began = min((record.started_at for record in every if record.started_at), default="")
    ended = max((record.finished_at for record in every if record.finished_at), default="")
    if began and ended:
        yield "measured", f"{short(began)} to {short(ended)} (UTC)"


def _turns(groups: Sequence[Group]) -> str:
    """Whether trials took turns, as their times tell: each lasts while others of its store and host do."""
    spans: dict[tuple[int, str], list[tuple[str, str]]] = {}
    for group in groups:
        for record, source in zip(group.records, group.sources, strict=True):
            place = (id(source), str(record.machine.get("hostname")))
            spans.setdefault(place, []).append((record.started_at, record.finished_at))
    sizes = [size for each in spans.values() for size in _batch_sizes(each)]
    if max(sizes, default=1) == 1:
        return ", one trial after another" if len(sizes) > 1 else ""
    if len(sizes) == 1:
        return ", trials taking turns so that drift falls on all alike"
    return f", in {len(sizes):,} batches: trials of one batch took turns, so that drift falls on them alike"


def _batch_sizes(spans: Sequence[tuple[str, str]]) -> Iterator[int]:
    """How many trials were under way together, batch by batch."""
    size, ended = 0, ""
    for start, finish in sorted(spans):
        if size and start >= ended:
            yield size
            size = 0
        size, ended = size + 1, max(ended, finish)
    yield size


def _protocol(records: Sequence[Record]) -> Iterator[tuple[str, str]]:
    told = _values(record.protocol for record in records)
    if not told:
        return

    def of(name: str) -> str:
        return listed([shown(value) for value in told.get(name, [])], 4, "or")

    looked = any(looks_of(record) for record in _one_each(records))
    if "min_runs" in told and "max_runs" in told:
        target = [f"±{100 * value:g} %" for value in told.get("target_interval", []) if _is_number(value)]
        until = f", until the interval is within {listed(target, 4, 'or')}" if target and looked else ""
        yield "runs per trial", f"{of('min_runs')} to {of('max_runs')}{until}" if looked else of("max_runs")
    confidence = [f"{100 * value:g} %" for value in told.get("confidence", []) if _is_number(value)]
    yield (
        "interval",
        f"{listed(confidence, 4, 'or') or '95 %'}: Student's t on the logarithms of the runs' values"
        + (", at Pocock's level for having looked after each run" if looked else ""),
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
            f"at least {of('min_samples')} and {of('min_sample_s')} s in each run, "
            f"at most {of('max_samples')}",
        )
    repeats = told.get("max_repeats_disturbed", [])
    if repeats:
        most = f"{of('max_repeats_disturbed')} times a trial at most"
        yield "disturbed runs", f"set aside and repeated, {most}" if any(repeats) else "marked, not repeated"


def _noise(groups: Sequence[Group], records: Sequence[Record]) -> Iterator[tuple[str, str]]:
    if not records:
        return
    yield from _correctness(groups, records)
    aside = sum(len(record.disturbed) for record in records)
    disturbed = sum(int(group.is_disturbed.sum()) for group in groups)
    yield "set aside", f"{counted(aside, 'run')}; {counted(disturbed, 'trial')} count disturbed runs"
    canary, ratios = _metric(groups, "canary_s"), canary_ratios(groups)
    if canary.size:
        told = f"; {canary_words(ratios)}" if ratios.size else ""
        yield "canary", f"a fixed loop took {duration(float(np.median(canary)))} in the middle{told}"
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
    """The canary of each trial over the median of the others on as many cores of the same machine.

    The more cores work, the lower the clock; and where there are few others, none of them is a measure.
    """
    alike: dict[tuple[Any, float], list[float]] = {}
    machines: dict[int, Any] = {}
    for group in groups:
        canary, widths = group.metric("canary_s"), group.numbers("processes") * group.numbers("threads")
        for i in np.flatnonzero(~np.isnan(canary)).tolist():
            record = group.records[i]
            if id(record.machine) not in machines:
                machines[id(record.machine)] = machine_key(record)
            place = (machines[id(record.machine)], float(widths[i]))
            alike.setdefault(place, []).append(float(canary[i]))
    found = [_over_others(np.array(each)) for each in alike.values() if len(each) > MIN_OTHERS]
    return np.concatenate(found) if found else np.empty(0)


def _over_others(values: Values) -> Values:
    """Each value over the median of all but itself."""
    order = np.argsort(values, kind="stable")
    ordered, num = values[order], values.size
    place = np.arange(num)
    low, high = (num - 2) // 2, (num - 1) // 2  # of the others: one fewer
    middle = (ordered[low + (place <= low)] + ordered[high + (place <= high)]) / 2
    found = np.empty(num)
    found[order] = ordered / middle
    return found


def canary_words(ratios: Values) -> str:
    """How far the canary spread."""
    low, high = np.quantile(ratios, [0.05, 0.95])
    return (
        f"from {low:.2f} to {high:.2f} times the median of other trials on as many cores (5th and 95th "
        f"percentile of {counted(ratios.size, 'trial')})"
    )


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


def _one_each(records: Sequence[Record]) -> Iterable[Record]:
    """One record of each protocol."""
    return {id(record.protocol): record for record in records}.values()


def _is_number(value: Any) -> bool:
    return not np.isnan(number_or_nan(value))
