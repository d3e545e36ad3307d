"""The files both sides share: one trial file goes in, one result file per rank comes out.

This file travels to the measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any, Mapping, Sequence

from corewise.measured.parameters import TrialParameters

SCHEMA_VERSION = 1
# The reference of a check when a custom step brings none.
NO_CHECK = "none given"
# Reasons to refuse a trial: the point does not exist here, the setting has no effect on this workload, or
# memory or disk is short at the moment (the next run tries again). Such a trial is skipped, not failed.
INFEASIBLE = "infeasible"
NO_EFFECT = "no-effect"
NOT_NOW = "not-now"
REFUSALS = (INFEASIBLE, NO_EFFECT, NOT_NOW)


@dataclasses.dataclass(frozen=True)
class RankPlacement:
    """The CPUs and memory nodes of one rank; the policy is default, local or interleave."""

    cpus: tuple[int, ...]
    memory_nodes: tuple[int, ...] = ()
    memory_policy: str = "default"


@dataclasses.dataclass(frozen=True)
class NodePart:
    """The part of a trial that one node runs.

    Attributes:
        address, port: where the first rank can listen, as every node reaches it; empty and 0 on one node.
        hosts: The name or address of each node's host; empty on one node.
    """

    node_rank: int = 0
    num_nodes: int = 1
    address: str = ""
    port: int = 0
    hosts: Sequence[str] = ()

    def select_ranks(self, num_ranks: int) -> range:
        """Return the ranks of this node among those of the trial; every node has the same number of them."""
        num_local = num_ranks // self.num_nodes
        return range(self.node_rank * num_local, (self.node_rank + 1) * num_local)


ONE_NODE = NodePart()


@dataclasses.dataclass(frozen=True)
class Protocol:
    """How a trial is measured; every duration is in seconds.

    Attributes:
        min_runs, max_runs: fresh processes per trial.
        target_interval: runs stop when the half width of the interval over the median is below this.
        steady_tolerance: two neighbouring windows of warm-up steps must agree within this.
        min_sample_s: time spent sampling in each process.
        timeout_s: limit for one process, from start to result.
        start: "fork" from a warm parent or "fresh".
        counters: the source of instruction counts, one of COUNTER_CHOICES of probes/counter_names.py.
    """

    min_runs: int = 5
    max_runs: int = 10
    target_interval: float = 0.02
    confidence: float = 0.95
    min_warmup_steps: int = 3
    max_warmup_s: float = 30.0
    steady_tolerance: float = 0.05
    min_samples: int = 10
    min_sample_s: float = 1.0
    max_samples: int = 1000
    timeout_s: float = 600.0
    max_repeats_disturbed: int = 2
    start: str = "fork"
    counters: str = "auto"


@dataclasses.dataclass(frozen=True)
class Trial:
    """One point of a study, complete enough to be run by hand."""

    trial_id: str
    params: TrialParameters
    protocol: Protocol
    # The placements of all ranks; those of a node follow each other.
    ranks: tuple[RankPlacement, ...]
    env: Mapping[str, str]
    # The command prefix and the interpreter.
    python: tuple[str, ...]
    work: Mapping[str, float] = dataclasses.field(default_factory=dict)
    # Versions of workload, runtime and engines, by the parameter that chose them.
    code_versions: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # A new generation repeats a measurement that has a record already. It only changes the trial's id.
    generation: str = ""
    # What the user's file imports from installed packages, as MODULE or MODULE:NAME. It changes no result.
    imports: tuple[str, ...] = ()
    # Whether the warm parent imports it before it forks: known to start no thread.
    warms_imports: bool = False
    # A folder for references of numerical checks, which runs with the same values share; empty: none are kept.
    references: str = ""

    @property
    def num_ranks(self) -> int:
        return len(self.ranks)


@dataclasses.dataclass(frozen=True)
class RankResult:
    """The result of one rank, success or failure.

    Attributes:
        status: "ok" or "failed".
        kind: failure category: check, memory, crash, timeout, exit, placement, missing, factory, error.
        samples_per_step: workload samples (images) that one step of this rank completes.
        lost_peer: the rank failed because another one had ended, whose result explains more.
    """

    status: str
    rank: int
    reason: str = ""
    kind: str = ""
    traceback: str = ""
    samples_s: tuple[float, ...] = ()
    steps_per_sample: int = 1
    samples_per_step: float = 1.0
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    disturbances: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    lost_peer: bool = False


def to_json(value: Any) -> dict[str, Any]:
    """Convert the dataclass to plain JSON values."""
    plain = dataclasses.asdict(value)
    if isinstance(value, Trial):
        plain["params"] = value.params.to_mapping()
    plain["schema"] = SCHEMA_VERSION
    return plain


def parse_trial(data: Mapping[str, Any]) -> Trial:
    """Build the trial from parsed JSON; raise ValueError if a parameter is missing."""
    _check_schema(data, "trial")
    missing = [name for name in ("workload", "mode", "runtime") if name not in data["params"]]
    if missing:
        raise ValueError(f"trial file lacks the parameter {missing[0]!r}")
    return Trial(
        trial_id=str(data["trial_id"]),
        params=TrialParameters.from_mapping(data["params"]),
        protocol=Protocol(**data["protocol"]),
        ranks=tuple(
            RankPlacement(tuple(r["cpus"]), tuple(r["memory_nodes"]), r["memory_policy"]) for r in data["ranks"]
        ),
        env=dict(data["env"]),
        python=tuple(data["python"]),
        work=dict(data.get("work", {})),
        code_versions=dict(data.get("code_versions", {})),
        generation=str(data.get("generation", "")),
        imports=tuple(data.get("imports", ())),
        warms_imports=bool(data.get("warms_imports", False)),
        references=str(data.get("references", "")),
    )


def write_json_atomically(path: Path, data: Mapping[str, Any]) -> None:
    """Write JSON to a temporary name and rename it: a reader sees the whole file or none."""
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


def _check_schema(data: Mapping[str, Any], file_type: str) -> None:
    version = data.get("schema")
    if version != SCHEMA_VERSION:
        raise ValueError(f"{file_type} file has schema version {version!r}; this Corewise reads {SCHEMA_VERSION}")
