"""Ceilings made by hand: two nodes of four cores, and a GPU."""

from typing import Any

from corewise.machine.ceilings.table import Ceiling, Ceilings

MEASURED_AT = "2026-11-15T10:00:00.000Z"
BANDWIDTH = {1: 12.0, 2: 22.0, 4: 40.0, 8: 80.0}
PEAK = {1: 50.0, 2: 100.0, 4: 200.0, 8: 400.0}


def build_ceiling(operation: str, best: float, **changes: Any) -> Ceiling:
    values: dict[str, Any] = {
        "operation": operation, "dtype": "float64", "device": "cpu", "threads": 1, "nodes": (0,),
        "placement": "compact", "gpu": None, "best": best, "median": 0.9 * best,
        "num_samples": 7, "size": 2**28, "measured_at": MEASURED_AT,
    }  # fmt: skip
    return Ceiling(**{**values, **changes})


def build_ceilings(**changes: Any) -> Ceilings:
    figures = []
    for threads in BANDWIDTH:
        nodes = (0, 1) if threads > 4 else (0,)
        where: dict[str, Any] = {"threads": threads, "nodes": nodes}
        figures.append(build_ceiling("triad", BANDWIDTH[threads], **where))
        figures.append(build_ceiling("copy", 0.95 * BANDWIDTH[threads], **where))
        figures.append(build_ceiling("read", 1.3 * BANDWIDTH[threads], **where))
        for dtype, times in (("float64", 0.5), ("float32", 1.0), ("bfloat16", 2.0)):
            figures.append(build_ceiling("product", times * PEAK[threads], dtype=dtype, size=2048, **where))
    figures.append(build_ceiling("triad", 24.0, threads=2, placement="spread", nodes=(0, 1)))
    figures += [build_ceiling("triad", 40.0 + n, threads=4, placement="node", nodes=(n,)) for n in (0, 1)]
    gpu: dict[str, Any] = {"device": "cuda", "placement": "gpu", "gpu": 0}
    figures.append(build_ceiling("triad", 4300.0, **gpu))
    figures.append(build_ceiling("to_device", 55.0, dtype="uint8", **gpu))
    for dtype, rate in (("float32", 52e3), ("tf32", 380e3), ("bfloat16", 790e3)):
        figures.append(build_ceiling("product", rate, dtype=dtype, size=16384, **gpu))
    values: dict[str, Any] = {
        "runtime": "torch", "version": "2.13.0+cpu", "host_class": "aaaa1111bbbb", "hostname": "node1",
        "allocation": ((4, 4), (4, 4)), "cpu_model": "A CPU", "measured_at": MEASURED_AT,
        "took_s": 31.25, "figures": tuple(figures), "notes": ("int8: no fast product here",),
    }  # fmt: skip
    return Ceilings(**{**values, **changes})
