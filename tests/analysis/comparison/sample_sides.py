"""Synthetic records and stores for tests of comparisons."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tests.store.made_records import made_record, made_run

from corewise.store.store import Store
from corewise.study.record import Record

NO_LOOKS = {"min_runs": 12, "max_runs": 12}


def processes(step_s: float, num: int = 12, spread: float = 0.004, seed: int = 0) -> list[float]:
    """Draw process medians around a step, the same for the same seed."""
    return (step_s * np.exp(np.random.default_rng(seed).normal(0.0, spread, num))).tolist()


def trial(trial_id: str, step_s: float | Sequence[float] = 0.5, **changes: Any) -> Record:
    """Build an ok record whose processes have these medians, or some around this one."""
    steps = processes(step_s, seed=int.from_bytes(trial_id.encode()) % 1000) if isinstance(step_s, float) else step_s
    values = {"protocol": NO_LOOKS, "runs": tuple(made_run(step) for step in steps), **changes}
    return made_record(trial_id, **values)


def disturbed(trial_id: str, step_s: float, num: int, num_quiet: int = 0, **changes: Any) -> Record:
    """Build a record of `num` disturbed processes around this step and `num_quiet` quiet ones around 0.5 s."""
    steps = processes(step_s, num, seed=3) + processes(0.5, num_quiet, seed=4)
    disturbances = ["other processes used 0.93 s of CPU"]
    runs = tuple(made_run(step, disturbances=disturbances if i < num else []) for i, step in enumerate(steps))
    return trial(trial_id, [], **{"runs": runs, **changes})


def failed(trial_id: str, reason: str = "rank 0 ran out of memory", **changes: Any) -> Record:
    """Build a failed record."""
    return trial(trial_id, [], status="failed", kind="memory", reason=reason, metrics={}, **changes)


def skipped(trial_id: str, **changes: Any) -> Record:
    """Build a skipped record."""
    reason = "more threads than the allocation has cores (4)"
    return trial(trial_id, [], status="skipped", kind="infeasible", reason=reason, metrics={}, **changes)


def store_of(path: Path, *records: Record) -> Path:
    """Write a store with these records and return its folder."""
    with Store.open(path) as store:
        for record in records:
            store.append(record)
    return path


def over_threads(prefix: str, steps_s: dict[int, float], **changes: Any) -> list[Record]:
    """Build one record for each number of threads."""
    return [
        trial(f"{prefix}{threads:03d}", step_s, params={"threads": threads}, **changes)
        for threads, step_s in steps_s.items()
    ]
