"""Time STREAM's triad and matrix products on a GPU through our kernels, with CUDA events.

The input is random normal and larger than the cache. Numbers are checked before they are timed, and clocks are
recorded meanwhile. Needs torch with CUDA, numpy, and Corewise's source folder. The goals are those of an H200.
*Cool* are the first steps after a pause, *warm* those after many: products draw the full power of a GPU, and
its clock falls. A case takes at most `--seconds` of steps. The time to prepare and check it, which copies
results to the host, is shown too.

  python benchmarks/kernels_gpu.py --out kernels_gpu.json
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from kernel_runs import describe_machine, prepare_kernel_job

GIB = 2**30
COOLING_S, NUM_FIRST = 1.5, 3
LEAST_STEPS = 5
# Name: kernel, number format, settings, parameters, work of a step, unit, asked of an H200.
Case = tuple[str, str, dict[str, str], dict[str, Any], float, str, float | None]


def list_cases(size: int, size_bytes: int) -> dict[str, Case]:
    flops = 2 * size**3 / 1e12
    passes = {"copy": 2, "scale": 2, "add": 3, "triad": 3}
    memory = {
        f"{operation} float64": (
            "stream",
            "float64",
            {},
            {"operation": operation, "size_bytes": size_bytes},
            num_passes * size_bytes / 1e12,
            "TB/s",
            4.2 if operation == "triad" else None,
        )
        for operation, num_passes in passes.items()
    }
    formats = {
        "bfloat16": ("bfloat16", {}, 780.0),
        "tf32": ("float32", {"float32_precision": "tf32"}, 375.0),
        "float32": ("float32", {}, None),
        "float64": ("float64", {}, 55.0),
        "int8": ("int8", {}, None),
    }
    products = {
        f"product {name}": ("gemm", dtype, settings, {"size": size}, flops, "Tflop/s", asked)
        for name, (dtype, settings, asked) in formats.items()
    }
    return {**memory, **products}


def time_with_events(step: Callable[[], None], num_steps: int, seconds: float = math.inf) -> list[float]:
    """Time each step between two events on its stream; slow steps are fewer."""
    times: list[float] = []
    while len(times) < num_steps and (len(times) < LEAST_STEPS or sum(times) < seconds):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        step()
        ended.record()
        ended.synchronize()
        times.append(began.elapsed_time(ended) / 1e3)
    return times


def measure(case: Case, num_steps: int, seconds: float) -> dict[str, Any]:
    kernel, dtype, settings, args, work, unit, asked = case
    began = time.perf_counter()
    # The previous case may have set another precision.
    torch.set_float32_matmul_precision("highest")
    job = prepare_kernel_job(kernel, "torch", dtype, 1, args, device="cuda", **settings)
    job.step()
    torch.cuda.synchronize()
    prepared_s = time.perf_counter() - began
    time.sleep(COOLING_S)
    # These steps run before power and heat lower the clock.
    first_s = time_with_events(job.step, NUM_FIRST)
    time_with_events(job.step, num_steps // 5, seconds / 4)
    times_s = time_with_events(job.step, num_steps, seconds)
    known = job.read_facts()
    facts = {name: known[name] for name in known if name.startswith("gpu")}
    job.close()
    del job
    torch.cuda.empty_cache()
    first, median = (work / statistics.median(times) for times in (first_s, times_s))
    best = work / min(*first_s, *times_s)
    return {
        "first": first,
        "median": median,
        "best": best,
        "unit": unit,
        "asked": asked,
        "reached": None if asked is None else max(first, median) >= asked,
        "first_s": first_s,
        "times_s": times_s,
        "prepared_s": prepared_s,
        "facts": facts,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=16384, help="of the matrices")
    parser.add_argument("--size-bytes", type=int, default=4 * GIB, help="of each array of STREAM")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=4.0, help="of the steps of a case, at the most")
    parser.add_argument("--only", help="a word in the names of the cases wanted")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("torch finds no CUDA device")
    gpu = torch.cuda.get_device_name()
    figures: dict[str, Any] = {"machine": describe_machine(), "gpu": gpu, "torch": torch.__version__}
    print(f"{gpu}, torch {torch.__version__}; {figures['machine']}")
    rest = "SM MHz, power when warm; made and checked in"
    print(f"{'':20} {'cool':>9} {'warm':>9} {'best':>9} {'':8} {'asked':>7}  {rest}")
    for name, case in list_cases(args.size, args.size_bytes).items():
        if args.only and args.only not in name:
            continue
        print(f"{name:20} ", end="", flush=True)
        try:
            found = measure(case, args.steps, args.seconds)
        # A format that is not supported must not stop the others.
        except Exception as problem:
            print(f"failed: {type(problem).__name__}: {problem}", flush=True)
            figures[name] = {"failed": str(problem)}
            continue
        figures[name] = found
        asked = "" if found["asked"] is None else f"{found['asked']:g}{'' if found['reached'] else ' MISSED'}"
        facts = found["facts"]
        clocks = f"{facts.get('gpu_sm_mhz', '?')}, {facts.get('gpu_power_w', '?')} W"
        rates = " ".join(f"{found[each]:9.3f}" for each in ("first", "median", "best"))
        made = f"{found['prepared_s']:.1f} s"
        print(f"{rates} {found['unit']:8} {asked:>7}  {clocks}; {made}", flush=True)
        # The file is written after each case, so an interrupted run keeps its results.
        if args.out is not None:
            args.out.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
