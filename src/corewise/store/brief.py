"""Records cut down to what tables, comparisons and reports need, so that very many fit into memory."""

import sys
from collections.abc import Mapping
from typing import Any

import orjson

from corewise.spec.record import Record
from corewise.store.packed import PackedMapping, PackedRuns

_MAX_SHARED = 10_000
_shared: dict[bytes, Mapping[str, Any]] = {}


def brief(record: Record) -> Record:
    """The record without its environment, command, samples and ranks.

    Its runs keep their status, the metrics of `PackedRuns.METRICS` and their disturbances. About 1.5 kB each;
    equal machines, versions, protocols and texts are held once. `Store.at` gives the whole record again.
    """
    return Record(
        trial_id=record.trial_id,
        study=sys.intern(record.study),
        status=sys.intern(record.status),
        question=sys.intern(record.question),
        reason=sys.intern(record.reason),
        kind=sys.intern(record.kind),
        params=PackedMapping.of(record.params),
        metrics=PackedMapping.of(record.metrics),
        runs=PackedRuns.of(record.runs),
        disturbed=PackedRuns.of(record.disturbed),
        machine=_one_of_equals(record.machine),
        versions=_one_of_equals(record.versions),
        protocol=_one_of_equals(record.protocol),
        work=_one_of_equals(record.work),
        notes=tuple(sys.intern(note) if type(note) is str else note for note in record.notes),
        started_at=record.started_at,
        finished_at=record.finished_at,
        corewise_version=sys.intern(record.corewise_version),
    )


def outline(record: Record) -> Record:
    """What tells which record of which trial this is and how it ended: its ids, status and time."""
    return Record(
        trial_id=record.trial_id,
        study=sys.intern(record.study),
        status=sys.intern(record.status),
        finished_at=record.finished_at,
    )


def _one_of_equals(mapping: Mapping[str, Any]) -> Mapping[str, Any]:
    """The first mapping seen that is equal to this one."""
    if not mapping:
        return mapping
    try:
        key = orjson.dumps(mapping)
    except TypeError:  # a number or a text that orjson does not take
        return mapping
    if len(_shared) > _MAX_SHARED:
        _shared.clear()
    return _shared.setdefault(key, mapping)
