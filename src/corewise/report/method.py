"""How a study was measured: protocol, noise, and what was done about disturbances."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

from corewise.analysis.canary import compute_canary_ratios, describe_canary
from corewise.analysis.columns import parse_number
from corewise.analysis.counter_columns import NOTES_OF_SOURCES
from corewise.analysis.groups import Group
from corewise.analysis.ratios import get_looks
from corewise.measured.probes.counter_names import NO_COUNTS
from corewise.stats.values import Values
from corewise.study.record import Record
from corewise.text_format import format_count, format_duration, format_list, format_value, shorten

# The first second of the year 10000; datetime cannot represent it.
_DATE_LIMIT_S = 253_402_300_800.0
_NOISE = {"between_process_cv": "noise between runs", "within_process_cv": "noise within a run"}


def describe_method(groups: Sequence[Group]) -> list[tuple[str, str]]:
    """Return names and values in the order a reader asks for them."""
    records = [record for group in groups for record in group.records]
    every = [*records, *(record for group in groups for record, _ in group.unmeasured)]
    if not every:
        return []
    rows = [*_describe_extent(groups, every), *_describe_protocol(records or every), *_describe_noise(groups, records)]
    return [*rows, *_describe_ceilings(records), *_describe_counters(records)]


def _describe_ceilings(records: Sequence[Record]) -> Iterator[tuple[str, str]]:
    """Say whether trials are compared with the machine's ceilings, or how to measure those."""
    judged = [record for record in records if "fraction_of_ceiling" in record.metrics]
    if judged:
        days = sorted({day for record in judged if (day := _format_ceiling_date(record))})
        when = f" on {format_list(days)}" if days else ""
        yield (
            "ceilings",
            f"of {format_count(len(judged), 'trial')}, as `corewise doctor --ceilings` had measured "
            f"them{when}" + (f". {warning.removesuffix('.')}" if (warning := warn_of_busy_ceilings(judged)) else ""),
        )
    elif any(name in record.metrics for record in records for name in ("gflop_per_s", "gbyte_per_s")):
        yield "ceilings", "not measured: run `corewise doctor --ceilings` before the study"


def _describe_counters(records: Sequence[Record]) -> Iterator[tuple[str, str]]:
    """Say which trials have counters, and why others lack those that the study asked for."""
    parts = []
    for source, note in NOTES_OF_SOURCES.items():
        num = sum(any(name.startswith(f"{source}_") for name in record.metrics) for record in records)
        if num:
            parts.append(f"{source} of {format_count(num, 'trial')}: {note}")
    missing = dict.fromkeys(note for record in records for note in record.notes if note.startswith(NO_COUNTS))
    if parts or missing:
        yield "counters", " ".join([*parts, *(f"{note[0].upper()}{note[1:]}." for note in missing)])


def warn_of_busy_ceilings(records: Sequence[Record]) -> str:
    """Return a warning if ceilings were only measured on a busy machine, else ""."""
    busy = [parse_number(record.metrics.get("ceilings_busy")) > 0 for record in records]
    if not any(busy):
        return ""
    whose = "The ceilings" if all(busy) else f"The ceilings of {format_count(sum(busy), 'trial')}"
    return f"{whose} were measured on a busy machine and are too low."


def _format_ceiling_date(record: Record) -> str:
    """Return the UTC date of the ceilings, or "" if it is unknown."""
    seconds = parse_number(record.metrics.get("ceilings_measured_at"))
    if not 0 < seconds < _DATE_LIMIT_S:
        return ""
    return datetime.fromtimestamp(seconds, UTC).date().isoformat()


def _describe_extent(groups: Sequence[Group], every: Sequence[Record]) -> Iterator[tuple[str, str]]:
    counts = Counter(record.status for record in every)
    parts = [f"{counts[status]:,} {status}" for status in ("ok", "failed", "skipped") if counts[status]]
    yield "trials", ", ".join(parts)
    runs = sum(len(record.runs) for group in groups for record in group.records)
    if runs:
        yield "runs", f"{runs:,} counted, each in fresh processes{_describe_turns(groups)}"
    began = min((record.started_at for record in every if record.started_at), default="")
    ended = max((record.finished_at for record in every if record.finished_at), default="")
    if began and ended:
        yield "measured", f"{shorten(began)} to {shorten(ended)} (UTC)"


def _describe_turns(groups: Sequence[Group]) -> str:
    """Say whether trials were interleaved: each lasts while others of its store and host run."""
    spans: dict[tuple[int, str], list[tuple[str, str]]] = {}
    for group in groups:
        for record, source in zip(group.records, group.sources, strict=True):
            place = (id(source), str(record.machine.get("hostname")))
            spans.setdefault(place, []).append((record.started_at, record.finished_at))
    sizes = [size for each in spans.values() for size in _count_batch_sizes(each)]
    if max(sizes, default=1) == 1:
        return ", one trial after another" if len(sizes) > 1 else ""
    if len(sizes) == 1:
        return ", trials interleaved so that drift affects all of them equally"
    return f", in {len(sizes):,} batches; the trials of a batch are interleaved so that drift affects them equally"


def _count_batch_sizes(spans: Sequence[tuple[str, str]]) -> Iterator[int]:
    """Yield how many trials were interleaved, batch by batch."""
    size, ended = 0, ""
    for start, finish in sorted(spans):
        if size and start >= ended:
            yield size
            size = 0
        size, ended = size + 1, max(ended, finish)
    yield size


def _describe_protocol(records: Sequence[Record]) -> Iterator[tuple[str, str]]:
    values = _collect_values(record.protocol for record in records)
    if not values:
        return

    def list_values(name: str) -> str:
        return format_list([format_value(value) for value in values.get(name, [])], 4, "or")

    has_looks = any(get_looks(record.protocol) for record in _find_protocols(records))
    if "min_runs" in values and "max_runs" in values:
        target = [f"±{100 * value:g} %" for value in values.get("target_interval", []) if _is_number(value)]
        until = f", until the interval is within {format_list(target, 4, 'or')}" if target and has_looks else ""
        yield (
            "runs per trial",
            f"{list_values('min_runs')} to {list_values('max_runs')}{until}" if has_looks else list_values("max_runs"),
        )
    confidence = [f"{100 * value:g} %" for value in values.get("confidence", []) if _is_number(value)]
    yield (
        "interval",
        f"{format_list(confidence, 4, 'or') or '95 %'}: Student's t on the logarithms of the runs' values"
        + (", at Pocock's level because the interval was checked after each run" if has_looks else ""),
    )
    if "max_warmup_s" in values:
        yield (
            "warm-up",
            f"until neighbouring windows agree within {list_values('steady_tolerance')}; "
            f"minimum steps {list_values('min_warmup_steps')}, maximum time {list_values('max_warmup_s')} s",
        )
    if "min_samples" in values:
        yield (
            "samples",
            f"at least {list_values('min_samples')} and {list_values('min_sample_s')} s in each run, "
            f"at most {list_values('max_samples')}",
        )
    repeats = values.get("max_repeats_disturbed", [])
    if repeats:
        most = (
            f"at most {list_values('max_repeats_disturbed')} times per trial and no longer than the "
            "study's estimated duration"
        )
        yield "disturbed runs", f"set aside and repeated, {most}" if any(repeats) else "marked, not repeated"


def _describe_noise(groups: Sequence[Group], records: Sequence[Record]) -> Iterator[tuple[str, str]]:
    if not records:
        return
    yield from _describe_correctness(groups, records)
    aside = sum(len(record.disturbed) for record in records)
    disturbed = sum(int(group.is_disturbed.sum()) for group in groups)
    yield (
        "set aside",
        f"{format_count(aside, 'run')}; {format_count(disturbed, 'trial')} still include disturbed runs",
    )
    canary, ratios = _collect_metric(groups, "canary_s"), compute_canary_ratios(groups)
    if canary.size:
        change = f"; {describe_canary(ratios)}" if ratios.size else ""
        yield "canary", f"a fixed loop took {format_duration(float(np.median(canary)))} (median){change}"
    for name, title in _NOISE.items():
        values = _collect_metric(groups, name)
        if values.size:
            middle, most = 100 * np.median(values), 100 * values.max()
            yield title, f"{middle:.1f} % of the step (median), at most {most:.1f} %"
    for name, title in (("steal_s", "stolen by the hypervisor"), ("throttled_s", "throttled by a quota")):
        values = _collect_metric(groups, name)
        if values.size:
            num = int((values > 0).sum())
            yield (
                title,
                f"in {format_count(num, 'trial')}, at most {format_duration(float(values.max()))}" if num else "never",
            )


def _describe_correctness(groups: Sequence[Group], records: Sequence[Record]) -> Iterator[tuple[str, str]]:
    errors = _collect_metric(groups, "check_error")
    if errors.size:
        yield (
            "numerical check",
            f"before any timing, in {errors.size:,} of {format_count(len(records), 'trial')}; largest error "
            f"{errors.max():.2g}",
        )
    data = [shorten(value) for value in dict.fromkeys(str(r.params.get("data")) for r in records)]
    if data != ["None"]:
        yield "input", format_list(data)


def _collect_metric(groups: Sequence[Group], name: str) -> Values:
    values = np.concatenate([group.get_metric(name) for group in groups]) if groups else np.empty(0)
    return np.asarray(values[~np.isnan(values)])


def _collect_values(mappings: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the distinct values of each name, in order of appearance."""
    seen: dict[int, None] = {}
    distinct: dict[str, dict[str, Any]] = {}
    for mapping in mappings:
        if id(mapping) in seen:
            continue
        seen[id(mapping)] = None
        for name, value in mapping.items():
            distinct.setdefault(name, {})[format_value(value)] = value
    return {name: list(values.values()) for name, values in distinct.items()}


def _find_protocols(records: Sequence[Record]) -> Iterable[Record]:
    """Return one record of each protocol."""
    return {id(record.protocol): record for record in records}.values()


def _is_number(value: Any) -> bool:
    return not np.isnan(parse_number(value))
