"""The nouns both sides share: a trial file goes in, one result file per rank comes out.

This file travels to the measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any, Mapping

SCHEMA_VERSION = 1
NO_CHECK = "none given"  # what a step of one's own that brings no check is checked against
NO_EFFECT = "has no effect: "  # in a refusal: what was asked for changes nothing of this work, and why
NOT_NOW = "not-now"  # the kind of a refusal for want of free memory or disk: tried again by the next run


@dataclasses.dataclass(frozen=True)
class RankPlacement:
    """The CPUs and memory nodes one rank is given."""

    cpus: tuple[int, ...]
    memory_nodes: tuple[int, ...] = ()
    memory_policy: str = "default"  # default | local | interleave


@dataclasses.dataclass(frozen=True)
class Protocol:
    """How a trial is measured; every duration in seconds."""

    min_runs: int = 5  # fresh processes per trial
    max_runs: int = 10
    target_interval: float = 0.02  # half width of the interval over the median at which runs stop
    confidence: float = 0.95
    min_warmup_steps: int = 3
    max_warmup_s: float = 30.0
    steady_tolerance: float = 0.05  # two neighbouring windows of steps agree within this
    min_samples: int = 10
    min_sample_s: float = 1.0  # time spent sampling in each process
    max_samples: int = 1000
    timeout_s: float = 600.0  # one process, start to result
    max_repeats_disturbed: int = 2
    start: str = "fork"  # fork | fresh


@dataclasses.dataclass(frozen=True)
class Trial:
    """One point of a study, complete enough to be run by hand."""

    trial_id: str
    params: Mapping[str, Any]  # every axis, concrete
    protocol: Protocol
    ranks: tuple[RankPlacement, ...]
    env: Mapping[str, str]
    python: tuple[str, ...]  # prefix words and interpreter
    work: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def num_ranks(self) -> int:
        return len(self.ranks)


@dataclasses.dataclass(frozen=True)
class RankResult:
    """What one rank left behind, for good or ill."""

    status: str  # ok | failed
    rank: int
    reason: str = ""
    kind: str = ""  # of failure: check, memory, crash, timeout, exit, placement, missing, factory, error
    traceback: str = ""
    samples_s: tuple[float, ...] = ()
    steps_per_sample: int = 1
    samples_per_step: float = 1.0  # workload samples (images) one step of this rank completes
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    disturbances: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def to_json(value: Any) -> dict[str, Any]:
    """The dataclass as plain JSON values."""
    plain = dataclasses.asdict(value)
    plain["schema"] = SCHEMA_VERSION
    return plain


def trial_from_json(data: Mapping[str, Any]) -> Trial:
    """The trial described by parsed JSON."""
    _check_schema(data, "trial")
    return Trial(
        trial_id=str(data["trial_id"]),
        params=dict(data["params"]),
        protocol=Protocol(**data["protocol"]),
        ranks=tuple(
            RankPlacement(tuple(r["cpus"]), tuple(r["memory_nodes"]), r["memory_policy"])
            for r in data["ranks"]
        ),
        env=dict(data["env"]),
        python=tuple(data["python"]),
        work=dict(data.get("work", {})),
    )


def rank_result_from_json(data: Mapping[str, Any]) -> RankResult:
    """The rank result described by parsed JSON."""
    _check_schema(data, "result")
    known = {f.name for f in dataclasses.fields(RankResult)}
    values = {k: v for k, v in data.items() if k in known}
    for name in ("samples_s", "disturbances", "notes"):
        values[name] = tuple(values.get(name, ()))
    return RankResult(**values)


def write_json_aside(path: Path, data: Mapping[str, Any]) -> None:
    """Write JSON so that a reader sees the whole file or none of it."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(aside, "w", encoding="utf-8") as out:
            json.dump(data, out, separators=(",", ":"), allow_nan=False)
            out.flush()
            os.fsync(out.fileno())
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def _check_schema(data: Mapping[str, Any], what: str) -> None:
    version = data.get("schema")
    if version != SCHEMA_VERSION:
        raise ValueError(f"{what} file has schema version {version!r}; this Corewise reads {SCHEMA_VERSION}")
