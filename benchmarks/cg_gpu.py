"""Compare dense conjugate gradients on a GPU with a plain loop and with the product alone, in turns.

The input is random normal, and the numbers are checked before they are timed. CUDA events around many
iterations give the times. The sparse forms follow, compared with the bound of the triad. Needs torch with
CUDA, numpy and Corewise's source folder. The largest size takes 70 GB on the GPU. The goals are those of an
H200.

  python benchmarks/cg_gpu.py --out cg_gpu.json
  python benchmarks/cg_gpu.py --device cpu --sizes 1024 --edges 32    # where there is no GPU
"""

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from kernel_runs import describe_machine, prepare_kernel_job

from corewise.measured.workloads.kernels.cg.workload import CG
from corewise.measured.workloads.kernels.stream import STREAM

ASKED_TFLOP_PER_S = 1.05
OURS, PLAIN, BLOCKS, WHOLE = "our loop", "plain loop", "product in blocks", "product, whole"
Times = dict[str, list[float]]


def time_call(function: Callable[[], Any], device: str) -> float:
    """Time one call, on a GPU between two events."""
    if device == "cpu":
        began = time.perf_counter()
        function()
        return time.perf_counter() - began
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    function()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3


def run_plain_loop(matrix: torch.Tensor, rhs: torch.Tensor, iterations: int) -> torch.Tensor:
    """Run textbook conjugate gradients; nothing waits for the GPU here either."""
    x, r, p = torch.zeros_like(rhs), rhs.clone(), rhs.clone()
    rr = r @ r
    for _ in range(iterations):
        q = matrix @ p
        step = rr / (p @ q)
        x += step * p
        r -= step * q
        rr_next = r @ r
        p = r + (rr_next / rr) * p
        rr = rr_next
    return rr


def build_sides(job: Any, iterations: int) -> dict[str, Callable[[], Any]]:
    """Build the calls that take turns: ours, and plain ones on the same matrix."""
    system = job.run._system
    blocks = system.operator.data
    whole = blocks[0] if len(blocks) == 1 else torch.cat(blocks)
    rhs = torch.from_numpy(system.rhs).to(whole.device)
    q = torch.empty_like(rhs)
    pieces = list(zip(blocks, q.split([len(block) for block in blocks]), strict=True))

    def multiply_blocks() -> None:
        for _ in range(iterations):
            for block, out in pieces:
                torch.mv(block, rhs, out=out)

    def multiply_whole() -> None:
        for _ in range(iterations):
            torch.mv(whole, rhs, out=q)

    return {
        OURS: job.step,
        PLAIN: lambda: run_plain_loop(whole, rhs, iterations),
        BLOCKS: multiply_blocks,
        WHOLE: multiply_whole,
    }


def take_turns(sides: dict[str, Callable[[], Any]], num_rounds: int, device: str) -> Times:
    times: Times = {name: [] for name in sides}
    for function in sides.values():
        # The first call runs plainly, the second records a graph.
        for _ in range(3):
            function()
    for number in range(num_rounds):
        names = list(sides)
        start = number % len(names)
        for name in names[start:] + names[:start]:
            times[name].append(time_call(sides[name], device))
    return times


def clear(device: str) -> None:
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def measure_dense(size: int, options: argparse.Namespace) -> dict[str, Any]:
    args = {"matrix": "dense", "size": size, "iterations": options.iterations}
    job: Any = prepare_kernel_job("cg", "torch", "float64", options.threads, args, device=options.device)
    solver = job.run._system.solver
    times = take_turns(build_sides(job, options.iterations), options.rounds, options.device)
    flops = CG.count_work("infer", args, "float64").flops_per_sample
    rates = {name: flops / statistics.median(each) / 1e12 for name, each in times.items()}
    graphs = [getattr(each, "num_graphs", 0) for each in solver._compiled.values()]
    return {
        "tflop_per_s": rates,
        "num_row_blocks": len(job.run._system.operator.data),
        "num_graphs": sum(graphs),
        "reached": rates[OURS] >= ASKED_TFLOP_PER_S,
        "times_s": times,
        "facts": {name: value for name, value in job.read_facts().items() if name.startswith("gpu")},
    }


def measure_sparse(matrix: str, edge: int, options: argparse.Namespace) -> dict[str, Any]:
    args = {"matrix": matrix, "size": edge, "iterations": options.iterations}
    job: Any = prepare_kernel_job("cg", "torch", "float64", options.threads, args, device=options.device)
    triad_args = {"operation": "triad", "size_bytes": options.triad_bytes}
    triad: Any = prepare_kernel_job("stream", "torch", "float64", options.threads, triad_args, device=options.device)
    times = take_turns({"cg": job.step, "triad": triad.step}, options.rounds, options.device)
    num_bytes = {
        "cg": CG.count_work("infer", args, "float64"),
        "triad": STREAM.count_work("infer", triad_args, "float64"),
    }
    rates = {name: work.bytes_per_sample / statistics.median(times[name]) / 1e12 for name, work in num_bytes.items()}
    fraction = rates["cg"] / rates["triad"]
    return {"tbyte_per_s": rates, "fraction_of_bound": fraction, "times_s": times}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="*", default=[16384, 32768, 65536])
    parser.add_argument("--edges", type=int, nargs="*", default=[256], help="of the stencil's cube")
    parser.add_argument("--iterations", type=int, default=100, help="of one solve; the paper: 500")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--triad-bytes", type=int, default=2**31)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("torch sees no CUDA device here; --device cpu tries the script")
    gpu = torch.cuda.get_device_name() if options.device == "cuda" else "no GPU"
    figures: dict[str, Any] = {"machine": describe_machine(), "gpu": gpu, "torch": torch.__version__}
    print(f"{gpu}, torch {torch.__version__}; {figures['machine']}")

    def keep(name: str, found: dict[str, Any]) -> None:
        figures[name] = found
        # The file is written after each case, so an interrupted run keeps its results.
        if options.out:
            options.out.write_text(json.dumps(figures, indent=1) + "\n")

    print(f"Tflop/s (median)  {OURS:>9} {PLAIN:>11} {BLOCKS:>18} {WHOLE:>15}  blocks, graphs, asked")
    for size in options.sizes:
        clear(options.device)
        found = measure_dense(size, options)
        keep(f"dense {size}", found)
        rates = found["tflop_per_s"]
        asked = f"{ASKED_TFLOP_PER_S}{'' if found['reached'] else ' MISSED'}"
        print(
            f"dense {size:<11} {rates[OURS]:9.4f} {rates[PLAIN]:11.4f} {rates[BLOCKS]:18.4f} "
            f"{rates[WHOLE]:15.4f}  {found['num_row_blocks']}, {found['num_graphs']}, {asked}"
        )
    for edge in options.edges:
        for matrix in ("csr", "matrix-free"):
            clear(options.device)
            found = measure_sparse(matrix, edge, options)
            keep(f"{matrix} {edge}", found)
            tbytes = found["tbyte_per_s"]
            print(
                f"{matrix} {edge}: {tbytes['cg']:.3f} TB/s of {tbytes['triad']:.3f} of the triad "
                f"({found['fraction_of_bound']:.0%})"
            )


if __name__ == "__main__":
    main()
