"""How well more cores pay: each trial's efficiency against the narrowest trial of its kind."""

import json
import statistics
from collections.abc import Sequence
from dataclasses import replace

from corewise.spec.record import Record
from corewise.stats.estimate import Estimate
from corewise.stats.scaling import efficiency_curve

_WIDTHS = ("processes", "threads")


def efficiencies(records: Sequence[Record]) -> dict[str, Estimate]:
    """Trial id -> e = p_w / (w / b · p_b), b being the least width measured with all else equal."""
    kinds: dict[str, list[Record]] = {}
    for record in records:
        others = {name: value for name, value in record.params.items() if name not in _WIDTHS}
        kinds.setdefault(json.dumps(others, sort_keys=True, default=str), []).append(record)
    found: dict[str, Estimate] = {}
    for ones in kinds.values():
        base = min(ones, key=lambda r: (_width(r), _num_processes(r)))
        if len({_width(record) for record in ones}) > 1:
            for record in ones:
                estimate = _against(record, base)
                if estimate is not None:
                    found[record.trial_id] = estimate
    return found


def _against(record: Record, base: Record) -> Estimate | None:
    if record is base:
        return Estimate(1.0, 1.0, 1.0, 0.95, "the base itself", len(record.runs))
    rates, base_rates = _rates(record), _rates(base)
    if not rates or not base_rates:
        return None
    if _width(record) == _width(base):
        return None
    curve = efficiency_curve({_width(base): base_rates, _width(record): rates}, base=_width(base))
    estimate = next(point.efficiency for point in curve if point.width == _width(record))
    if estimate is None:
        return None
    ratio = statistics.median(rates) / statistics.median(base_rates)  # of the very figures shown beside it
    return replace(estimate, value=ratio * _width(base) / _width(record))


def _rates(record: Record) -> list[float]:
    return [r["metrics"]["samples_per_s"] for r in record.runs if "samples_per_s" in r.get("metrics", {})]


def _num_processes(record: Record) -> int:
    return int(record.params.get("processes") or 1)


def _width(record: Record) -> int:
    return _num_processes(record) * int(record.params.get("threads") or 1)
