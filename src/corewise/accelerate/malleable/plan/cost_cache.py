"""Cache costs, plans and choices between runs, per machine, model, shape and environment.

Measured side: standard library only, Python 3.9. A file that is unreadable or inconsistent is ignored.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from corewise.accelerate.malleable.plan.lane_widths import list_widths
from corewise.accelerate.malleable.plan.plan_candidates import is_valid_plan
from corewise.accelerate.malleable.plan.schedule import Lane, LanePlan, LaneStep, OperatorTask
from corewise.cache_folder import open_cache_folder
from corewise.trusted_paths import is_trusted_file

SCHEMA = 5
PLAIN = "plain"
# Prefixes of environment variables that change the speed of operators.
_ENVIRONMENT_PREFIXES = ("OMP_", "GOMP_", "KMP_", "MKL_", "MALLOC_", "DNNL_", "ONEDNN_", "LD_PRELOAD", "ATEN_CPU")


@dataclass(frozen=True)
class CachedPlan:
    """The result of planning. Written to disk by field name.

    Attributes:
        call_costs: seconds of each call by width.
        plan: the chosen plan, or None for plain execution.
        times_s: measured seconds of the candidates.
        bound_s: the lower bound of any schedule.
        losses: why each candidate that was timed and does not run has lost.
    """

    call_costs: Tuple[Dict[int, float], ...]
    tasks: Tuple[OperatorTask, ...]
    chosen: str
    plan: Optional[LanePlan]
    times_s: Dict[str, float]
    bound_s: float
    losses: Dict[str, str] = field(default_factory=dict)


def compute_cache_key(fingerprint: str, num_cpus: int, torch_version: str, executor: str, modes: str) -> str:
    """Compute a key of processor, cores, operators, versions and environment, which costs depend on."""
    environment = {name: value for name, value in os.environ.items() if name.startswith(_ENVIRONMENT_PREFIXES)}
    facts = (SCHEMA, _read_processor_name(), num_cpus, torch_version, executor, modes, sorted(environment.items()))
    return hashlib.sha256(f"{facts}\n{fingerprint}".encode()).hexdigest()[:32]


def _read_processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = sorted({line.partition(":")[2].strip() for line in lines if line.startswith("model name")})
    return ", ".join(names) or platform.machine()


def get_cache_folder() -> Path:
    """Return the folder of cached plans; COREWISE_PLANS selects another one, for measurements."""
    if os.environ.get("COREWISE_PLANS"):
        return Path(os.environ["COREWISE_PLANS"])
    return open_cache_folder("malleable")


def load_plan(key: str, num_calls: int) -> Optional[CachedPlan]:
    """Load the plan cached under this key; None if it is missing, inconsistent, of another program or user."""
    try:
        path = get_cache_folder() / f"{key}.json"
        if not is_trusted_file(path):
            return None
        cached = _parse_cached_plan(json.loads(path.read_text()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, OverflowError):
        return None
    return cached if len(cached.call_costs) == num_calls and _is_consistent(cached) else None


def _is_consistent(cached: CachedPlan) -> bool:
    """Return whether all numbers are plausible and fit each other."""
    widths = set(cached.call_costs[0]) if cached.call_costs else {1}
    if not widths or min(widths) < 1 or any(set(cost) != widths for cost in cached.call_costs):
        return False
    if sorted(widths) != list(list_widths(max(widths))) or not _has_valid_times(
        [s for cost in cached.call_costs for s in cost.values()], minimum=0.0
    ):
        return False
    if not _has_valid_times(cached.times_s.values()) or not _has_valid_times([cached.bound_s], minimum=0.0):
        return False
    if cached.times_s and not {PLAIN, cached.chosen} <= cached.times_s.keys():
        return False
    calls = sorted(call for task in cached.tasks for call in task.calls)
    if calls != list(range(len(cached.call_costs))) or not all(task.calls for task in cached.tasks):
        return False
    if cached.plan is None:
        return cached.chosen == PLAIN
    fits = _has_valid_times([cached.plan.expected_s], minimum=0.0) and is_valid_plan(
        cached.plan, cached.tasks, max(widths)
    )
    return fits and cached.chosen != PLAIN and all(lane.width in widths for lane in cached.plan.lanes)


def _has_valid_times(seconds: Iterable[float], minimum: float = 1e-9) -> bool:
    return all(math.isfinite(value) and value >= minimum for value in seconds)


def save_plan(key: str, cached: CachedPlan) -> None:
    """Save the plan atomically; do nothing if the folder cannot be written."""
    try:
        folder = get_cache_folder()
        folder.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=".", suffix=".part")
        try:
            with os.fdopen(handle, "w") as out:
                json.dump({"schema": SCHEMA, **_convert_to_json(cached)}, out)
            os.replace(temporary, folder / f"{key}.json")
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError:
        return


def _convert_to_json(cached: CachedPlan) -> Mapping[str, Any]:
    return {**asdict(cached), "plan": asdict(cached.plan) if cached.plan else None}


def _parse_cached_plan(data: Mapping[str, Any]) -> CachedPlan:
    if data["schema"] != SCHEMA:
        raise ValueError("written by another schema version")
    plan = data["plan"]
    return CachedPlan(
        call_costs=tuple({int(w): float(s) for w, s in cost.items()} for cost in data["call_costs"]),
        tasks=tuple(OperatorTask(_parse_ints(task["calls"]), _parse_ints(task["needs"])) for task in data["tasks"]),
        chosen=str(data["chosen"]),
        plan=_parse_lane_plan(plan) if plan else None,
        times_s={str(name): float(s) for name, s in data["times_s"].items()},
        bound_s=float(data["bound_s"]),
        losses={str(name): str(reason) for name, reason in data["losses"].items()},
    )


def _parse_lane_plan(data: Mapping[str, Any]) -> LanePlan:
    lanes = tuple(Lane(int(one["first"]), int(one["width"]), bool(one["by_caller"])) for one in data["lanes"])
    steps: List[LaneStep] = [
        LaneStep(int(one["task"]), int(one["lane"]), _parse_ints(one["after"])) for one in data["steps"]
    ]
    return LanePlan(lanes, tuple(steps), float(data["expected_s"]))


def _parse_ints(values: Sequence[Any]) -> Tuple[int, ...]:
    return tuple(int(value) for value in values)
