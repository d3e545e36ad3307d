"""Records made by hand for the tests of the store and of what shows it."""

from typing import Any

from corewise.study.record import Record

PARAMS: dict[str, Any] = {
    "workload": "resnet50",
    "mode": "train",
    "runtime": "torch",
    "device": "cpu",
    "processes": 1,
    "threads": 4,
    "interop_threads": None,
    "batch": 64,
    "batch_scope": "global",
    "dtype": "float32",
    "memory_format": "contiguous",
    "execution": "eager",
    "math": "vendor",
    "allocator": "default",
    "openmp": "default",
    "wait_policy": "default",
    "data": "synthetic",
    "loader_workers": 0,
    "placement": "compact",
    "smt": False,
    "memory_policy": "default",
    "bind": "rank",
    "reserved_cores": 0,
    "oversubscribe": False,
    "args.image_size": 224,
}


def made_run(step_s: float, num_samples: int = 10, **changes: Any) -> dict[str, Any]:
    """A good run whose samples lie within one per cent of the step."""
    samples_s = [step_s * (1 + 0.01 * ((i * 7) % 5 - 2) / 2) for i in range(num_samples)]
    run = {
        "status": "ok",
        "samples_s": samples_s,
        "metrics": {"step_s": step_s, "samples_per_s": 64 / step_s},
        "disturbances": [],
        "ranks": [],
    }
    return {**run, **changes}


def made_record(trial_id: str = "0a1b2c3d", step_s: float = 0.5, **changes: Any) -> Record:
    """An ok record; `params` are merged into the usual ones, anything else replaces."""
    params = {**PARAMS, **changes.pop("params", {})}
    values: dict[str, Any] = {
        "trial_id": trial_id,
        "study": "thread-scaling",
        "status": "ok",
        "question": "How many threads?",
        "params": params,
        "metrics": {
            "samples_per_s": 64 / step_s,
            "samples_per_s_low": 64 / step_s * 0.99,
            "samples_per_s_high": 64 / step_s * 1.01,
            "step_s": step_s,
            "step_s_low": step_s * 0.99,
            "step_s_high": step_s * 1.01,
            "latency_p50_s": step_s,
            "latency_p99_s": step_s * 1.02,
            "peak_memory_bytes": 3_221_225_472,
            "num_runs": 3,
        },
        "runs": tuple(made_run(step_s * (1 + 0.002 * i)) for i in range(3)),
        "command": "OMP_NUM_THREADS=4 taskset -c 0-3 python -m corewise.measured.worker trial.json",
        "env": {"OMP_NUM_THREADS": "4"},
        "machine": {"hostname": "node1", "host_class": "epyc-zen4-16c"},
        "versions": {"torch": "2.13.0", "python": "3.11.7"},
        "protocol": {"min_runs": 3},
        "work": {"flops_per_sample": 8.2e9},
        "started_at": "2026-11-15T10:00:00.000Z",
        "finished_at": "2026-11-15T10:00:30.000Z",
        "corewise_version": "0.1.0",
    }
    return Record(**{**values, **changes})
