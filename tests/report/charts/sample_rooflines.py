"""Synthetic trials with the ceilings of their machine, for tests of the roofline."""

from typing import Any

from tests.report.sample_trials import trial

from corewise.study.record import Record

PEAK = {"float32": 100.0, "float64": 50.0, "bfloat16": 210.0, "complex128": 50.0}
BANDWIDTH = {1: 12.0, 2: 22.0, 4: 40.0, 8: 55.0}


def roofed(intensity: float, reached: float, threads: int = 4, **params: Any) -> Record:
    """Make a trial with these flops per byte that reaches this share of the attainable rate."""
    dtype = params.get("dtype", "float32")
    peak, bandwidth = PEAK[dtype] * threads, BANDWIDTH[threads]
    attainable = min(peak, bandwidth * intensity)
    return trial(
        10.0 * reached,
        params={"workload": "gemm", "mode": "infer", "threads": threads, "args.intensity": intensity, **params},
        metrics={
            "gflop_per_s": reached * attainable,
            "flops_per_byte": intensity,
            "fraction_of_ceiling": reached,
            "memory_bound": float(bandwidth * intensity < peak),
            "ceiling_gflop_per_s": peak,
            "ceiling_gbyte_per_s": bandwidth,
        },
    )


def many_roofed() -> list[Record]:
    """Products of several sizes and formats on several threads, and a stream."""
    made = [
        roofed(intensity, reached * (0.8 if threads == 8 else 1.0), threads, dtype=dtype)
        for intensity, reached in ((0.08, 0.9), (2.0, 0.5), (40.0, 0.7), (300.0, 0.95))
        for threads in (1, 2, 8)
        for dtype in ("float32", "bfloat16")
    ]
    return [*made, *(roofed(0.0833, 0.93, t, workload="stream", dtype="float64") for t in (1, 2, 8))]
