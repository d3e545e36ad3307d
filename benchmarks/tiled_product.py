"""Compare the tiled matrix product from files, with a tenth of the memory, with the one in memory.

Both multiply matrices of the same size and take turns. The numbers of the tiled one are checked. The disk is
not the limit: the files were just written and are still in the page cache, or they are on tmpfs. Needs torch,
numpy and Corewise's source folder.

  python benchmarks/tiled_product.py --out tiled_product.json
  python benchmarks/tiled_product.py --size 16384 --tile 1024 --folder /dev/shm
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from kernel_runs import describe_machine, prepare_kernel_job

ASKED_RATIO = 0.80
KEPT = ("multiply_s", "read_s", "write_s", "wait_s", "overlap", "num_tiles_read", "tiles_bytes", "block_of_sums")


def time_step(step: Any) -> float:
    began = time.perf_counter()
    step()
    return time.perf_counter() - began


def measure(args: argparse.Namespace, folder: str) -> dict[str, Any]:
    """Time both sides in turns, and collect the facts of each tiled product."""
    torch.set_num_threads(args.threads)
    own = {"size": args.size, "tile": args.tile, "folder": folder}
    tiled = prepare_kernel_job("tiled_product", "torch", args.dtype, args.threads, own, device=args.device)
    dtype = getattr(torch, args.dtype)
    a, b = (torch.randn(args.size, args.size, dtype=dtype, device=args.device) for _ in range(2))
    c = torch.empty_like(a)

    def multiply_in_memory() -> None:
        torch.mm(a, b, out=c)
        if args.device == "cuda":
            torch.cuda.synchronize()

    multiply_in_memory()
    times_s: dict[str, list[float]] = {"in memory": [], "tiled": []}
    facts = []
    for number in range(args.repeats):
        sides = [("in memory", multiply_in_memory), ("tiled", tiled.step)]
        for name, step in sides if number % 2 == 0 else reversed(sides):
            times_s[name].append(time_step(step))
        found = tiled.read_facts()
        facts.append({name: found[name] for name in KEPT})
    tiled.close()
    return {"times_s": times_s, "facts": facts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=8192)
    parser.add_argument("--tile", type=int, default=1024)
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--folder", help="for the tiles (default: the system's temporary folder)")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    print(describe_machine(), f"threads {args.threads}, torch {torch.__version__}")
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        found = measure(args, folder)
    flops = 2.0 * args.size**3 - args.size**2
    for name, times_s in found["times_s"].items():
        median_s = statistics.median(times_s)
        rate = flops / median_s / 1e9
        print(f"{name:10} median {median_s:8.3f} s, best {min(times_s):8.3f} s, {rate:9.1f} Gflop/s")
    memory, tiled = found["times_s"]["in memory"], found["times_s"]["tiled"]
    found["ratio_by_best"] = min(memory) / min(tiled)
    found["ratio_by_rounds"] = statistics.median(m / t for m, t in zip(memory, tiled, strict=True))
    matrices_bytes = 3 * args.size**2 * (8 if args.dtype == "float64" else 4)
    share = found["facts"][-1]["tiles_bytes"] / matrices_bytes
    print(
        f"tiled over in memory: {found['ratio_by_best']:.3f} by best, {found['ratio_by_rounds']:.3f} by "
        f"rounds, with {share:.1%} of the matrices' memory; {found['facts'][-1]}"
    )
    if args.out is not None:
        settings = {name: getattr(args, name) for name in ("size", "tile", "dtype", "device", "threads")}
        kept = {"machine": describe_machine(), "asked_ratio": ASKED_RATIO, **settings, **found}
        args.out.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
