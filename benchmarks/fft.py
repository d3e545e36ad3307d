"""Compare the tiled Fourier transform with the framework's own, and measure the share of the merge.

Each contestant has a separate random signal. The numbers are checked, and the contestants take turns. On a GPU
the largest signals run alone, and a signal on the host passes through the GPU in pieces. Needs torch, numpy
and Corewise's source folder.

  python benchmarks/fft.py --out fft.json
  python benchmarks/fft.py --device cuda --out fft-gpu.json
"""

import argparse
import json
import math
import os
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from kernel_runs import describe_machine, prepare_kernel_job

ASKED = {"speed": 0.70, "merge_fraction": 0.25, "tflop_per_s": 4.3}


class BareTransform:
    """The framework's call alone."""

    def __init__(self, size: int, device: str) -> None:
        self._x = torch.randn(size, dtype=torch.complex128, device=device)
        self._device, self._out = device, None

    def step(self) -> None:
        self._out = None
        self._out = torch.fft.fft(self._x)
        if self._device == "cuda":
            torch.cuda.synchronize()

    def read_facts(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        self._x = self._out = None


def prepare_contestant(size: int, num_threads: int, device: str, args: dict[str, Any]) -> Any:
    if not args:
        return BareTransform(size, device)
    return prepare_kernel_job("fft", "torch", "complex128", num_threads, {"size": size, **args}, device=device)


def time_step(step: Any) -> float:
    began = time.perf_counter()
    step()
    return time.perf_counter() - began


def measure_interleaved(
    size: int, contestants: dict[str, dict[str, Any]], num_threads: int, device: str, repeats: int
) -> dict[str, Any]:
    """Time all contestants in turns; the first one changes."""
    jobs = {name: prepare_contestant(size, num_threads, device, args) for name, args in contestants.items()}
    for job in jobs.values():
        job.step()
    times_s: dict[str, list[float]] = {name: [] for name in jobs}
    names = list(jobs)
    for number in range(repeats):
        start = number % len(names)
        for name in names[start:] + names[:start]:
            times_s[name].append(time_step(jobs[name].step))
    return close_jobs(size, jobs, times_s)


def measure_separately(
    size: int, contestants: dict[str, dict[str, Any]], num_threads: int, device: str, repeats: int
) -> dict[str, Any]:
    """Time one contestant after the other: together they would not fit."""
    found: dict[str, Any] = {}
    for name, args in contestants.items():
        job = prepare_contestant(size, num_threads, device, args)
        job.step()
        found.update(close_jobs(size, {name: job}, {name: [time_step(job.step) for _ in range(repeats)]}))
        torch.cuda.empty_cache()
    return found


def close_jobs(size: int, jobs: dict[str, Any], times_s: dict[str, list[float]]) -> dict[str, Any]:
    """Close finished jobs and return their figures."""
    found = {}
    for name, job in jobs.items():
        facts = job.read_facts()
        job.close()
        median_s = statistics.median(times_s[name])
        kept = {each: facts[each] for each in ("sub_transforms_s", "merge_s", "merge_fraction") if each in facts}
        found[name] = {
            "times_s": times_s[name],
            "median_s": median_s,
            "gflop_per_s": 5 * size * math.log2(size) / median_s / 1e9,
            **kept,
        }
    return found


def show(size: int, found: dict[str, Any]) -> None:
    """Print a table; speeds are relative to the framework's own call, by best and by the median of rounds."""
    print(f"\nsize {size} (2^{math.log2(size):.4g}), complex128")
    print(f"{'':28} {'median s':>10} {'Gflop/s':>9} {'speed: best':>12} {'rounds':>7} {'merge':>6}")
    bare = next((each["times_s"] for name, each in found.items() if name.startswith("bare")), None)
    for name, each in found.items():
        speeds = ["", ""]
        if bare is not None:
            rounds = statistics.median(b / t for b, t in zip(bare, each["times_s"], strict=True))
            each["speed_by_best"], each["speed_by_rounds"] = min(bare) / min(each["times_s"]), rounds
            speeds = [f"{each['speed_by_best']:.2f}", f"{rounds:.2f}"]
        merge = f"{each['merge_fraction']:.0%}" if "merge_fraction" in each else ""
        print(
            f"{name:28} {each['median_s']:10.4f} {each['gflop_per_s']:9.1f} {speeds[0]:>12} {speeds[1]:>7} {merge:>6}"
        )


def build_tile_arguments(num_tiles: int, **more: Any) -> dict[str, Any]:
    return {"method": "tiles", "num_tiles": num_tiles, **more}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--exponents", type=int, nargs="*", help="sizes are two to the power of these")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    exponents = args.exponents or ([20, 22, 24] if args.device == "cpu" else [24, 27, 29, 31])
    print(describe_machine(), f"threads {args.threads}, torch {torch.__version__}")
    contestants = {
        "bare torch.fft.fft": {},
        "direct": {"method": "direct"},
        "8 tiles": build_tile_arguments(8),
        "16 tiles": build_tile_arguments(16),
        "64 tiles": build_tile_arguments(64),
        "128 tiles": build_tile_arguments(128),
    }
    results = {}
    for exponent in exponents:
        run = measure_separately if args.device == "cuda" and exponent >= 29 else measure_interleaved
        results[f"2^{exponent}"] = run(2**exponent, contestants, args.threads, args.device, args.repeats)
        show(2**exponent, results[f"2^{exponent}"])
    if args.device == "cuda":
        memory_bytes = 6 * 2**30
        print(f"\nsignal on the host, {memory_bytes} bytes of the GPU")
        pieces = {"host, 64 tiles": build_tile_arguments(64, signal="host", memory_bytes=memory_bytes)}
        results["2^29 on the host"] = measure_separately(2**29, pieces, args.threads, args.device, 3)
        show(2**29, results["2^29 on the host"])
    if args.out is not None:
        kept = {"machine": describe_machine(), "asked": ASKED, "threads": args.threads, "results": results}
        args.out.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
