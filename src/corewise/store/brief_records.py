"""Brief records: the parts that tables, comparisons and reports need, so that very many fit into memory."""

import sys
from collections.abc import Mapping
from typing import Any

import orjson

from corewise.store.compact_values import PackedMapping, PackedRuns
from corewise.study.record import Record

_MAX_SHARED = 10_000
_shared: dict[bytes, Mapping[str, Any]] = {}


def extract_brief(record: Record) -> Record:
    """Return the record without its environment, command, samples and ranks.

    Its runs keep what `PackedRuns` holds. A brief record takes about 1.5 kB; equal machines, versions,
    protocols and texts are stored once. `Store.read_at` reads the full record.
    """
    return Record(
        trial_id=record.trial_id,
        study=sys.intern(record.study),
        status=sys.intern(record.status),
        question=sys.intern(record.question),
        reason=sys.intern(record.reason),
        kind=sys.intern(record.kind),
        params=PackedMapping.from_mapping(record.params),
        metrics=PackedMapping.from_mapping(record.metrics),
        runs=PackedRuns.from_runs(record.runs),
        disturbed=PackedRuns.from_runs(record.disturbed),
        machine=_share_mapping(record.machine),
        versions=_share_mapping(record.versions),
        code_versions=_share_mapping(record.code_versions),
        generation=sys.intern(record.generation),
        protocol=_share_mapping(record.protocol),
        work=_share_mapping(record.work),
        notes=tuple(sys.intern(note) if type(note) is str else note for note in record.notes),
        started_at=record.started_at,
        finished_at=record.finished_at,
        corewise_version=sys.intern(record.corewise_version),
        lease=record.lease,
        replaced_leases=record.replaced_leases,
    )


def extract_outline(record: Record) -> Record:
    """Return a record with only its trial id, study, status and finish time."""
    return Record(
        trial_id=record.trial_id,
        study=sys.intern(record.study),
        status=sys.intern(record.status),
        finished_at=record.finished_at,
    )


def _share_mapping(mapping: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the first mapping that was equal to this one."""
    if not mapping:
        return mapping
    try:
        key = orjson.dumps(mapping)
    except TypeError:
        # Orjson rejects some numbers and texts that Python's own reader accepts.
        return mapping
    if len(_shared) > _MAX_SHARED:
        _shared.clear()
    return _shared.setdefault(key, mapping)
