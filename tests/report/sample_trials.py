"""Synthetic trials for tests of what a report computes."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from corewise.analysis.groups import Group, RecordSource, group_records
from corewise.stats.estimate import estimate_process_median
from corewise.store.store import Store
from corewise.study.record import Record

REAL_STORE = Path(__file__).resolve().parents[2] / "benchmarks/data/xeon-16-cores/store"
PARAMS: dict[str, Any] = {
    "workload": "resnet50", "mode": "train", "runtime": "torch", "processes": 1, "threads": 4, "batch": 16,
    "dtype": "float32", "math": "vendor", "memory_format": "contiguous", "allocator": "default", "smt": False,
    "data": "synthetic", "args.image_size": 224,
}  # fmt: skip
MACHINE: dict[str, Any] = {
    "hostname": "node1", "host_class": "aaaa1111", "cpu_model": "A CPU", "microarchitecture": "icelake",
    "num_cores": 16, "allocation_cores": 16, "allocation_cpus": "0-15", "memory_bytes": 64 * 2**30,
}  # fmt: skip
PROTOCOL = {"min_runs": 5, "max_runs": 5, "target_interval": 0.05, "confidence": 0.95}


def around(rate: float, spread: float = 0.01, num: int = 5) -> list[float]:
    """List rates of runs whose median is this one."""
    return [rate * (1 + spread * (i - (num - 1) / 2) / (num or 1)) for i in range(num)]


def trial(rates: Sequence[float] | float, **changes: Any) -> Record:
    """Build an ok trial whose runs had these throughputs; `params` and `metrics` are merged into the usual ones."""
    rates = around(rates) if isinstance(rates, (int, float)) else list(rates)
    params = {**PARAMS, **changes.pop("params", {})}
    metrics = _metrics(rates, params) if rates else {}
    identity = json.dumps([params, changes.get("study"), changes.get("machine"), changes.get("protocol")], default=str)
    values: dict[str, Any] = {
        "trial_id": hashlib.sha256(identity.encode()).hexdigest()[:16],
        "study": "a-study",
        "status": "ok",
        "question": "What is fastest?",
        "params": params,
        "runs": tuple(_run(rate, params) for rate in rates),
        "machine": MACHINE,
        "versions": {"python": "3.12.3", "torch": "2.13.0"},
        "protocol": PROTOCOL,
        "work": {"pixels_per_sample": 50176.0},
        "started_at": "2026-11-15T10:00:00.000Z",
        "finished_at": "2026-11-15T10:00:30.000Z",
        "corewise_version": "0.1.0",
    }
    metrics |= changes.pop("metrics", {})
    return Record(**{**values, "metrics": metrics, **changes})


def failed(reason: str = "rank 0 was killed for want of memory", **changes: Any) -> Record:
    """Build a trial that failed for this reason."""
    return trial([], status="failed", kind="memory", reason=reason, **changes)


def _run(rate: float, params: dict[str, Any]) -> dict[str, Any]:
    step_s = params["batch"] / rate if isinstance(params.get("batch"), int) else 1 / rate
    return {
        "status": "ok",
        "samples_s": [step_s * (1 + 0.001 * ((7 * k) % 5 - 2)) for k in range(10)],
        "metrics": {"samples_per_s": rate, "step_s": step_s},
        "disturbances": [],
        "ranks": [{"rank": 0, "versions": {"onednn": "3.10.2"}}],
    }


def _metrics(rates: Sequence[float], params: dict[str, Any]) -> dict[str, float]:
    found = estimate_process_median(rates)
    batch = params["batch"] if isinstance(params.get("batch"), int) else 1
    metrics = {
        "samples_per_s": found.value,
        "step_s": batch / found.value,
        "peak_memory_bytes": 1e9 + 1e7 * batch,
        "num_runs": float(len(rates)),
    }
    if found.low is not None and found.high is not None:
        metrics |= {"samples_per_s_low": found.low, "samples_per_s_high": found.high}
    return metrics


def group_of(*records: Record) -> Group:
    """Build the one group that these records form."""
    [group] = group_records([RecordSource(label="store", records=records)])
    return group


def scaling(spread: float = 0.01, **changes: Any) -> list[Record]:
    """Build trials over threads: nearly ideal up to 4, hardly more from 8 on."""
    rates = {1: 1.0, 2: 1.95, 4: 3.7, 8: 5.0, 16: 5.5}
    params = changes.pop("params", {})
    return [
        trial(around(10 * rate, spread), params={"threads": threads, **params}, **changes)
        for threads, rate in rates.items()
    ]


def write_store(path: Path, *records: Record) -> Path:
    """Write a store with these records and return its path."""
    with Store.open(path) as store:
        for record in records:
            store.append(record)
    return path
