"""Costs, plans and choices kept from one start to the next, per machine, model, shape and environment.

Measured side: standard library only, Python 3.9. A file that cannot be read or does not fit is ignored.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from corewise.dataflow.lanes import widths_for
from corewise.dataflow.plan import is_valid
from corewise.dataflow.schedule import Lane, Plan, Step, Task

SCHEMA = 4
PLAIN = "plain"
# What a process starts with that changes what operators take.
_ENVIRONMENT = ("OMP_", "GOMP_", "KMP_", "MKL_", "MALLOC_", "DNNL_", "ONEDNN_", "LD_PRELOAD", "ATEN_CPU")


@dataclass(frozen=True)
class Kept:
    """What planning found: costs of calls by width, tasks, the chosen plan (None: plain), seconds."""

    call_costs: Tuple[Dict[int, float], ...]
    tasks: Tuple[Task, ...]
    chosen: str
    plan: Optional[Plan]
    times_s: Dict[str, float]
    bound_s: float


def kept_key(fingerprint: str, num_cpus: int, torch_version: str, executor: str, modes: str) -> str:
    """A name that is equal only where costs are: same processor, cores, operators, versions, environment."""
    environment = {name: value for name, value in os.environ.items() if name.startswith(_ENVIRONMENT)}
    facts = (SCHEMA, _processor(), num_cpus, torch_version, executor, modes, sorted(environment.items()))
    return hashlib.sha256(f"{facts}\n{fingerprint}".encode()).hexdigest()[:32]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = sorted({line.partition(":")[2].strip() for line in lines if line.startswith("model name")})
    return ", ".join(names) or platform.machine()


def folder() -> Path:
    """Where such files lie; a measurement has them apart."""
    if os.environ.get("COREWISE_PLANS"):
        return Path(os.environ["COREWISE_PLANS"])
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "corewise" / "malleable"


def load(key: str, num_calls: int) -> Optional[Kept]:
    """What was kept under this key, if it is whole and fits."""
    try:
        kept = _read(json.loads((folder() / f"{key}.json").read_text()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, OverflowError):
        return None
    return kept if len(kept.call_costs) == num_calls and _is_whole(kept) else None


def _is_whole(kept: Kept) -> bool:
    """Whether all numbers are such as planning finds, and all belong together."""
    widths = set(kept.call_costs[0]) if kept.call_costs else {1}
    if not widths or min(widths) < 1 or any(set(cost) != widths for cost in kept.call_costs):
        return False
    if sorted(widths) != list(widths_for(max(widths))) or not _are_times(
        [s for cost in kept.call_costs for s in cost.values()], least=0.0
    ):
        return False
    if not _are_times(kept.times_s.values()) or not _are_times([kept.bound_s], least=0.0):
        return False
    if kept.times_s and not {PLAIN, kept.chosen} <= kept.times_s.keys():
        return False
    calls = sorted(call for task in kept.tasks for call in task.calls)
    if calls != list(range(len(kept.call_costs))) or not all(task.calls for task in kept.tasks):
        return False
    if kept.plan is None:
        return kept.chosen == PLAIN
    fits = _are_times([kept.plan.expected_s], least=0.0) and is_valid(kept.plan, kept.tasks, max(widths))
    return fits and kept.chosen != PLAIN and all(lane.width in widths for lane in kept.plan.lanes)


def _are_times(seconds: Iterable[float], least: float = 1e-9) -> bool:
    return all(math.isfinite(one) and one >= least for one in seconds)


def save(key: str, kept: Kept) -> None:
    """Keeps it, written aside and renamed; a folder that cannot be written to is no reason to stop."""
    try:
        where = folder()
        where.mkdir(parents=True, exist_ok=True)
        handle, aside = tempfile.mkstemp(dir=where, prefix=".", suffix=".part")
        try:
            with os.fdopen(handle, "w") as out:
                json.dump({"schema": SCHEMA, **_written(kept)}, out)
            os.replace(aside, where / f"{key}.json")
        except BaseException:
            os.unlink(aside)
            raise
    except (OSError, RuntimeError):
        return


def _written(kept: Kept) -> Mapping[str, Any]:
    return {**asdict(kept), "plan": asdict(kept.plan) if kept.plan else None}


def _read(data: Mapping[str, Any]) -> Kept:
    if data["schema"] != SCHEMA:
        raise ValueError("written by another version")
    plan = data["plan"]
    return Kept(
        call_costs=tuple({int(w): float(s) for w, s in cost.items()} for cost in data["call_costs"]),
        tasks=tuple(Task(_ints(task["calls"]), _ints(task["needs"])) for task in data["tasks"]),
        chosen=str(data["chosen"]),
        plan=_read_plan(plan) if plan else None,
        times_s={str(name): float(s) for name, s in data["times_s"].items()},
        bound_s=float(data["bound_s"]),
    )


def _read_plan(data: Mapping[str, Any]) -> Plan:
    lanes = tuple(Lane(int(one["first"]), int(one["width"]), bool(one["by_caller"])) for one in data["lanes"])
    steps: List[Step] = [
        Step(int(one["task"]), int(one["lane"]), _ints(one["after"])) for one in data["steps"]
    ]
    return Plan(lanes, tuple(steps), float(data["expected_s"]))


def _ints(values: Sequence[Any]) -> Tuple[int, ...]:
    return tuple(int(value) for value in values)
